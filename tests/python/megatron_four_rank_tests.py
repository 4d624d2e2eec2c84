"""All ranks agree, and larger set-ups, on four ranks. Run by test_trainer_megatron.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import moetape as mt
from megatron_cpu import parallel, routers
from megatron_ranks import Ranks, SetUp, foreign, prove, step
from moetape.trainers.agreement import agree, gather_if_any
from moetape.trainers.megatron import MicroBatchRoutes, ReplayPolicy, attach

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LIMIT = timedelta(seconds=10)  # a rank that waits longer for another fails
_groups: list[Any] = []


def quick_group() -> Any:
    if not _groups:
        _groups.append(dist.new_group(backend="gloo", timeout=LIMIT))
    return _groups[0]


@contextmanager
def attached(setup: SetUp, **policy: Any) -> Iterator[Any]:
    """(ranks, session, its own ids) of a set-up whose ranks agree within the limit."""
    group = quick_group()  # before Megatron's groups, which end with the set-up
    with parallel(**setup.groups) as state:
        ranks = Ranks(setup, state)
        ids = ranks.own_ids(step)
        session = attach(ranks.chunks, group=group, policy=ReplayPolicy(**policy))
        yield ranks, session, ids
        session.detach()


def spoiled(given: MicroBatchRoutes, sequence: int) -> MicroBatchRoutes:
    """A row of a sequence is missing."""
    routes = list(given.routes)
    valid = np.ones(len(routes[sequence]), bool)
    valid[:] = False
    routes[sequence] = mt.Routes.from_ids(
        routes[sequence].spec, np.asarray(routes[sequence].ids), valid=valid
    )
    return MicroBatchRoutes(routes, given.row_ids)


def raised(act: Any, *args: Any) -> tuple[str, str] | None:
    try:
        act(*args)
    except mt.Error as error:
        return type(error).__name__, str(error)
    return None


def everywhere(value: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value, group=quick_group())
    return told


TENSOR = SetUp(tp=2, changes=FULL)
PIPELINE = SetUp(pp=2, schedule="megatron", num_micro_batches=4, changes=FULL)


def test_bad_data_on_one_rank_is_the_same_error_on_all_before_anything_runs() -> None:
    for setup, culprit in ((TENSOR, 0), (PIPELINE, 3)):
        with attached(setup, missing="error") as (ranks, session, ids):
            given = ranks.routes(session, ids)
            mine = dist.get_rank() == culprit
            told = []
            for bad in (
                [spoiled(given[0], 1), *given[1:]],
                [*given[:-1], MicroBatchRoutes(given[-1].routes, np.asarray(given[-1].row_ids)[None])],
                [MicroBatchRoutes(given[0].routes, [[1], [2, 3]]), *given[1:]],
            ):
                told.append(raised(session.forward_step, step, bad if mine else given))
            for answers in zip(*everywhere(told), strict=True):
                assert len(set(answers)) == 1
                assert answers[0] is not None
                assert answers[0][1].startswith(f"rank {culprit} of 4: ")
            kinds = ["MissingRowsError", "WrongShapeError", "InvalidArgumentError"]
            assert [one[0] for one in told] == kinds
            with session.forward_step(step, given) as replayed:  # the next step works
                ranks.run(replayed)


def test_late_errors_of_one_rank_are_raised_on_all_before_the_optimizer_steps() -> None:
    # case H10
    for setup in (TENSOR, PIPELINE):
        with attached(setup) as (ranks, session, ids):
            given = ranks.routes(session, ids)
            plain = ranks.run(step)
            mine = dist.get_rank() == 2
            silent = list(routers(ranks.chunks[0]).values())[-1]
            port = silent.router_replay
            if mine:
                silent.router_replay = None
            replayed = session.forward_step(step, given)
            ranks.run(replayed)  # nobody hangs
            answers = everywhere(raised(replayed.finish))
            assert len(set(answers)) == 1
            assert answers[0][0] == "NotCapturedError"
            assert answers[0][1].startswith("rank 2 of 4: replay: expected every router to fire once")
            assert everywhere(f"(layer {silent.layer_number - 1})")[2] in answers[0][1]
            silent.router_replay = port
            with session.forward_step(step, given) as replayed:
                again = ranks.run(replayed)
            assert all(map(torch.equal, plain[0], again[0]))


def test_a_wrong_row_count_on_one_rank_is_raised_on_all() -> None:
    with attached(TENSOR) as (ranks, session, ids):
        given = ranks.routes(session, ids)
        short = [MicroBatchRoutes(one.routes, np.asarray(one.row_ids)[:, :-2]) for one in given]
        replayed = session.forward_step(step, short if dist.get_rank() == 1 else given)
        ranks.run(replayed)
        answers = everywhere(raised(replayed.finish))
        assert len(set(answers)) == 1
        assert answers[0][0] == "WrongShapeError"
        assert answers[0][1].startswith(
            "rank 1 of 4: replay: router decoder.layers.0.mlp.router: expected ids"
        )


def test_an_error_that_nobody_asked_for_is_told_with_the_next_step() -> None:
    with attached(TENSOR) as (ranks, session, ids):
        given = ranks.routes(session, ids)
        silent = routers(ranks.chunks[0])[1]
        port = silent.router_replay
        if dist.get_rank() == 0:
            silent.router_replay = None
        replayed = session.forward_step(step, given)
        ranks.run(replayed)
        silent.router_replay = port
        del replayed
        with session.forward_step(step, given, "reference") as live:  # asks nobody, and keeps it
            ranks.run(live)
        answers = everywhere(raised(session.forward_step, step, given))
        assert len(set(answers)) == 1
        assert answers[0][1].startswith("rank 0 of 4: replay: expected every router to fire once")


def test_a_bad_sequence_is_dropped_by_the_ranks_that_share_it() -> None:
    for setup, bad_rank in ((TENSOR, 3), (PIPELINE, 0)):
        with attached(setup, missing="error", on_bad_data="drop") as (ranks, session, ids):
            given = ranks.routes(session, [foreign(one) for one in ids])
            mine = dist.get_rank() == bad_rank
            with session.forward_step(
                step, [given[0], spoiled(given[1], 1), *given[2:]] if mine else given
            ) as replayed:
                ranks.run(replayed)
            replicas = everywhere((ranks.replica, replayed.dropped, replayed.is_live))
            assert len({replica for replica, _, _ in replicas}) == 2
            for replica, dropped, is_live in replicas:
                assert dropped == ({(1, 1)} if replica == replicas[bad_rank][0] else set())
                assert not is_live
            num_dropped = len(ranks.rows) // 2 if replayed.dropped else 0
            assert replayed.counts.dropped == num_dropped


def test_all_ranks_go_live_together() -> None:
    with attached(TENSOR, missing="error", on_bad_data="live") as (ranks, session, ids):
        plain = ranks.run(step)
        given = ranks.routes(session, [foreign(one) for one in ids])
        bad = [spoiled(given[0], 0), given[1]] if dist.get_rank() == 2 else given
        with session.forward_step(step, bad) as replayed:
            again = ranks.run(replayed)
        assert everywhere(replayed.is_live) == [True] * 4
        assert all(map(torch.equal, plain[0], again[0]))


def test_a_good_step_costs_one_small_reduction_before_and_one_after() -> None:
    with attached(TENSOR) as (ranks, session, ids):
        given = ranks.routes(session, ids)
        calls: list[tuple[str, int]] = []
        plain, gather = dist.all_reduce, dist.all_gather_object

        def counted(tensor: torch.Tensor, *args: Any, **rest: Any) -> Any:
            if rest.get("group") is quick_group():
                calls.append(("reduce", tensor.numel() * tensor.element_size()))
            return plain(tensor, *args, **rest)

        dist.all_reduce = counted
        dist.all_gather_object = lambda *_, **__: calls.append(("gather", -1))
        try:
            with session.forward_step(step, given) as replayed:
                assert calls == [("reduce", 24)]
                ranks.run(replayed)
            assert calls == [("reduce", 24), ("reduce", 24)]
        finally:
            dist.all_reduce, dist.all_gather_object = plain, gather


def test_ranks_of_other_settings_are_told_before_any_waits_for_another() -> None:
    other = {"passes": ["train"], "missing": "fill", "on_bad_data": "drop"}
    for field, value in other.items():
        with attached(TENSOR) as (ranks, session, ids):
            given = ranks.routes(session, ids)
            if dist.get_rank() == 3:
                session.policy = ReplayPolicy(**{field: value})
            for pass_ in ("train", "logprob"):
                answers = everywhere(raised(session.forward_step, step, given, pass_))
                assert len(set(answers)) == 1
                assert answers[0][0] == "ConflictError"
                assert answers[0][1].startswith(f"rank 3 of 4: expected pass '{pass_}' of RouteSpec(")
                assert f"{field}={value!r}" in answers[0][1]
            session.policy = ReplayPolicy()
            with session.forward_step(step, given) as replayed:
                ranks.run(replayed)


def test_lengths_that_cannot_be_cut_on_one_rank_are_raised_on_all() -> None:
    with attached(TENSOR) as (ranks, session, ids):
        given = ranks.routes(session, ids)
        mine = dist.get_rank() == 1
        for bad in (
            session.padded(given[0].routes, [99, 4], 8),
            session.padded(given[0].routes, [4, -1], 8),
            session.packed(given[0].routes, [4, 4], multiple=0),
        ):
            answers = everywhere(raised(session.forward_step, step, [bad] if mine else given))
            assert len(set(answers)) == 1
            assert answers[0][1].startswith("rank 1 of 4: ")


def test_what_a_failed_step_found_stays_with_it() -> None:
    with attached(TENSOR) as (ranks, session, ids):
        given = ranks.routes(session, ids)
        silent = routers(ranks.chunks[0])[1]
        port = silent.router_replay
        if dist.get_rank() == 2:
            silent.router_replay = None

        def failing() -> None:
            with session.forward_step(step, given) as replayed:
                ranks.run(replayed)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as told:
            failing()
        silent.router_replay = port
        notes = everywhere(getattr(told.value, "__notes__", []))
        assert [len(one) > 0 for one in notes] == [False, False, True, False]
        assert notes[2][0].startswith("and before: replay: expected every router to fire once")
        with session.forward_step(step, given) as replayed:  # and the next is as if nothing had been
            ranks.run(replayed)


def test_agreeing_by_itself() -> None:
    rank = dist.get_rank()
    agree(None, quick_group())
    assert gather_if_any(None, quick_group()) == []
    assert gather_if_any(rank if rank == 1 else None, quick_group()) == [None, 1, None, None]
    with pytest.raises(mt.OutOfRangeError, match=r"^rank 1 of 4 \(and 1 more ranks\): one too far$"):
        agree(mt.OutOfRangeError("one too far") if rank % 2 else None, quick_group())
    agree(None, quick_group(), same="alike")
    with pytest.raises(mt.ConflictError, match=r"^rank 2 of 4: expected blue as rank 0 has, got red$"):
        agree(None, quick_group(), same="red" if rank == 2 else "blue")


def test_larger_set_ups() -> None:
    # case E06, K02; trap 11
    prove(SetUp(tp=2, cp=2))
    prove(SetUp(tp=2, pp=2, schedule="megatron", num_micro_batches=3, changes=FULL))
    prove(SetUp(pp=2, ep=2, schedule="megatron", changes={"num_layers": 4, "moe_layer_freq": [0, 1, 0, 1]}))
    prove(
        SetUp(
            pp=2,
            vp=2,
            tp=2,
            schedule="megatron",
            num_micro_batches=4,
            changes={"num_layers": 8, "moe_layer_freq": [0, 0, 1, 1, 1, 0, 1, 1], **FULL},
        )
    )
    prove(
        SetUp(
            pp=4,
            schedule="megatron",
            num_micro_batches=5,
            changes={"num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]},
        )
    )
