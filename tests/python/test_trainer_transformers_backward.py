"""Replay and the backward pass: recomputation, micro-batches in flight, and how long ids live."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import moetape as mt
from moetape.models import find_routers, interceptor, num_intercepted, remove_all
from moetape.trainers.transformers import attach
from replay_helpers import (
    deterministic,
    gradients,
    record,
    right_padded,
    same_gradients,
    wrong_routes,
)
from tiny_models import KINDS, tiny

both_kinds = pytest.mark.parametrize("reentrant", [False, True])
FIRST = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])
SECOND = right_padded([[31, 32, 33, 34, 35], [41, 42, 43]])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with deterministic():
        yield
    if num_intercepted() != 0:
        gc.collect()  # a failure's traceback may hold a graph
    assert num_intercepted() == 0


@pytest.fixture
def model() -> Any:
    return tiny("qwen3_moe").train()


def hand_written(model: Any, reentrant: bool) -> None:
    """A user's own checkpoint around each layer: nothing of it is known to replay."""
    model.config.use_cache = False
    model.enable_input_require_grads()
    for layer in model.model.layers:
        layer.forward = _checkpointed(layer.forward, reentrant)


def _checkpointed(forward: Callable[..., Any], reentrant: bool) -> Callable[..., Any]:
    def run(hidden: Any, **kwargs: Any) -> Any:
        return checkpoint(lambda inner: forward(inner, **kwargs), hidden, use_reentrant=reentrant)

    return run


def loss_of(output: Any) -> torch.Tensor:
    return torch.nn.functional.log_softmax(output.logits, -1)[..., 7].sum()


def replayed_gradients(model: Any, batch: Any, routes: list[mt.Routes]) -> dict[str, torch.Tensor]:
    with attach(model).replay(routes):
        loss = loss_of(model(**batch))
    loss.backward()
    return gradients(model)


class Watched:
    """Every router's ids, in the order in which it fired."""

    def __init__(self, model: Any) -> None:
        self.seen: dict[int, list[Any]] = {}
        self.handles = [
            interceptor(one).add_tap(
                lambda layer, ids: self.seen.setdefault(layer, []).append(ids.numpy().copy())
            )
            for one in find_routers(model)
        ]

    def __enter__(self) -> dict[int, list[Any]]:
        return self.seen

    def __exit__(self, *_: object) -> None:
        remove_all(self.handles)


@both_kinds
@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_sees_the_same_ids(kind: str, reentrant: bool) -> None:
    model = tiny(kind).train()
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    expected = replayed_gradients(model, FIRST, foreign)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with Watched(model) as seen:
        found = replayed_gradients(model, FIRST, foreign)
    assert same_gradients(found, expected)
    for layer, times in seen.items():
        assert len(times) == 2, f"layer {layer} was not recomputed"
        assert np.array_equal(times[0], times[1])


@both_kinds
def test_checkpointing_may_be_switched_between_blocks(model: Any, reentrant: bool) -> None:
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    session = attach(model)
    expected = replayed_gradients(model, FIRST, foreign)
    with session.replay(foreign):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        loss = loss_of(model(**FIRST))
    loss.backward()
    assert same_gradients(gradients(model), expected)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=2)
    assert same_gradients(replayed_gradients(model, FIRST, foreign), expected)
    model.gradient_checkpointing_disable()
    assert same_gradients(replayed_gradients(model, FIRST, foreign), expected)


@both_kinds
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_micro_batches_in_flight_see_their_own_ids(  # case I02, I04
    model: Any, reentrant: bool, order: tuple[int, int]
) -> None:
    batches = [FIRST, SECOND]
    routes = [[wrong_routes(one) for one in record(model, batch)] for batch in batches]
    expected = [replayed_gradients(model, *pair) for pair in zip(batches, routes, strict=True)]
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    session = attach(model)
    losses = []
    for batch, one in zip(batches, routes, strict=True):
        with session.replay(one):
            losses.append(loss_of(model(**batch)))
    for at in order:
        losses[at].backward()
        assert same_gradients(gradients(model), expected[at])


def test_one_forward_one_backward_schedule(model: Any) -> None:  # case I02
    batches = [FIRST, SECOND, right_padded([[61, 62, 63, 64], [71, 72, 73, 74]])]
    routes = [[wrong_routes(one) for one in record(model, batch)] for batch in batches]
    expected = [replayed_gradients(model, *pair) for pair in zip(batches, routes, strict=True)]
    model.gradient_checkpointing_enable()
    session = attach(model)
    losses: list[torch.Tensor] = []
    for step in ("f0", "f1", "b0", "f2", "b1", "b2"):
        at = int(step[1])
        if step[0] == "f":
            with session.replay(routes[at]):
                losses.append(loss_of(model(**batches[at])))
        else:
            losses[at].backward()
            assert same_gradients(gradients(model), expected[at])


@both_kinds
def test_one_backward_over_the_sum_of_two_micro_batches(model: Any, reentrant: bool) -> None:
    routes = [[wrong_routes(one) for one in record(model, batch)] for batch in (FIRST, SECOND)]
    session = attach(model)

    def both() -> dict[str, torch.Tensor]:
        with session.replay(routes[0]):
            first = loss_of(model(**FIRST))
        with session.replay(routes[1]):
            second = loss_of(model(**SECOND))
        (first + second).backward()
        return gradients(model)

    expected = both()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert same_gradients(both(), expected)


@both_kinds
def test_recomputing_twice_gives_the_same_ids(model: Any, reentrant: bool) -> None:  # case I03
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with Watched(model) as seen:
        with attach(model).replay(foreign):
            loss = loss_of(model(**FIRST))
        loss.backward(retain_graph=True)
        first = gradients(model)
        loss.backward()
        assert same_gradients(gradients(model), first)
    for times in seen.values():
        assert len(times) == 3
        assert all(np.array_equal(times[0], one) for one in times[1:])


@both_kinds
def test_live_choices_are_frozen_for_recomputation(model: Any, reentrant: bool) -> None:  # case I17
    forced = [wrong_routes(one) for one in record(model, FIRST)]
    routes = [mt.Routes.from_ids(one.spec, one.ids, valid=np.arange(one.end) % 2 == 1) for one in forced]
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with Watched(model) as seen:
        with attach(model).replay(routes) as replay:
            loss = loss_of(model(**FIRST))
        assert replay.counts.missing == 3
        with torch.no_grad():  # by now the routers would choose otherwise
            for router in find_routers(model):
                router.module.weight.neg_()
        loss.backward()
    for times in seen.values():
        assert len(times) == 2
        assert np.array_equal(times[0], times[1])


@both_kinds
def test_plain_forwards_beside_replay_stay_plain(model: Any, reentrant: bool) -> None:
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    session = attach(model)

    def mixed() -> dict[str, torch.Tensor]:
        before = loss_of(model(**FIRST))
        with session.replay(foreign):
            replayed = loss_of(model(**FIRST))
        after = loss_of(model(**SECOND))
        (before * 2 + replayed * 3 + after * 5).backward()
        return gradients(model)

    expected = mixed()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert same_gradients(mixed(), expected)


@both_kinds
def test_backward_inside_the_block_and_on_another_thread(model: Any, reentrant: bool) -> None:
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    expected = replayed_gradients(model, FIRST, foreign)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    session = attach(model)
    with session.replay(foreign):
        loss_of(model(**FIRST)).backward()
    assert same_gradients(gradients(model), expected)
    with session.replay(foreign):
        loss = loss_of(model(**FIRST))
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert same_gradients(gradients(model), expected)


# Checkpoints written by hand.


@both_kinds
def test_hand_written_checkpoints_work_for_one_micro_batch(model: Any, reentrant: bool) -> None:
    routes = [[wrong_routes(one) for one in record(model, batch)] for batch in (FIRST, SECOND)]
    expected = [replayed_gradients(model, *pair) for pair in zip((FIRST, SECOND), routes, strict=True)]
    hand_written(model, reentrant)
    losses = []  # kept: a graph whose backward has ended waits for nothing
    for at, batch in enumerate((FIRST, SECOND)):
        with attach(model).replay(routes[at]):
            losses.append(loss_of(model(**batch)))
        losses[at].backward()
        assert same_gradients(gradients(model), expected[at])


@both_kinds
def test_hand_written_checkpoints_of_several_micro_batches_are_refused(model: Any, reentrant: bool) -> None:
    routes = [[wrong_routes(one) for one in record(model, batch)] for batch in (FIRST, SECOND)]
    hand_written(model, reentrant)
    losses = []
    for at, batch in enumerate((FIRST, SECOND)):
        with attach(model).replay(routes[at]):
            losses.append(loss_of(model(**batch)))
    for loss in losses:
        with pytest.raises(mt.UnsupportedError, match="while 2 micro-batches wait"):
            loss.backward()
    del loss, losses


@both_kinds
def test_hand_written_checkpoints_of_plain_forwards_stay_plain(model: Any, reentrant: bool) -> None:
    foreign = [wrong_routes(one) for one in record(model, FIRST)]
    plain = loss_of(model(**SECOND))
    plain.backward()
    expected = gradients(model)
    hand_written(model, reentrant)
    earlier = loss_of(model(**SECOND))
    with attach(model).replay(foreign):
        loss = loss_of(model(**FIRST))
    later = loss_of(model(**SECOND))
    earlier.backward()
    assert same_gradients(gradients(model), expected)
    with pytest.raises(mt.UnsupportedError, match="no part of the replayed forward"):
        later.backward()
    loss.backward()
    gradients(model)
    del later


def test_a_reentrant_checkpoint_around_the_model_is_refused(model: Any) -> None:
    routes = record(model, FIRST)
    embeds = model.get_input_embeddings()(FIRST["input_ids"]).detach().requires_grad_()

    def run(inner: torch.Tensor) -> torch.Tensor:
        return loss_of(model(inputs_embeds=inner, attention_mask=FIRST["attention_mask"]))

    with pytest.raises(mt.UnsupportedError, match="around the whole model"), attach(model).replay(routes):
        checkpoint(run, embeds, use_reentrant=True)


# How long ids live.


@pytest.mark.filterwarnings("ignore:None of the inputs")
@both_kinds
@pytest.mark.parametrize("by", ["backward", "graph", "no_grad"])
def test_ids_live_until_the_backward_ended_or_the_graph_is_gone(model: Any, reentrant: bool, by: str) -> None:
    routes = record(model, FIRST)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    session = attach(model)
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled(by != "no_grad"), session.replay(routes):
            loss = loss_of(model(**FIRST))
        if by == "no_grad":
            assert not session._flights
            return
        (micro_batch,) = session._flights.live
        ids = [weakref.ref(one) for one in micro_batch._ids.values()]
        assert len(ids) == 3
        del micro_batch
        with pytest.raises(mt.InvalidArgumentError, match="1 micro-batches that wait"):
            session.detach()
        if by == "backward":
            loss.backward()
            assert loss.grad_fn is not None
        else:
            del loss
        assert all(one() is None for one in ids)
        assert not session._flights
        assert num_intercepted() == 0
        session.detach()
    finally:
        gc.enable()


def test_a_second_backward_without_its_graph_is_an_error_of_torch(model: Any) -> None:
    routes = record(model, FIRST)
    with attach(model).replay(routes):
        loss = loss_of(model(**FIRST))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_many_micro_batches_leave_nothing_behind(model: Any) -> None:  # case G05
    routes = record(model, FIRST)
    model.gradient_checkpointing_enable()
    session = attach(model)
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    for at in range(20):
        with session.replay(routes):
            loss = loss_of(model(**FIRST))
        if at % 2:
            loss.backward()
    del loss
    assert not session._flights
    assert not session._undo
    for name, module in model.named_modules():
        assert module.__dict__.get("_gradient_checkpointing_func") is before[name].get(
            "_gradient_checkpointing_func"
        )
        assert module.__dict__.get("forward") is None
