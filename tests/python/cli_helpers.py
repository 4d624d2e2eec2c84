"""What the tests of the command line share: the program as it was built, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PROGRAM = Path(os.environ.get("MOETAPE_CLI", Path(__file__).parents[2] / "build/release/cli/moetape"))


def moetape(
    *arguments: object, stdin: bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """One run; standard output and error are texts."""
    command = [str(PROGRAM), *map(str, arguments)]
    run = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=120, **options)
    return subprocess.CompletedProcess(command, run.returncode, run.stdout.decode(), run.stderr.decode())


def succeed(*arguments: object, code: int = 0, **options: Any) -> str:
    """What a run prints that ends with this code and complains about nothing."""
    run = moetape(*arguments, **options)
    assert (run.returncode, run.stderr) == (code, ""), f"{run.args}\n{run.stdout}\n{run.stderr}"
    return run.stdout


def succeed_json(*arguments: object, **options: Any) -> Any:
    return json.loads(succeed(*arguments, "--json", **options))


def refused(*arguments: object, **options: Any) -> str:
    """The one line in which a run says what is wrong, having printed nothing else."""
    run = moetape(*arguments, **options)
    assert (run.returncode, run.stdout) == (2, ""), f"{run.args}\n{run.stdout}\n{run.stderr}"
    assert run.stderr.startswith("moetape: "), run.stderr
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr.removeprefix("moetape: ").rstrip("\n")
