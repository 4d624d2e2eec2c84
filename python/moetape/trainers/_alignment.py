"""Whose token stands where in a batch [sequences, length]: the row ids that a replay plan is made of.

A row id is (sequence + 1) << 32 | position, 0 for padding. A transformers router sees row b * length + s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.models.forward import ForwardInputs, real_flags

RowIds = npt.NDArray[np.int64]


def row_ids_of_mask(call: ForwardInputs, attention_mask: Any) -> tuple[RowIds, npt.NDArray[np.int64]]:
    """Make row ids [batch, length], and count the tokens of each sequence, those in the KV cache included.

    A token's position is the number of real tokens before it, so padding may stand left, right or between.
    """
    (batch, length), num_cached = call.shape, _num_cached(call)
    shape = (batch, num_cached + length)
    real = np.ones(shape, np.bool_) if attention_mask is None else real_flags(attention_mask)
    if real.shape != shape:
        raise mt.WrongShapeError(
            f"attention_mask: expected {list(shape)} as the forward's tokens, got {list(real.shape)}; "
            "give replay() an attention_mask= or row_ids="
        )
    positions = np.cumsum(real, axis=1, dtype=np.int64) - 1
    sequences = np.arange(1, batch + 1, dtype=np.int64)[:, None] << 32
    row_ids = np.where(real, sequences | np.maximum(positions, 0), 0)
    return row_ids[:, num_cached:], real.sum(axis=1, dtype=np.int64)


def _num_cached(call: ForwardInputs) -> int:
    if call.cache is None:
        return 0
    if not hasattr(call.cache, "get_seq_length"):
        raise mt.UnsupportedError(
            f"replay: past_key_values: expected a Cache, got {type(call.cache).__name__}"
        )
    return int(call.cache.get_seq_length())


def given_row_ids(row_ids: Any) -> RowIds:
    array = row_ids if isinstance(row_ids, torch.Tensor) else np.asarray(row_ids)
    if array.dtype not in (np.int64, torch.int64):
        raise mt.WrongTypeError(f"row_ids: expected int64, got {array.dtype}")
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()


def check_row_ids_shape(call: ForwardInputs, row_ids: RowIds) -> None:
    batch, length = call.shape
    if row_ids.shape not in ((batch, length), (batch * length,)):
        raise mt.WrongShapeError(
            f"row_ids: expected [{batch}, {length}] or [{batch * length}] as the forward's tokens, "
            f"got {list(row_ids.shape)}"
        )


def wrong_lengths(
    routes: Sequence[mt.Routes], num_tokens: npt.NDArray[np.int64], allow_short: bool
) -> Iterator[tuple[int, mt.Error]]:
    """Hold routes against their sequences: n tokens have n rows, or n - 1 where the last was never fed.

    Yields (sequence, error). Raises for another number of routes than sequences.
    """
    if len(routes) != len(num_tokens):
        raise mt.WrongShapeError(
            f"routes: expected one per sequence of the batch ({len(num_tokens)}), got {len(routes)}; "
            "packed batches need row_ids="
        )
    for sequence, (one, tokens) in enumerate(zip(routes, num_tokens.tolist(), strict=True)):
        if one.end > tokens:
            yield (
                sequence,
                mt.WrongShapeError(
                    f"routes[{sequence}]: expected at most {tokens} rows as the sequence's {tokens} tokens, "
                    f"got longer ones [{one.start}, {one.end})"
                ),
            )
        elif one.end < tokens - 1 and not allow_short:
            yield (
                sequence,
                mt.WrongShapeError(
                    f"routes[{sequence}]: expected an end at {tokens - 1} or {tokens} for the sequence's "
                    f"{tokens} tokens, got {one.end}; allow_short=True routes the rest live"
                ),
            )
