"""What a transformers model's forward is called with, as far as it says whose tokens stand where."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from moetape import InvalidArgumentError, WrongShapeError, WrongTypeError

CACHE_NAMES = ("past_key_values", "cache_params")
_PACKED_NAMES = ("cu_seq_lens_q", "cu_seq_lens_k")


@dataclass(frozen=True, eq=False)
class ForwardInputs:
    """Arguments of one forward over tokens [batch, length].

    tokens: input_ids [batch, length], or inputs_embeds [batch, length, hidden] where is_embedded.
    cache: the KV cache that the forward continues, None without.
    packed_by: the argument that packs several sequences in a row, None without.
    """

    tokens: torch.Tensor
    is_embedded: bool = False
    attention_mask: Any = None
    position_ids: Any = None
    cache: Any = None
    packed_by: str | None = None

    @classmethod
    def of(cls, forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> ForwardInputs:
        """Take them from the arguments of a call."""
        given = dict(kwargs)
        if args:
            given |= inspect.signature(forward).bind_partial(*args).arguments
        name = "inputs_embeds" if given.get("input_ids") is None else "input_ids"
        return cls(
            _checked(name, given.get(name)),
            name == "inputs_embeds",
            given.get("attention_mask"),
            given.get("position_ids"),
            next((given[one] for one in CACHE_NAMES if given.get(one) is not None), None),
            next((one for one in _PACKED_NAMES if given.get(one) is not None), None),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(batch, length)."""
        batch, length = self.tokens.shape[:2]
        return batch, length


def _checked(name: str, tokens: Any) -> torch.Tensor:
    if tokens is None:
        raise InvalidArgumentError("forward: expected input_ids or inputs_embeds, got neither")
    if not isinstance(tokens, torch.Tensor):
        raise WrongTypeError(f"{name}: expected a tensor, got {type(tokens).__name__}")
    shape = ["batch", "length"] if name == "input_ids" else ["batch", "length", "hidden"]
    if tokens.dim() != len(shape):
        raise WrongShapeError(f"{name}: expected [{', '.join(shape)}], got {list(tokens.shape)}")
    return tokens


def real_flags(attention_mask: Any) -> npt.NDArray[np.bool_]:
    """The flags [batch, length] of a mask of any numbers: what is not 0 is a real token."""
    if isinstance(attention_mask, torch.Tensor):
        attention_mask = (attention_mask.detach() != 0).cpu()
    elif not isinstance(attention_mask, np.ndarray | list | tuple):
        raise WrongTypeError(
            f"attention_mask: expected an array [batch, length], got {type(attention_mask).__name__}"
        )
    mask = np.asarray(attention_mask)
    if mask.ndim != 2 or mask.dtype.kind not in "biuf":
        raise WrongShapeError(
            f"attention_mask: expected numbers [batch, length], got {mask.dtype} {list(mask.shape)}"
        )
    return mask.astype(np.bool_)
