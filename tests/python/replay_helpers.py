"""What tests of replay share: records made by taps, foreign routes, and gradients to compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import moetape as mt
from moetape.models import find_routers, interceptor, remove_all, spec_of


@contextmanager
def received(model: Any) -> Iterator[dict[int, Any]]:
    """The ids that the experts of each layer receive in the block's last forward, {layer: [rows, k]}."""
    ids: dict[int, Any] = {}
    handles = [
        interceptor(router).add_tap(lambda layer, seen: ids.__setitem__(layer, seen.cpu().numpy().copy()))
        for router in find_routers(model)
    ]
    try:
        yield ids
    finally:
        remove_all(handles)


@contextmanager
def experts_input(model: Any, spec: mt.RouteSpec) -> Iterator[dict[int, list[Any]]]:
    """The ids [rows, k] with which experts are called, by layer, by hooks that know nothing of routers."""
    received: dict[int, list[Any]] = {}
    handles = []
    for name, module in model.named_modules():
        if not name.endswith("experts") or "shared" in name:
            continue
        layer = next(int(part) for part in name.split(".") if part.isdigit())
        if layer not in spec.layers:
            continue

        def hook(module: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
            tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
            ids = [one for one in tensors if one.dtype == torch.int64]
            found = ids[0] if ids else ids_of_scaled(tensors[0], spec.num_experts)
            received.setdefault(layer, []).append(found.reshape(-1, spec.top_k).cpu().numpy().copy())

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield received
    finally:
        for handle in handles:
            handle.remove()


def ids_of_scaled(hidden: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Llama 4 hands every token to every expert, times a score that is 0 where it was not chosen."""
    return (hidden.detach().reshape(num_experts, -1, hidden.shape[-1]) != 0).any(-1).T.nonzero()[:, 1]


def record(model: Any, batch: dict[str, Any]) -> list[mt.Routes]:
    """Routes of each sequence's tokens but the last, with their token ids, from one plain forward."""
    with torch.no_grad(), received(model) as ids:
        model(**batch)
    spec = spec_of(model)
    count, length = batch["input_ids"].shape
    stacked = np.stack([ids[layer] for layer in spec.layers], axis=1).reshape(count, length, -1, spec.top_k)
    mask = batch.get("attention_mask", torch.ones(count, length)).bool().numpy()
    tokens = batch["input_ids"].numpy().astype(np.int32)
    return [
        mt.Routes.from_ids(spec, stacked[at][mask[at]][:-1], tokens=tokens[at][mask[at]][:-1])
        for at in range(count)
    ]


def wrong_routes(routes: mt.Routes) -> mt.Routes:
    """Other experts for every row: each id moved on by one more than its layer's column, still distinct."""
    shift = 1 + np.arange(len(routes.spec.layers))[None, :, None]
    ids = (np.asarray(routes.ids).astype(np.int64) + shift) % routes.spec.num_experts
    return mt.Routes.from_ids(routes.spec, ids, start=routes.start)


def right_padded(sequences: list[list[int]], length: int | None = None) -> dict[str, torch.Tensor]:
    length = length or max(map(len, sequences))
    ids = torch.zeros(len(sequences), length, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def tokens_of(routes: mt.Routes) -> list[int]:
    return np.asarray(routes.tokens).tolist()


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """The gradients by parameter name; the model's own are cleared."""
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def same_gradients(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
