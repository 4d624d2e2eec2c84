"""The demo holds what it promises: examples/demo.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import moetape

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run(*arguments: str) -> tuple[int, str]:
    packages = str(Path(moetape.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(DEMO), *arguments], capture_output=True, text=True, env={"PYTHONPATH": packages}
    )
    return done.returncode, done.stdout


def numbers(text: str, label: str) -> list[float]:
    (line,) = [one for one in text.splitlines() if one.startswith(label)]
    return [float(one) for one in re.findall(r"-?\d+\.?\d*", line[len(label) :])]


def test_the_demo_ends_well_and_its_numbers_say_so() -> None:
    status, text = run()
    assert status == 0, text
    assert text.endswith("\ndemo: ok\n")
    assert numbers(text, "missing rows") == [0]
    ours, sglang = (
        numbers(text, f"bytes per token, {one}")[-1] for one in ("moetape", "SGLang's int32 base64")
    )
    assert 5 * ours < sglang
    for label in ("routers that disagree (layer x token)", "tokens with a router that disagrees"):
        without, replayed = numbers(text, label)
        assert without > 1
        assert replayed == 0
    without, replayed = numbers(text, "mean |difference of logprob| of sampled tokens")
    assert replayed < without / 2


def test_a_demo_that_fails_says_why(tmp_path: Path) -> None:
    status, text = run("--model", str(tmp_path))
    assert status == 1
    assert f"demo: failed: --model: expected a folder with config.json, got {tmp_path}" in text
