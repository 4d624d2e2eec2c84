"""Routes from rank to rank by torch.distributed, on four ranks with gloo and on one without any group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import moetape as mt
from moetape.replay import Plan, RowIds

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "exchange_ranks.py"


def test_four_ranks_exchange_and_agree(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1] / "python"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", PROGRAM, tmp_path / "rendezvous", str(rank), "4"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    tests = PROGRAM.read_text().count("\ndef test_")
    for rank, log in enumerate(told):
        assert ranks[rank].returncode == 0, f"rank {rank}:\n{log}"
        assert log.count("passed test_") == tests > 2


def test_without_a_group_a_rank_serves_itself() -> None:
    from moetape.trainers.exchange import exchange

    spec = mt.RouteSpec(layers=[0, 2], top_k=1, num_experts=4)
    held = {1: mt.Routes.from_ids(spec, np.arange(10).reshape(5, 2, 1) % 4)}
    plan = Plan.from_row_ids(RowIds.from_lengths([3, 6]).take([1]), layers=[2])
    new_plan, [routes] = exchange(plan, held, spec=spec, num_sequences=2)
    assert new_plan.apply([routes])[0][0, :, 0].tolist()[:5] == [1, 3, 1, 3, 1]
    with pytest.raises(mt.OutOfRangeError, match="sequence 1: expected a rank that holds it, got none"):
        exchange(plan, {}, spec=spec, num_sequences=2)
    with pytest.raises(mt.OutOfRangeError, match="sequence: expected 0 to 0, got 1"):
        exchange(plan, held, spec=spec, num_sequences=1)
