"""One rank of test_trainer_exchange.py: exchange_ranks.py RENDEZVOUS RANK WORLD."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import moetape as mt
from moetape.replay import FILL, Plan, RowIds
from moetape.trainers.exchange import exchange

SPEC = mt.RouteSpec(layers=range(1, 9), top_k=4, num_experts=300)
STAGES = [[1, 2, 3, 4], [5, 6, 7, 8]]
LENGTHS = [700, 1, 333, 64, 90, 512, 7]


def routes_of(sequence: int) -> mt.Routes:
    """The same on every rank; the last token has no row."""
    length = LENGTHS[sequence] - 1
    rows = np.arange(length)[:, None, None] * 5 + np.arange(1, 9)[None, :, None] * 3 + sequence
    ids = (rows + np.arange(4) * 7) % 300
    valid = np.arange(length) % 50 != 49
    return mt.Routes.from_ids(SPEC, ids, valid=valid, version=sequence, tokens=np.arange(length))


def plan_of(rank: int) -> Plan:
    """Rank (context, stage) of two by two, of some of the sequences."""
    rows = RowIds.from_lengths(LENGTHS).pad_each(4).zigzag_each(2, rank % 2)
    return Plan.from_row_ids(rows, layers=STAGES[rank // 2])


def held_by(rank: int) -> dict[int, mt.Routes]:
    """Rank 3 has nothing of its own but a copy of what rank 0 has."""
    return {one: routes_of(one) for one in range(len(LENGTHS)) if one % 3 == rank % 3}


def raised(rank: int, **changes: Any) -> mt.Error:
    call = {
        "plan": plan_of(rank),
        "held": held_by(rank),
        "spec": SPEC,
        "num_sequences": len(LENGTHS),
        **changes,
    }
    try:
        exchange(call.pop("plan"), call.pop("held"), **call)
    except mt.Error as error:
        return error
    raise AssertionError(f"rank {rank}: nothing was raised")


def test_every_rank_gets_what_its_plan_needs(rank: int) -> None:
    plan, routes = exchange(plan_of(rank), held_by(rank), spec=SPEC, num_sequences=len(LENGTHS))
    whole = [routes_of(one) for one in range(len(LENGTHS))]
    ids, uses = plan_of(rank).apply(whole, dtype="int32")
    got_ids, got_uses = plan.apply(routes, dtype="int32")
    assert np.array_equal(ids, got_ids)
    assert np.array_equal(uses, got_uses)
    assert sum(map(len, routes)) <= plan.num_rows
    assert all(one.spec.layers == tuple(STAGES[rank // 2]) for one in routes)
    versions = {
        sequence: part.versions for (sequence, *_), part in zip(plan_of(rank).needs(), routes, strict=True)
    }
    assert all(version == sequence for sequence, runs in versions.items() for *_, version in runs)


def test_a_rank_that_needs_nothing_still_sends(rank: int) -> None:
    mine = plan_of(rank) if rank == 0 else Plan.from_row_ids(np.zeros(3, np.int64))
    plan, routes = exchange(mine, held_by(rank), spec=SPEC, num_sequences=len(LENGTHS))
    assert (sum(map(len, routes)) > 0) == (rank == 0)
    assert (plan.apply(routes)[1] == FILL).all() == (rank != 0)


def test_a_rank_without_layers_is_told_what_its_rows_are_used_for(rank: int) -> None:
    rows = plan_of(rank).row_ids
    mine = Plan.from_row_ids(rows, layers=[]) if rank == 1 else plan_of(rank)
    plan, routes = exchange(mine, held_by(rank), spec=SPEC, num_sequences=len(LENGTHS))
    ids, uses = plan.apply(routes)
    assert (len(ids) == 0) == (rank == 1)
    assert np.array_equal(uses, mine.apply([routes_of(one) for one in range(len(LENGTHS))])[1])


def test_what_is_wrong_on_one_rank_is_raised_on_all(rank: int) -> None:
    other = mt.RouteSpec(layers=range(1, 9), top_k=4, num_experts=301)
    foreign = {0: mt.Routes.from_ids(other, np.tile(np.arange(4), (9, 8, 1)))}
    error = raised(rank, held=foreign if rank == 1 else held_by(rank))
    assert isinstance(error, mt.SpecMismatchError)
    assert "rank 1 of 4: sequence 0: expected RouteSpec" in str(error)

    layers = Plan.from_row_ids(RowIds.from_lengths([5]), layers=[12])
    error = raised(rank, plan=layers if rank == 2 else plan_of(rank))
    assert isinstance(error, mt.OutOfRangeError)
    assert "rank 2 of 4: layer: expected one of" in str(error)

    error = raised(rank, held={one: routes for one, routes in held_by(rank).items() if one != 4})
    assert isinstance(error, mt.OutOfRangeError)
    assert "sequence 4: expected a rank that holds it, got none" in str(error)

    error = raised(rank, num_sequences=len(LENGTHS) + (rank == 3))
    assert isinstance(error, mt.SpecMismatchError)
    assert "rank 3: expected the spec" in str(error)


def test_any_exception_of_one_rank_is_raised_on_all(rank: int) -> None:
    wrong: dict[str, Any] = {"held": [routes_of(0)], "plan": None, "spec": None, "num_sequences": "7"}
    for name, value in wrong.items():
        error = raised(rank, **{name: value} if rank == 2 else {})
        assert isinstance(error, mt.InvalidArgumentError), name
        assert "rank 2 of 4: exchange: " in str(error), name

    class Lost(dict[int, mt.Routes]):
        """Fails only when another rank asks for it."""

        def __getitem__(self, sequence: int) -> mt.Routes:
            raise RuntimeError(f"{sequence} is gone")

    error = raised(rank, held=Lost(held_by(rank)) if rank == 0 else held_by(rank))
    assert "rank 0 of 4: exchange: RuntimeError: 0 is gone" in str(error)


def main() -> None:
    rendezvous, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(rank)
            print("passed", name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
