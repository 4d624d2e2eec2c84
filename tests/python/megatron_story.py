"""What the tests of Megatron on one rank share: a model's own ids, routes of them, and runs to compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import moetape as mt
from megatron_cpu import forward, gradients, recorded, same_gradients, step
from moetape.trainers.megatron import MicroBatchRoutes, Session

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


def routes_of(session: Session, ids: Any, **fields: Any) -> list[mt.Routes]:
    return [mt.Routes.from_ids(session.spec, one, **fields) for one in ids]


def whole(session: Session, ids: Any) -> MicroBatchRoutes:
    """A micro-batch of sequences that all routes cover."""
    return session.padded(routes_of(session, ids), [ids.shape[1]] * len(ids), ids.shape[1])


def foreign(ids: Any) -> Any:
    """Other experts for every row, by another shift in each layer."""
    return (ids + 1 + np.arange(ids.shape[2])[None, None, :, None]) % 8


def run(model: Any, batches: list[torch.Tensor], call: Any = step, order: str = "F0 B0") -> Any:
    """(losses, gradients) of the micro-batches under a schedule; `call` is the forward step."""
    data = iter(batches)
    losses: dict[str, torch.Tensor] = {}
    for word in order.split():
        if word[0] == "F":
            output, _ = call(data, model)
            losses[word[1:]] = output.mean()
        else:
            losses[word[1:]].backward()
    return [losses[key].detach() for key in sorted(losses)], gradients(model)


def same(left: Any, right: Any) -> bool:
    return all(map(torch.equal, left[0], right[0])) and same_gradients(left[1], right[1])


def rows(ids: Any, column: int) -> Any:
    """The ids as Megatron's router of a layer sees them: row s * batch + b."""
    return ids[:, :, column].swapaxes(0, 1).reshape(-1, ids.shape[-1])
