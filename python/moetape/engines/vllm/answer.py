"""What an answer carries: vLLM's own array where all rows are there, a signed one where some are missing.

vLLM gives ids [rows, layers, k] of all layers, uint8 or uint16, and has no way to say that a row is missing.
An answer with missing rows is int16 (int32 above 256 experts): a missing row holds -r in all its columns,
where r is the index of the reason in moetape.REASONS. Joined parts keep that, since NumPy promotes uint8 and
int16 to int16, uint16 and int32 to int32.
"""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from moetape import (
    REASONS,
    CorruptDataError,
    InvalidArgumentError,
    Routes,
    RouteSpec,
    WrongShapeError,
    decode,
)

__all__ = ["answer_ids", "missing_answer", "missing_rows", "routes_of", "versions_of"]

Ids = npt.NDArray[np.integer[Any]]


def _signed(spec: RouteSpec) -> type[np.signedinteger[Any]]:
    return np.int16 if spec.id_bytes == 1 else np.int32


def answer_ids(routes: Routes) -> Ids:
    """The array [rows, num_layers, k]: zeros for layers without experts, -reason for missing rows."""
    spec, ids = routes.spec, routes.ids
    if spec.num_layers != spec.num_moe_layers:
        wide = np.zeros((len(ids), spec.num_layers, spec.top_k), ids.dtype)
        wide[:, list(spec.layers)] = ids
        ids = wide
    if not routes.complete:
        signed = ids.astype(_signed(spec))
        missing = ~routes.valid
        signed[missing] = -routes.reasons[missing].astype(signed.dtype)[:, None, None]
        return signed
    return ids


def missing_answer(spec: RouteSpec, num_rows: int, reason: str) -> Ids:
    """The array of rows that are all missing for one reason."""
    code = -REASONS.index(reason)
    return np.full((num_rows, spec.num_layers, spec.top_k), code, _signed(spec))


def missing_rows(routed_experts: Any) -> dict[str, int]:
    """How many rows of an answer (array, or base64 text) are missing, by reason; empty when all are there."""
    first = _array(routed_experts)[:, :1, 0].reshape(-1)
    return {REASONS[-code]: count for code, count in Counter(first[first < 0].tolist()).items()}


def routes_of(
    routed_experts: Any, spec: RouteSpec, start: int = 0, versions: Sequence[tuple[int, int, int]] = ()
) -> Routes:
    """The Routes of an answer: the array of a CompletionOutput, or the text of an HTTP choice.

    start: the request's routed_experts_prompt_start. versions: (start, end, version) in positions, ascending,
    as from versions_of; other rows carry none. Missing rows are missing in the Routes too; missing_rows has
    the engine's reasons. Raises CorruptDataError for what is no such answer, and what decode raises.
    """
    routes = _unversioned(_array(routed_experts), spec, start)
    parts, done = [], routes.start
    for first, end, version in versions:
        first, end = max(first, done), min(end, routes.end)
        if first < end:
            rows = slice(first - routes.start, end - routes.start)
            part = Routes.from_ids(spec, routes.ids[rows], first, routes.valid[rows], version)
            parts += [routes.slice(done, first), part]
            done = end
    whole, *others = [*parts, routes.slice(done, routes.end)]
    for part in others:
        whole = whole.extend(part)
    return whole


def versions_of(weight_versions: Any, num_prompt_tokens: int) -> list[tuple[int, int, int]]:
    """Which rows of an answer were computed by which weights, from a choice's `weight_versions`.

    vLLM tells the weights of each sampled token; these computed the row of the token before it. Rows of the
    prompt but its last may be older (the prefix cache), so they are in no span. vLLM's spans, or the dicts of
    an HTTP answer; "default", before any update, is no version. Raises InvalidArgumentError for another label
    that is no number.
    """
    versions = []
    for span in weight_versions or ():
        label, first, end = (
            (span["version"], span["start"], span["end"])
            if isinstance(span, dict)
            else (span.version, span.start, span.end)
        )
        if label == "default":
            continue
        if not (label.isascii() and label.isdecimal()):
            raise InvalidArgumentError(f"weight_versions: expected numbers, got {label!r}")
        versions.append((num_prompt_tokens - 1 + first, num_prompt_tokens - 1 + end, int(label)))
    return versions


def _unversioned(ids: Ids, spec: RouteSpec, start: int) -> Routes:
    missing = ids.min(axis=(1, 2), initial=0) < 0
    if not missing.any():
        return decode(ids, "vllm", spec=spec, start=start)
    codes = ids[missing]
    if (codes != codes[:, :1, :1]).any() or codes.min() <= -len(REASONS):
        raise CorruptDataError(
            "routed_experts: expected one reason in all columns of a missing row, got others"
        )
    if ids.shape[1:] != (spec.num_layers, spec.top_k):
        raise WrongShapeError(
            f"routed_experts: expected [rows, {spec.num_layers}, {spec.top_k}], got {list(ids.shape)}"
        )
    dense = np.delete(ids[~missing], list(spec.layers), axis=1)
    if dense.any():
        raise CorruptDataError(f"routed_experts: expected 0 in layers without experts, got {dense.max()}")
    return Routes.from_ids(spec, ids[:, list(spec.layers)], start, valid=~missing)


def _array(routed_experts: Any) -> Ids:
    if isinstance(routed_experts, str):
        try:
            routed_experts = _npy(base64.b64decode(routed_experts, validate=True))
        except (ValueError, EOFError) as error:
            raise CorruptDataError(f"routed_experts: expected base64 of a .npy file, got {error}") from error
    ids = np.asarray(routed_experts)
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        raise CorruptDataError(
            f"routed_experts: expected integers [rows, layers, k], got {ids.dtype} {list(ids.shape)}"
        )
    return ids


def _npy(data: bytes) -> Ids:
    """The array of a .npy file. Its header is held against its bytes before anything is allocated."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    expected, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if dtype.hasobject or expected != found:
        raise ValueError(f"{dtype} {list(shape)} in {found} bytes")
    file.seek(0)
    return cast(Ids, np.load(file))
