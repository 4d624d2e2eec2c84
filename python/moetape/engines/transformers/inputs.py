"""What one forward is fed: tokens, which of them are real, and the cache that it continues."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moetape import InvalidArgumentError, UnsupportedError, WrongShapeError
from moetape.engines.transformers.rows import UNKNOWN_TOKEN, Flags, Tokens

CACHE_NAMES = ("past_key_values", "cache_params")


@dataclass(frozen=True, eq=False)
class ForwardInputs:
    """Arguments of one forward; tokens [B, S] are UNKNOWN_TOKEN where embeddings were fed."""

    tokens: Tokens
    mask: Any
    cache: Any
    position_ids: Any

    @classmethod
    def of(cls, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> ForwardInputs:
        """Take them from the arguments of a call."""
        given = dict(kwargs)
        if args:
            given |= inspect.signature(forward).bind_partial(*args).arguments
        for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
            if given.get(name) is not None:
                raise UnsupportedError(f"forward: packed sequences ({name}) cannot be recorded")
        cache = next((given[name] for name in CACHE_NAMES if given.get(name) is not None), None)
        return cls(_tokens_of(given), given.get("attention_mask"), cache, given.get("position_ids"))

    def real(self, num_before: int, prepared_mask: Any) -> Flags:
        """Which cells are real: [B, num_before + S] where a mask says so, else [B, S], all of them.

        prepared_mask: the 2-D mask that generate() made the forward's own mask of, where it is no longer 2-D.
        """
        shape = (self.tokens.shape[0], num_before + self.tokens.shape[1])
        mask = self.mask
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2):
            if prepared_mask is NO_MASK_KNOWN:
                raise UnsupportedError(
                    "forward: expected a 2-D attention_mask, got one that hides which tokens are padding"
                )
            mask = prepared_mask
        if mask is None:
            real = np.ones(self.tokens.shape, np.bool_)
        else:
            if mask.shape[0] != shape[0] or mask.shape[1] < shape[1]:
                raise WrongShapeError(f"attention_mask: expected {list(shape)}, got {list(mask.shape)}")
            real = mask[:, : shape[1]].cpu().numpy() != 0
        self._refuse_packed(real[:, -self.tokens.shape[1] :])
        return real

    def _refuse_packed(self, real: Flags) -> None:
        positions = self.position_ids
        if positions is None or positions.dim() != 2 or positions.shape[1] < 2:
            return
        places = np.broadcast_to(positions.cpu().numpy(), real.shape)
        for sequence, flags in enumerate(real):
            if (np.diff(places[sequence, flags]) != 1).any():
                raise UnsupportedError(
                    f"position_ids: expected consecutive positions in sequence {sequence}, got jumps; "
                    "packed sequences cannot be recorded"
                )


NO_MASK_KNOWN = object()


def _tokens_of(given: dict[str, Any]) -> Tokens:
    ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
    if ids is not None:
        if ids.dim() != 2:
            raise WrongShapeError(f"input_ids: expected [batch, tokens], got {list(ids.shape)}")
        tokens: Tokens = ids.cpu().numpy().astype(np.int64)
        return tokens
    if embeds is not None:
        return np.full(embeds.shape[:2], UNKNOWN_TOKEN, np.int64)
    raise InvalidArgumentError("forward: expected input_ids or inputs_embeds, got neither")
