"""For clients: the ids in an answer of SGLang."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from moetape import MissingRowsError, UnsupportedError


def extract_routed_experts_from_meta_info(data: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """All ids of an answer, int32 and one-dimensional, as SGLang's function of this name; -1 = missing.

    data: an answer of /generate. Raises MissingRowsError, with the reason where the answer gives one, if it
    has no routes, and UnsupportedError for a tape, which moetape.decode reads.
    """
    meta_info = data["meta_info"]
    text = meta_info.get("routed_experts")
    if text is None:
        reason = meta_info.get("routed_experts_error", "none was asked for, or a hop lost it")
        raise MissingRowsError(f"answer: expected routed_experts, got none: {reason}")
    dtype = meta_info.get("routed_experts_dtype", "int32")
    if dtype not in ("int32", "uint8", "uint16"):
        raise UnsupportedError(f"routed_experts_dtype: expected int32, uint8 or uint16, got {dtype}")
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).astype(np.int32, copy=False)
