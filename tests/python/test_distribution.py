"""The bytes that a large job's nodes fetch, counted by bench/distribution.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench/distribution.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("distribution", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["distribution"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["distribution"]


@pytest.mark.parametrize("lengths", [[32_768] * 1000, [32_768, 20_011] * 500])
def test_a_node_fetches_its_part_and_the_driver_nothing(bench: Any, lengths: list[int]) -> None:
    """64 rollout servers, 512 ranks, 1,000 sequences of DeepSeek-V3; no rank's rows are made."""
    found = bench.count(lengths, None)
    assert found.nodes == 64
    rows = sum(length - 1 for length in lengths)
    assert found.partition == rows * 58 * 8  # a replica's nodes hold every row and layer of its own once
    assert found.fetched <= 1.05 * found.partition
    assert found.most_of_a_node <= 1.05
    assert found.driver < 0.001 * found.partition
    assert found.everything > 1900 * found.fetched
