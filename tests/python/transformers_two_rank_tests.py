"""What runs on two ranks with gloo, each with its own sequences: DDP, FSDP2, and verdicts that are shared.

Each test is a function that both ranks call at the same time; test_trainer_transformers_ranks.py runs TESTS.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import moetape as mt
from moetape.trainers.transformers import Counts, ReplayPolicy, Session, attach
from replay_helpers import deterministic, experts_input, right_padded, same_gradients, wrong_routes
from tiny_models import tiny

KINDS = ("ddp", "fsdp2")
CHECKPOINTING = (None, False, True)  # off; not reentrant, reentrant


def batch_of(rank: int, seed: int = 0) -> dict[str, torch.Tensor]:
    first = [[5, 9, 11, 40, 7], [3, 8, 60]] if rank == 0 else [[60, 8, 31], [12, 13, 14, 15]]
    return right_padded([[token + seed for token in one] for one in first])


def distributed(kind: str, reentrant: bool | None, name: str = "qwen3_moe") -> tuple[Any, Any]:
    """(the model to call, the model to attach)."""
    model = tiny(name).train()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if kind == "ddp":
        return DistributedDataParallel(model), model
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, model


def step(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The logits, and the gradients (this rank's part of them) after a backward; the model's are cleared."""
    logits = model(**batch).logits
    logits.square().mean().backward()
    found = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            grad = weight.grad
            found[name] = (grad.to_local() if hasattr(grad, "to_local") else grad).clone()
    model.zero_grad(set_to_none=True)
    return logits.detach(), found


def own_and_foreign(model: Any, session: Session, batch: Any) -> tuple[list[mt.Routes], list[mt.Routes]]:
    with torch.no_grad(), session.record() as recording:
        model(**batch)
    return recording.routes, [wrong_routes(one) for one in recording.routes]


def own_routes_are_the_same_bits_and_foreign_ones_arrive(kind: str, reentrant: bool | None) -> None:
    model, inner = distributed(kind, reentrant)
    batch = batch_of(dist.get_rank())
    session = attach(inner, group=dist.group.WORLD)
    with deterministic():
        plain, expected = step(model, batch)
        own, foreign = own_and_foreign(model, session, batch)
        with session.replay(own) as replay:
            again, gradients = step(model, batch)
        assert replay.counts.replayed == int(batch["attention_mask"].sum())
        assert torch.equal(again, plain)
        assert same_gradients(gradients, expected)

        with session.replay(foreign), experts_input(inner, session.spec) as ids:
            other, gradients = step(model, batch)
        real = batch["attention_mask"].flatten().bool().numpy()
        for column, layer in enumerate(session.spec.layers):
            wanted = np.concatenate([one.ids[:, column] for one in foreign])
            assert len(ids[layer]) == (1 if reentrant is None else 2)
            assert all(np.array_equal(one[real], wanted) for one in ids[layer])
        assert not torch.equal(other, plain)
        assert not same_gradients(gradients, expected)
        assert all(gradients[f"{name}.weight"].abs().sum() > 0 for name in gates(model))


def gates(model: Any) -> list[str]:
    return [name for name, _ in model.named_modules() if name.endswith("mlp.gate")]


def micro_batches_keep_their_ids_until_their_backward(kind: str) -> None:
    model, inner = distributed(kind, False)
    session = attach(inner, group=dist.group.WORLD)
    batches = [batch_of(dist.get_rank(), seed) for seed in (0, 20)]
    routes = [own_and_foreign(model, session, batch)[1] for batch in batches]
    with deterministic():
        sums: list[Any] = []
        for batch, foreign in zip(batches, routes, strict=True):
            with session.replay(foreign):
                sums.append(step(model, batch)[1])
        losses = []
        for batch, foreign in zip(batches, routes, strict=True):
            with session.replay(foreign), experts_input(inner, session.spec) as ids:
                losses.append(model(**batch).logits.square().mean())
            assert np.array_equal(ids[2][0][:3], foreign[0].ids[:3, -1])
        sum(losses).backward()
    for name, weight in model.named_parameters():
        grad = weight.grad.to_local() if hasattr(weight.grad, "to_local") else weight.grad
        torch.testing.assert_close(grad, sums[0][name] + sums[1][name])


def bad_data_on_one_rank_is_the_same_error_on_both(kind: str) -> None:
    model, inner = distributed(kind, None)
    rank = dist.get_rank()
    batch = batch_of(rank)
    session = attach(inner, group=dist.group.WORLD)
    own, foreign = own_and_foreign(model, session, batch)
    plain = step(model, batch)[0]
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, 1] += rank  # the second rank's first sequence has another token
    cases: list[tuple[Any, Any, type[mt.Error]]] = [
        (own, changed, mt.ConflictError),
        (own[:1] if rank == 1 else own, batch, mt.WrongShapeError),
        ([None, *own[1:]] if rank == 1 else own, batch, mt.WrongTypeError),
        (3 if rank == 1 else own, batch, mt.WrongTypeError),
    ]
    for routes, given, error in cases:
        started = time.monotonic()
        with pytest.raises(error, match=r"^rank 1 of 2: "), session.replay(routes):
            step(model, given)
        assert time.monotonic() - started < 10
        with session.replay(foreign) as replay:
            assert not torch.equal(step(model, batch)[0], plain)
        assert replay.counts.replayed > 0

    session.policy = ReplayPolicy(on_bad_data="drop")
    with session.replay(own) as replay:
        step(model, changed)
    assert replay.dropped == ({0} if rank == 1 else set())
    assert replay.counts.dropped == (3 if rank == 1 else 0)
    session.policy = ReplayPolicy(on_bad_data="live")
    with session.replay(own) as replay:
        step(model, changed)
    assert (replay.is_live, replay.counts) == (True, Counts())


def a_router_that_does_not_fire_on_one_rank_is_the_same_error_on_both() -> None:
    model, inner = distributed("ddp", None)
    session = attach(inner, group=dist.group.WORLD)
    batch = batch_of(dist.get_rank())
    own, _ = own_and_foreign(model, session, batch)
    if dist.get_rank() == 0:
        inner.model.layers[1].mlp.forward = lambda hidden: hidden
    named = r"^rank 0 of 2: .*layers\.1\.mlp\.gate"
    with pytest.raises(mt.NotCapturedError, match=named), session.replay(own):
        model(**batch)


def ddp_itself_may_be_attached() -> None:
    model, inner = distributed("ddp", None)
    batch = batch_of(dist.get_rank())
    session = attach(model)
    _, foreign = own_and_foreign(model, session, batch)
    with session.replay(foreign) as replay, experts_input(inner, session.spec) as ids:
        step(model, batch)
    assert replay.counts.replayed > 0
    assert np.array_equal(ids[2][0][:3], foreign[0].ids[:3, -1])


TESTS = {
    **{
        f"own and foreign routes, {kind}, checkpointing {reentrant}": partial(
            own_routes_are_the_same_bits_and_foreign_ones_arrive, kind, reentrant
        )
        for kind in KINDS
        for reentrant in CHECKPOINTING
    },
    **{
        f"{what}, {kind}": partial(function, kind)
        for kind in KINDS
        for what, function in (
            ("micro-batches", micro_batches_keep_their_ids_until_their_backward),
            ("bad data on one rank", bad_data_on_one_rank_is_the_same_error_on_both),
        )
    },
    "a router that does not fire on one rank": (
        a_router_that_does_not_fire_on_one_rank_is_the_same_error_on_both
    ),
    "DDP itself attached": ddp_itself_may_be_attached,
}
