"""The rows of a micro-batch on one rank as slime and miles cut their tokens, and the routes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import moetape as mt
from moetape.replay import REPLAYED, Plan, RowIds
from moetape.trainers.megatron._routers import find_routers, spec_of_config, unwrapped


@dataclass(frozen=True)
class Cut:
    """How a micro-batch is padded and cut. max_length: of padded batches (qkv_format "bshd")."""

    multiple: int
    cp_size: int = 1
    cp_rank: int = 0
    tp_size: int = 1
    tp_rank: int = 0
    sequence_parallel: bool = False
    allgather: bool = False
    max_length: int | None = None

    @classmethod
    def here(cls, args: Any, max_length: int | None) -> Cut:
        """As the trainer's arguments and Megatron's groups say."""
        from megatron.core import parallel_state

        state: Any = parallel_state
        return cls(
            multiple=args.data_pad_size_multiplier,
            cp_size=state.get_context_parallel_world_size(),
            cp_rank=state.get_context_parallel_rank(),
            tp_size=state.get_tensor_model_parallel_world_size(),
            tp_rank=state.get_tensor_model_parallel_rank(),
            sequence_parallel=bool(args.sequence_parallel),
            allgather=bool(getattr(args, "allgather_cp", False)),
            max_length=max_length if getattr(args, "qkv_format", "thd") == "bshd" else None,
        )

    def rows(self, lengths: Sequence[int]) -> RowIds:
        """The rows that the rank's routers see."""
        rows = RowIds.from_lengths(list(lengths))
        if self.max_length is not None:
            rows = rows.pad_each_to(self.max_length).zigzag_each(self.cp_size, self.cp_rank).sequence_major()
        elif self.allgather:
            rows = rows.pad(self.cp_size * self.tp_size * self.multiple).split(self.cp_size, self.cp_rank)
        else:
            rows = rows.pad_each(2 * self.cp_size if self.cp_size > 1 else 1)
            rows = rows.zigzag_each(self.cp_size, self.cp_rank).pad(self.tp_size * self.multiple)
        return rows.split(self.tp_size, self.tp_rank) if self.sequence_parallel else rows


def sources_of(spec: mt.RouteSpec, routes: Sequence[Any], tokens: Sequence[Any]) -> list[Any]:
    """One source a sequence, of arrays [n - 1, all layers, k] of n tokens, or of routes; checked."""
    if len(routes) != len(tokens):
        raise mt.WrongShapeError(
            f"routes: expected those of {len(tokens)} sequences as tokens, got {len(routes)}"
        )
    return [
        one
        if isinstance(one, mt.Routes | mt.RowSource)
        else _routes(spec, f"routes[{at}]", one, len(ids) - 1)
        for at, (one, ids) in enumerate(zip(routes, tokens, strict=True))
    ]


def _routes(spec: mt.RouteSpec, name: str, given: Any, num_rows: int) -> mt.Routes:
    array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if array.shape != (expected := (num_rows, spec.num_layers, spec.top_k)):
        raise mt.WrongShapeError(
            f"{name}: expected [rows, layers, k] = {list(expected)}, one row less than tokens, "
            f"got {list(array.shape)}"
        )
    array = array[:, list(spec.layers)]
    valid = ~(array == -1).all(axis=(1, 2)) if array.dtype.kind == "i" else np.ones(len(array), bool)
    try:
        return mt.Routes.from_ids(spec, array, valid=valid)
    except mt.Error as error:
        raise type(error)(f"{name}: {error}; a row without a record is -1 in all ids") from None


def fill(
    chunks: Sequence[Any],
    micro_batches: Sequence[tuple[Sequence[Any], Sequence[Any], Cut]],
    replay_of: Any,
) -> None:
    """Give the routers of all chunks their ids of all micro-batches (routes, tokens, cut); all or nothing."""
    models = [unwrapped(chunk) for chunk in chunks]
    routers = [find_routers(model, {}) for model in models]
    spec = spec_of_config(_config(models[0]))
    replays = [[replay_of(router) for router in of_chunk] for of_chunk in routers]
    planned = []
    for at, (routes, tokens, cut) in enumerate(micro_batches):
        try:
            sources = sources_of(spec, routes, tokens)
            row_ids = cut.rows([len(ids) for ids in tokens]).ids
            for of_chunk in routers:
                plan = Plan.from_row_ids(row_ids, layers=[router.layer for router in of_chunk])
                planned.append(_with_missing(plan, sources, spec))
        except mt.Error as error:
            raise type(error)(f"micro-batch {at}: {error}") from None
    for at, ids in enumerate(planned):
        for replay, of_layer in zip(replays[at % len(routers)], ids, strict=True):
            replay.record(of_layer)


def _with_missing(plan: Plan, sources: list[Any], spec: mt.RouteSpec) -> torch.Tensor:
    ids, uses = plan.apply(sources, dtype="int16" if spec.num_experts <= 32768 else "int32")
    ids[:, uses != REPLAYED] = -1
    return torch.from_numpy(ids)


def _config(model: Any) -> Any:
    return model.config
