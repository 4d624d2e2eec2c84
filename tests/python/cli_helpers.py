"""What the tests of the command line share: the program as it was built, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import moetape as mt
from core_helpers import distinct_ids

PROGRAM = Path(os.environ.get("MOETAPE_CLI", Path(__file__).parents[2] / "build/release/cli/moetape"))


def moetape(
    *arguments: object, stdin: bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """One run; standard output and error are texts."""
    command = [str(PROGRAM), *map(str, arguments)]
    run = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=600, **options)
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


SPEC = mt.RouteSpec([1, 2, 4], top_k=2, num_experts=8, num_layers=6, model="toy")


def write_spec(folder: Path, spec: mt.RouteSpec = SPEC) -> Path:
    """A file for --spec."""
    fields = {name: getattr(spec, name) for name in ("stack", "top_k", "num_experts", "num_layers", "model")}
    path = folder / "spec.json"
    path.write_text(json.dumps({**fields, "layers": list(spec.layers)}))
    return path


def sample(
    num_rows: int, *, seed: int = 0, missing: Iterable[int] = (), spec: mt.RouteSpec = SPEC, **fields: Any
) -> mt.Routes:
    """Random routes; `missing` are rows."""
    valid = np.ones(num_rows, bool)
    valid[list(missing)] = False
    return mt.Routes.from_ids(spec, distinct_ids(num_rows, spec, seed), valid=valid, **fields)


def write_tape(path: Path, sequences: dict[str, mt.Routes]) -> Path:
    mt.save(path, sequences.values(), sequence_ids=sequences)
    return path


def read_tape(path: Path) -> dict[str, mt.Routes]:
    tape = mt.open(path)
    return {tape.entry(sequence).id: tape[sequence] for sequence in range(len(tape))}


def spec_of(printed: dict[str, Any]) -> mt.RouteSpec:
    """The spec that --json prints."""
    fields = dict(printed["spec"])
    fingerprint = fields.pop("fingerprint")
    fields["excluded"] = {int(layer): reason for layer, reason in fields["excluded"].items()}
    spec = mt.RouteSpec(**fields)
    assert f"{spec.fingerprint:016x}" == fingerprint
    return spec
