"""RouterReplay by Megatron's names, beside Megatron's own. Run by test_trainer_megatron.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import moetape as mt
from megatron_cpu import config, forward, gpt, gradients, parallel, routers, same_gradients, tokens
from megatron_story import BATCH, FULL, LENGTH
from moetape.trainers.megatron import RouterReplay, RouterReplayAction

SCORES = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
FORWARD, BACKWARD = RouterReplayAction.REPLAY_FORWARD, RouterReplayAction.REPLAY_BACKWARD


@contextmanager
def only_ours() -> Iterator[None]:
    RouterReplay.clear_global_router_replay_instances()
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_instances()


def native(scores: torch.Tensor, k: int, num_groups: Any = None, group_topk: Any = None) -> Any:
    return torch.topk(scores, k, dim=1)


def story(replay: Any, action: Any) -> list[Any]:
    """Record, set two micro-batches, replay the second, recompute both: all that a caller sees."""
    seen: list[Any] = []
    one, two = replay(), replay()
    for instance, scores in ((one, SCORES), (two, -SCORES)):
        instance.set_router_replay_action(action.RECORD)
        seen += instance.get_replay_topk(scores, 2, None, None, native)
    recorded = replay.get_recorded_data()
    seen += recorded
    replay.set_replay_data([(ids + 1) % 8 for ids in recorded])
    replay.set_replay_data([(ids + 2) % 8 for ids in recorded])
    for act in (action.REPLAY_FORWARD, action.REPLAY_BACKWARD, action.REPLAY_BACKWARD):
        replay.set_global_router_replay_action(act)
        for instance in (one, two):
            seen += instance.get_replay_topk(SCORES, 2, None, None, native)
    seen.append([len(instance.replay_backward_list) for instance in (one, two)])
    replay.clear_global_router_replay_action()
    seen += one.get_replay_topk(SCORES, 2, None, None, native)
    replay.clear_global_indices()
    seen.append([replay.get_recorded_data(), one.target_topk_idx, len(replay.global_router_replay_instances)])
    replay.clear_global_router_replay_instances()
    seen.append(len(replay.global_router_replay_instances))
    return seen


def test_the_same_calls_have_the_same_answers_as_megatrons() -> None:
    from megatron.core.transformer.moe import router_replay as theirs

    assert {one.name: one.value for one in RouterReplayAction} == {
        one.name: one.value for one in theirs.RouterReplayAction
    }
    missing = {name for name in dir(theirs.RouterReplay) if name[0] != "_"} - set(dir(RouterReplay))
    assert not missing
    theirs.RouterReplay.clear_global_router_replay_instances()
    with only_ours():
        ours = story(RouterReplay, RouterReplayAction)
    for left, right in zip(ours, story(theirs.RouterReplay, theirs.RouterReplayAction), strict=True):
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def test_it_stands_in_a_model_as_megatrons_does() -> None:
    # case I02
    from megatron.core.transformer.moe import router_replay as theirs

    found = []
    for replay, action in (
        (theirs.RouterReplay, theirs.RouterReplayAction),
        (RouterReplay, RouterReplayAction),
    ):
        replay.clear_global_router_replay_instances()
        with parallel():
            model = gpt(config(**FULL))
            for router in routers(model).values():
                router.router_replay = replay()
                router.set_layer_number(router.layer_number)
            batches = [tokens(BATCH, LENGTH, seed) for seed in range(2)]
            ids = [
                torch.stack([torch.arange(16) % 8, (torch.arange(16) + 3 + at) % 8], dim=1) for at in range(2)
            ]
            losses = []
            for batch, one in zip(batches, ids, strict=True):
                replay.set_replay_data([one, one])
                replay.set_global_router_replay_action(action.REPLAY_FORWARD)
                losses.append(forward(model, batch).mean())
            replay.set_global_router_replay_action(action.REPLAY_BACKWARD)
            for loss in losses:
                loss.backward()
            found.append(([loss.detach() for loss in losses], gradients(model)))
        replay.clear_global_router_replay_instances()
    assert all(map(torch.equal, found[0][0], found[1][0]))
    assert same_gradients(found[0][1], found[1][1])


def test_ids_of_any_integer_type_are_taken() -> None:
    # case D12; trap 16, 20
    with only_ours():
        one = RouterReplay()
        ids = native(SCORES, 2)[1]
        one.set_router_replay_action(FORWARD)
        for kind in (torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64):
            one.set_target_indices(ids.to(kind))
            assert torch.equal(one.get_replay_topk(SCORES, 2)[1], ids)


def test_what_megatron_takes_in_silence_is_an_error() -> None:
    # case I03, I07, I22; trap 2, 4, 22
    with only_ours():
        one = RouterReplay()
        two = RouterReplay()
        two.layer_number = 4
        good = native(SCORES, 2)[1]
        for ids, error, message in (
            (
                torch.zeros(6, 2, dtype=torch.int64),
                mt.InvalidArgumentError,
                r"different ids in a row, got \[0, 0\]",
            ),
            (good - 8, mt.OutOfRangeError, "expected ids from 0, got"),
            (good.float(), mt.WrongTypeError, "expected a tensor of integers, got torch.float32"),
            (good.tolist(), mt.WrongTypeError, "got list"),
            (good[0], mt.WrongShapeError, r"expected ids \[rows, k\]"),
        ):
            with pytest.raises(error, match=message):
                RouterReplay.set_replay_data([good, ids])
            assert one.target_topk_idx is None  # nothing is half set
        with pytest.raises(mt.WrongShapeError, match="expected ids of 2 routers, got 1"):
            RouterReplay.set_replay_data([good])
        RouterReplay.set_global_router_replay_action(FORWARD)
        with pytest.raises(mt.NotCapturedError, match="router 0: expected ids set before REPLAY_FORWARD"):
            one.get_replay_topk(SCORES, 2)
        two.set_target_indices(good)
        with pytest.raises(
            mt.WrongShapeError, match=r"router of layer 3: expected .* = \[4, 2\].*got \[6, 2\]"
        ):
            two.get_replay_topk(SCORES[:4], 2)
        two.set_target_indices(good + 7)
        with pytest.raises(mt.OutOfRangeError, match="expected ids below 8, got"):
            two.get_replay_topk(SCORES, 2)
        RouterReplay.clear_global_indices()
        RouterReplay.set_global_router_replay_action(BACKWARD)
        with pytest.raises(
            mt.NotCapturedError, match="expected ids of a forward to recompute, got none left"
        ):
            two.get_replay_topk(SCORES, 2)
        RouterReplay.clear_global_router_replay_action()
        with pytest.raises(mt.InvalidArgumentError, match="expected default_compute_topk"):
            two.get_replay_topk(SCORES, 2)


def test_an_action_that_was_left_on_in_recomputation_is_an_error() -> None:
    with only_ours():
        one = RouterReplay()
        one.set_target_indices(native(SCORES, 2)[1])
        one.set_router_replay_action(FORWARD)
        leaf = torch.ones((), requires_grad=True)
        out = leaf * 2
        out.register_hook(lambda _: one.get_replay_topk(SCORES, 2) and None)
        with pytest.raises(mt.ConflictError, match="expected REPLAY_BACKWARD in recomputation"):
            out.backward()


def test_instances_that_are_gone_leave_the_list() -> None:
    # case G04, G05; trap 10
    with only_ours():
        for _ in range(1000):
            RouterReplay()
        kept = [RouterReplay(), RouterReplay()]
        gc.collect()
        instances = RouterReplay.global_router_replay_instances
        assert list(instances) == kept
        assert len(instances) == 2
        assert instances[-1] is kept[1]
        assert len(instances._known) == 2


def test_static_buffers() -> None:
    # case A13
    with only_ours():
        one, two = RouterReplay(), RouterReplay()
        with pytest.raises(mt.WrongShapeError, match="expected 2 layers as instances, got 3"):
            RouterReplay.set_global_static_buffers(torch.zeros(8, 3, 2, dtype=torch.int64))
        buffer = torch.full((8, 2, 2), -1)
        RouterReplay.set_global_static_buffers(buffer)
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        _, ids = two.get_replay_topk(SCORES, 2, default_compute_topk=native)
        assert torch.equal(buffer[:6, 1], ids)
        assert torch.equal(two.get_recorded_indices(), ids)
        assert (buffer[6:] == -1).all()
        assert (buffer[:, 0] == -1).all()
        with pytest.raises(
            mt.CapacityError, match="expected at most 8 rows as the static buffer holds, got 12"
        ):
            one.get_replay_topk(SCORES.repeat(2, 1), 2, default_compute_topk=native)
        RouterReplay.clear_global_static_buffers()
        assert two.static_buffer is None
