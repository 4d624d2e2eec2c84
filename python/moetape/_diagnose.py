"""moetape.diagnose: why two records that should agree do not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from moetape._moetape import Diagnosis, Routes, RouteSpec, diagnose_records
from moetape.errors import InvalidArgumentError, WrongShapeError, WrongTypeError

Ids = npt.NDArray[np.integer]
Record = Routes | npt.ArrayLike | Iterable[Routes | npt.ArrayLike]


def diagnose(a: Record, b: Record, *, max_rows: int = 131_072) -> Diagnosis:
    """Says in which way record b is misplaced against record a (docs/diagnose.md).

    a, b: a Routes, an integer array [rows, layers, k], or an iterable of either: as many sequences on both
    sides, records of the same tokens. Layers and numbers of experts may differ, top_k may not. A row of an
    array with an id below 0 is missing. Arrays have the layers of the other side where that is a Routes of
    as many, else layers 0, 1, ….
    max_rows: how many rows are looked at, from the first sequence on; memory is some 16 bytes a list.
    Raises WrongShapeError for another number of sequences, SpecMismatchError for another top_k or sequences
    of one side that differ in their specs.
    """
    in_a, in_b = _sequences(a, "a"), _sequences(b, "b")
    return diagnose_records(_records(in_a, in_b, "a"), _records(in_b, in_a, "b"), max_rows)


def _sequences(record: Record, name: str) -> list[Routes | Ids]:
    if isinstance(record, Routes):
        return [record]
    if hasattr(record, "__array__") or not isinstance(record, Iterable):
        return [_ids(record, name)]
    return [one if isinstance(one, Routes) else _ids(one, f"{name}[{i}]") for i, one in enumerate(record)]


def _ids(array: object, name: str) -> Ids:
    ids = np.asarray(array)
    if not np.issubdtype(ids.dtype, np.integer):
        raise WrongTypeError(
            f"{name}: expected Routes or an array of integers, got {type(array).__name__} of {ids.dtype}"
        )
    if ids.ndim != 3 or 0 in ids.shape[1:]:
        raise WrongShapeError(f"{name}: expected [rows, layers, k], got {list(ids.shape)}")
    return ids


def _records(sequences: list[Routes | Ids], others: list[Routes | Ids], name: str) -> list[Routes]:
    arrays = [one for one in sequences if not isinstance(one, Routes)]
    if not arrays:
        return [one for one in sequences if isinstance(one, Routes)]
    if len(arrays) < len(sequences):
        raise InvalidArgumentError(f"{name}: expected Routes or arrays, got both")
    _, num_layers, top_k = arrays[0].shape
    spec = RouteSpec(
        layers=_layers(num_layers, others),
        top_k=top_k,
        num_experts=1 + max(max((int(ids.max()) for ids in arrays if ids.size), default=0), 0),
        distinct=False,
    )
    return [Routes.from_ids(spec, ids, valid=(ids >= 0).all(axis=(1, 2))) for ids in arrays]


def _layers(num_layers: int, others: list[Routes | Ids]) -> list[int]:
    for other in others:
        if isinstance(other, Routes) and len(other.spec.layers) == num_layers:
            return list(other.spec.layers)
    return list(range(num_layers))
