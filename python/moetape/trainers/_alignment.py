"""Whose token stands where in a batch [sequences, length]: the row ids that a replay plan is made of.

A row id is (sequence + 1) << 32 | position, 0 for padding. A transformers router sees row b * length + s.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt

RowIds = npt.NDArray[np.int64]
_GIVE_ONE = "give replay() an attention_mask= or row_ids="


@dataclass(frozen=True)
class ForwardInput:
    """What a model's forward was called with, as far as it says whose tokens stand where."""

    batch: int
    length: int
    device: torch.device
    input_ids: torch.Tensor | None
    attention_mask: Any
    past: int  # tokens that the KV cache holds already


def forward_input(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ForwardInput:
    bound = inspect.signature(forward).bind_partial(*args, **kwargs).arguments
    given = {**bound, **bound.get("kwargs", {})}
    input_ids = given.get("input_ids")
    tokens = given.get("inputs_embeds") if input_ids is None else input_ids
    if not isinstance(tokens, torch.Tensor) or tokens.dim() < 2:
        got = list(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise mt.InvalidArgumentError(
            "replay: the forward needs input_ids [batch, length] or inputs_embeds [batch, length, hidden], "
            f"got {got}"
        )
    cache = given.get("past_key_values")
    if cache is not None and not hasattr(cache, "get_seq_length"):
        raise mt.UnsupportedError(f"replay: past_key_values: expected a Cache, got {type(cache).__name__}")
    past = 0 if cache is None else int(cache.get_seq_length())
    batch, length = tokens.shape[:2]
    return ForwardInput(batch, length, tokens.device, input_ids, given.get("attention_mask"), past)


def row_ids_of_mask(call: ForwardInput, attention_mask: Any) -> tuple[RowIds, npt.NDArray[np.int64]]:
    """Make row ids [batch, length], and count the tokens of each sequence, those in the KV cache included.

    A token's position is the number of real tokens before it, so padding may stand left, right or between.
    """
    total = call.past + call.length
    if attention_mask is None:
        real = np.ones((call.batch, total), dtype=bool)
    else:
        real = _as_bool(attention_mask)
        if real.shape != (call.batch, total):
            raise mt.WrongShapeError(
                f"attention_mask: expected [{call.batch}, {total}] as the forward's tokens, "
                f"got {list(real.shape)}; {_GIVE_ONE}"
            )
    positions = np.cumsum(real, axis=1, dtype=np.int64) - 1
    sequences = np.arange(1, call.batch + 1, dtype=np.int64)[:, None] << 32
    row_ids = np.where(real, sequences | np.maximum(positions, 0), 0)
    return row_ids[:, call.past :], real.sum(axis=1, dtype=np.int64)


def _as_bool(attention_mask: Any) -> npt.NDArray[np.bool_]:
    if isinstance(attention_mask, torch.Tensor):
        attention_mask = attention_mask.detach().cpu()
    elif not isinstance(attention_mask, (np.ndarray, list, tuple)):
        raise mt.WrongTypeError(
            "attention_mask: expected an array [batch, length], "
            f"got {type(attention_mask).__name__}; {_GIVE_ONE}"
        )
    mask = np.asarray(attention_mask)
    if mask.ndim != 2 or mask.dtype.kind not in "biuf":
        raise mt.WrongShapeError(
            "attention_mask: expected numbers [batch, length], "
            f"got {mask.dtype} {list(mask.shape)}; {_GIVE_ONE}"
        )
    return mask.astype(bool)


def given_row_ids(row_ids: Any) -> RowIds:
    array = row_ids.detach().cpu().numpy() if isinstance(row_ids, torch.Tensor) else np.asarray(row_ids)
    if array.dtype != np.int64:
        raise mt.WrongTypeError(f"row_ids: expected int64, got {array.dtype}")
    return array


def check_row_ids_shape(call: ForwardInput, row_ids: RowIds) -> None:
    batch, length = call.batch, call.length
    if row_ids.shape not in ((batch, length), (batch * length,)):
        raise mt.WrongShapeError(
            f"row_ids: expected [{batch}, {length}] or [{batch * length}] as the forward's tokens, "
            f"got {list(row_ids.shape)}"
        )


def check_lengths(routes: Sequence[mt.Routes], num_tokens: npt.NDArray[np.int64], allow_short: bool) -> None:
    """Hold routes against their sequences: n tokens have n rows, or n - 1 where the last was never fed."""
    if len(routes) != len(num_tokens):
        raise mt.WrongShapeError(
            f"routes: expected one per sequence of the batch ({len(num_tokens)}), got {len(routes)}; "
            "packed batches need row_ids="
        )
    for sequence, (one, tokens) in enumerate(zip(routes, num_tokens.tolist(), strict=True)):
        if one.end > tokens:
            raise mt.WrongShapeError(
                f"routes[{sequence}]: expected at most {tokens} rows as the sequence's {tokens} tokens, "
                f"got longer ones [{one.start}, {one.end})"
            )
        if one.end < tokens - 1 and not allow_short:
            raise mt.WrongShapeError(
                f"routes[{sequence}]: expected an end at {tokens - 1} or {tokens} for the sequence's "
                f"{tokens} tokens, got {one.end}; allow_short=True routes the rest live"
            )
