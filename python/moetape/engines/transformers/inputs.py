"""What one forward is fed: tokens, and which of them are real."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from moetape import UnsupportedError, WrongShapeError
from moetape.engines.transformers.rows import UNKNOWN_TOKEN, Flags, Tokens
from moetape.models.forward import ForwardInputs, real_flags

NO_MASK_KNOWN = object()


def tokens_of(inputs: ForwardInputs) -> Tokens:
    """Token ids [B, S]; UNKNOWN_TOKEN where embeddings are fed."""
    if inputs.is_embedded:
        return np.full(inputs.shape, UNKNOWN_TOKEN, np.int64)
    tokens: Tokens = inputs.tokens.cpu().numpy().astype(np.int64)
    return tokens


def real_of(inputs: ForwardInputs, num_before: int, prepared_mask: Any) -> Flags:
    """Which cells are real: [B, num_before + S] where a mask says so, else [B, S], all of them.

    prepared_mask: the 2-D mask that generate() made the forward's own mask of, where it is no longer 2-D.
    """
    batch, length = inputs.shape
    mask = inputs.attention_mask
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2):
        if prepared_mask is NO_MASK_KNOWN:
            raise UnsupportedError(
                "forward: expected a 2-D attention_mask, got one that hides which tokens are padding"
            )
        mask = prepared_mask
    if mask is None:
        real = np.ones((batch, length), np.bool_)
    else:
        num_columns = num_before + length
        if mask.shape[0] != batch or mask.shape[1] < num_columns:
            raise WrongShapeError(f"attention_mask: expected {[batch, num_columns]}, got {list(mask.shape)}")
        real = real_flags(mask[:, :num_columns])
    _refuse_packed(inputs, real[:, -length:])
    return real


def _refuse_packed(inputs: ForwardInputs, real: Flags) -> None:
    if inputs.packed_by is not None:
        raise UnsupportedError(f"forward: packed sequences ({inputs.packed_by}) cannot be recorded")
    positions = inputs.position_ids
    if positions is None or positions.dim() != 2 or positions.shape[1] < 2:
        return
    places = np.broadcast_to(positions.cpu().numpy(), real.shape)
    for sequence, flags in enumerate(real):
        if (np.diff(places[sequence, flags]) != 1).any():
            raise UnsupportedError(
                f"position_ids: expected consecutive positions in sequence {sequence}, got jumps; "
                "packed sequences cannot be recorded"
            )
