"""Replay in Megatron models on one rank. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import moetape as mt
from megatron_cpu import (
    config,
    dispatched,
    forward,
    gpt,
    gradients,
    map_of,
    parallel,
    recorded,
    same_gradients,
    step,
    tokens,
)
from moetape.trainers.megatron import MicroBatchRoutes, Session, attach

BATCH, LENGTH = 2, 8
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}


def ids_of(model: Any, batch: torch.Tensor) -> np.ndarray[Any, Any]:
    """What a model's routers choose of themselves, [sequence, position, layer, k]."""
    with recorded(model) as seen:
        forward(model, batch)
    stacked = np.stack([seen[layer][0].numpy() for layer in sorted(seen)], axis=1)
    count, length = batch.shape
    return stacked.reshape(length, count, len(seen), -1).swapaxes(0, 1)


def routes_of(session: Session, ids: Any, last: int = 0) -> list[mt.Routes]:
    return [mt.Routes.from_ids(session.spec, one[: len(one) - last]) for one in ids]


def whole(session: Session, ids: Any) -> MicroBatchRoutes:
    return session.padded(routes_of(session, ids), [ids.shape[1]] * len(ids), ids.shape[1])


def foreign(ids: Any) -> Any:
    """Other experts for every row, by another shift in each layer."""
    return (ids + 1 + np.arange(ids.shape[2])[None, None, :, None]) % 8


def run(model: Any, batches: list[torch.Tensor], call: Any = step, order: str = "F1 F2 B1 B2") -> Any:
    """(losses, gradients) of the micro-batches under a schedule; `call` is the forward step."""
    data = iter(batches)
    losses: dict[str, torch.Tensor] = {}
    for word in order.split()[: 2 * len(batches)] if len(batches) > 1 else ["F1", "B1"]:
        if word[0] == "F":
            output, _ = call(data, model)
            losses[word[1:]] = output.mean()
        else:
            losses[word[1:]].backward()
    return [loss.detach() for loss in losses.values()], gradients(model)


def same(left: Any, right: Any) -> bool:
    return all(map(torch.equal, left[0], right[0])) and same_gradients(left[1], right[1])


def rows(ids: Any, layer: int) -> Any:
    """The ids as Megatron's router of a layer sees them: row s * batch + b."""
    return ids[:, :, layer].swapaxes(0, 1).reshape(-1, ids.shape[-1])


def test_own_routes_are_the_same_bits_and_foreign_ones_are_not() -> None:
    # case I01
    for changes in ({}, FULL, SELECTIVE, {"moe_layer_freq": [0, 1], "num_layers": 2}):
        with parallel():
            model = gpt(config(**changes))
            batch = tokens(BATCH, LENGTH)
            ids = ids_of(model, batch)
            plain = run(model, [batch])
            session = attach(model)
            with session.forward_step(step, [whole(session, ids)]) as replayed:
                again = run(model, [batch], replayed)
            assert same(plain, again), changes
            assert replayed.counts.replayed == BATCH * LENGTH
            other = foreign(ids)
            with session.forward_step(step, [whole(session, other)]) as replayed, dispatched(model) as maps:
                changed = run(model, [batch], replayed)
            assert not torch.equal(plain[0][0], changed[0][0])
            for column, layer in enumerate(session.spec.layers):
                assert all(torch.equal(one, map_of(rows(other, column))) for one in maps[layer])
                assert len(maps[layer]) == (2 if "recompute_granularity" in changes else 1)
                weight = f"decoder.layers.{layer}.mlp.router.weight"
                assert changed[1][weight].abs().sum() > 0
            session.detach()
            assert same(plain, run(model, [batch]))
