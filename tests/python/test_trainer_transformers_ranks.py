"""Runs the tests of transformers_two_rank_tests.py on two ranks with gloo, all in one pair of processes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers_two_rank_tests import TESTS

WORLD = 2


def run_on_a_rank(rank: int, rendezvous: str, results: Any) -> None:
    import traceback

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    for key, test in TESTS.items():
        try:
            test()
        except BaseException:
            results.put((rank, key, traceback.format_exc()))
            break  # the ranks are no longer in step
        results.put((rank, key, None))
    results.put((rank, None, None))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | None]]:
    rendezvous: Path = tmp_path_factory.mktemp("ranks") / "rendezvous"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=run_on_a_rank, args=(rank, f"file://{rendezvous}", results))
        for rank in range(WORLD)
    ]
    for process in ranks:
        process.start()
    found: dict[str, list[str | None]] = {}
    num_done = 0
    try:
        while num_done < WORLD:
            _, key, error = results.get(timeout=300)
            num_done += key is None
            if key is not None:
                found.setdefault(key, []).append(error)
    finally:
        for process in ranks:
            process.join(30)
            if process.is_alive():
                process.kill()
    return found


@pytest.mark.xdist_group("transformers-ranks")
@pytest.mark.parametrize("key", TESTS)
def test_on_two_ranks(key: str, outcomes: dict[str, list[str | None]]) -> None:
    errors = outcomes.get(key, [])
    assert [one for one in errors if one is not None] == []
    assert len(errors) == WORLD, "did not run: an earlier test failed on one of the ranks"
