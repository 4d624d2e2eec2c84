"""Row ids go through the code by which miles cuts its tokens and routes; RowIds says the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from moetape.replay import Plan, RowIds
from peer_code import Group, peer_code
from peer_ranks import SEEDS, Array, Rank


@pytest.fixture(params=SEEDS)
def rank(request: pytest.FixtureRequest) -> Rank:
    return Rank.random(request.param)


def miles_state(rank: Rank) -> Callable[[], SimpleNamespace]:
    one_of = {
        name: SimpleNamespace(size=group.size(), rank=group.rank())
        for name, group in (("cp", rank.cp), ("tp", rank.tp))
    }
    return lambda: SimpleNamespace(**one_of)


def miles_slice(rank: Rank) -> Any:
    return peer_code(
        "miles-rl-0.0.2",
        "miles/backends/training_utils/cp_utils.py",
        "slice_with_cp",
        torch=torch,
        F=torch.nn.functional,
        Callable=Callable,
        get_parallel_state=miles_state(rank),
    ).slice_with_cp


class MilesIterator:
    def __init__(self, batch: dict[str, Any]) -> None:
        self.rollout_data: dict[str, Any] = {}
        self._batch = batch

    def reset(self) -> None:
        pass

    def get_next(self, keys: list[str]) -> dict[str, Any]:
        return {key: self._batch.get(key) for key in keys}


MILES_MULTIPLE = 8


def miles_replay_rows(rank: Rank, qkv_format: str, max_length: int) -> Array:
    """What miles gives to its routers, its routes being row ids; the last token has none."""
    fill = peer_code(
        "miles-rl-0.0.2",
        "miles/backends/megatron_utils/actor.py",
        "MegatronTrainRayActor._fill_replay_data",
        torch=torch,
        slice_with_cp=miles_slice(rank),
        get_parallel_state=miles_state(rank),
    )
    actor = SimpleNamespace(
        args=SimpleNamespace(
            qkv_format=qkv_format, data_pad_size_multiplier=MILES_MULTIPLE, sequence_parallel=True
        ),
        model=None,
    )
    batch = {
        "routes": [ids[:-1, None, None] for ids in rank.ids],
        "tokens": rank.ids,
        "max_seq_lens": [max_length] * len(rank.lengths),
    }
    given: list[torch.Tensor] = []
    fill._fill_replay_data(
        actor,
        [MilesIterator(batch)],
        [1],
        dict(batch),
        "routes",
        [],
        lambda _, rows, model: given.append(rows),
    )
    return np.asarray(given[0].reshape(-1))


def without_last_tokens(rank: Rank, rows: RowIds) -> Array:
    last = [ids[-1].item() for ids in rank.ids]
    return np.where((rows.ids == 0) | np.isin(rows.ids, last), -1, rows.ids)


def miles_rows(rank: Rank) -> RowIds:
    cp = rank.cp.size()
    return rank.zigzag(rank.rows.pad_each(2 * cp if cp > 1 else 1)).pad(rank.tp.size() * MILES_MULTIPLE)


def test_miles_routes_of_packed_batches(rank: Rank) -> None:
    mine = rank.sequence_parallel(miles_rows(rank))
    assert np.array_equal(without_last_tokens(rank, mine), miles_replay_rows(rank, "thd", 0))


def padded_for_miles(rank: Rank) -> tuple[RowIds, int]:
    cp, tp = rank.cp.size(), rank.tp.size()
    multiple = 2 * cp * tp
    length = rank.padded_length(multiple)
    return rank.zigzag(rank.rows.pad_each_to(length)), length


def test_miles_flattens_padded_batches_batch_first(rank: Rank) -> None:
    # megatron-core's routers see row s * B + b: right for one sequence a micro-batch only.
    rows, length = padded_for_miles(rank)
    theirs = miles_replay_rows(rank, "bshd", length)
    assert np.array_equal(without_last_tokens(rank, rank.sequence_parallel(rows)), theirs)
    right = without_last_tokens(rank, rank.sequence_parallel(rows.sequence_major()))
    assert np.array_equal(right, theirs) == (len(rank.lengths) == 1)


@pytest.mark.parametrize("allgather", [False, True])
def test_miles_tokens(rank: Rank, allgather: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    get_batch = peer_code(
        "miles-rl-0.0.2",
        "miles/backends/training_utils/data.py",
        "get_batch",
        torch=torch,
        F=torch.nn.functional,
        slice_with_cp=miles_slice(rank),
        get_parallel_state=miles_state(rank),
    ).get_batch
    batch = {
        "tokens": rank.ids,
        "loss_masks": [torch.ones(1) for _ in rank.ids],
        "total_lengths": rank.lengths,
        "response_lengths": [1] * len(rank.lengths),
    }
    theirs = get_batch(MilesIterator(batch), list(batch), MILES_MULTIPLE, allgather_cp=allgather)["tokens"][0]
    if not allgather:
        assert np.array_equal(miles_rows(rank).ids, np.asarray(theirs))
        return
    rows = rank.contiguous(rank.rows.pad(rank.cp.size() * rank.tp.size() * MILES_MULTIPLE))
    assert np.array_equal(rows.ids, np.asarray(theirs))
    # Its routes are cut in zig-zag all the same: under allgather they belong to other tokens.
    mine = without_last_tokens(rank, rank.sequence_parallel(rows))
    if rank.cp.size() == 1:
        assert np.array_equal(mine, miles_replay_rows(rank, "thd", 0))


def test_miles_routes_miss_their_tokens_under_allgather() -> None:
    lengths = [40, 24]
    rank = Rank(lengths, cp=Group(2, 0), tp=Group(1, 0))
    tokens = rank.contiguous(rank.rows.pad(2 * MILES_MULTIPLE))
    plan = Plan.from_row_ids(tokens)
    assert plan.needs() == [(0, 0, 32)]
    theirs = miles_replay_rows(rank, "thd", 0)
    assert theirs.shape == (32,)
    assert (theirs == tokens.ids).sum() == 10
