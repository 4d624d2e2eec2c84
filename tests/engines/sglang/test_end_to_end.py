"""The whole way: served by SGLang in bfloat16, shipped as its text, replayed by trainers in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TRAINERS = {
    "transformers 5.19": ("transformers", []),
    "megatron-core 0.16.1": ("megatron", [ROOT / ".cache/peers/megatron-core-0.16.1"]),
    "megatron-core 0.19.2": ("megatron", [ROOT / ".cache/peers/megatron-core-0.19.2"]),
}
COLUMNS = {
    "routers that disagree": ("r3/rerouted_routers", ".2%"),
    "tokens with one": ("r3/rerouted_tokens", ".2%"),
    "mean |Δ logprob|": ("train_rollout_logprob_abs_diff", ".4f"),
    "KL (k3)": ("rollout_train_k3_kl", ".1e"),
    "F(2)": ("rollout_train_extreme_frac_tau2", ".2%"),
}


def program(arguments: list[str], paths: list[Path], env: dict[str, str]) -> None:
    for path in paths:
        assert path.is_dir(), f"{path} is missing; `make peers` fetches it"
    paths = [*paths, ROOT / "python", ROOT / "tests/python"]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "end_to_end.py"), *arguments],
        env={**env, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights wide enough for routers and experts to matter, as bfloat16 has them: the same on both sides."""
    from tiny_model import write

    folder = tmp_path_factory.mktemp("bfloat16")
    write(folder, torch.bfloat16, num_hidden_layers=8, num_experts=32, initializer_range=0.1)
    return folder


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each trainer computed without and with replay."""
    folder = tmp_path_factory.mktemp("end_to_end")
    rollout = folder / "rollout.json"
    program(["serve", str(model), str(rollout)], [], environment("moetape"))
    results = {}
    for name, (trainer, paths) in TRAINERS.items():
        out = folder / "out.json"
        program(["train", trainer, str(model), str(rollout), str(out)], paths, dict(os.environ))
        results[name] = json.loads(out.read_text())
    return results


def table(found: dict[str, Any]) -> str:
    lines = [
        "| trainer, float32 | | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    for name, result in found.items():
        for at, (label, key) in enumerate((("without replay", "without"), ("with replay", "replay"))):
            cells = [f"{result[key][metric]:{form}}" for metric, form in COLUMNS.values()]
            lines.append(f"| {'' if at else name} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@pytest.mark.smoke
def test_trainers_route_as_sglang_did(found: dict[str, Any]) -> None:
    print(table(found))
    for name, result in found.items():
        without, replay = result["without"], result["replay"]
        assert result["missing"] == 0, name
        assert result["rows"] > 1000, name
        assert without["r3/rerouted_tokens"] > 0.1, f"{name}: the server's rounding should show"
        assert replay["r3/rerouted_routers"] == replay["r3/rerouted_tokens"] == 0, name
        for metric in ("train_rollout_logprob_abs_diff", "rollout_train_k3_kl"):
            assert replay[metric] < without[metric], f"{name}: {metric}"
        assert replay["router gradients"] > 0, name


@pytest.mark.smoke
def test_trainers_compute_the_same_as_each_other(found: dict[str, Any]) -> None:
    """So Megatron's model is transformers' one, and replay does the same in both."""
    first, *others = found.values()
    for other in others:
        for pass_ in ("without", "replay"):
            for metric, value in first[pass_].items():
                assert other[pass_][metric] == pytest.approx(value, rel=0.02, abs=1e-6), (pass_, metric)
