"""The columns of a table that may come from anywhere, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetape._moetape import REASONS, RouteSpec
from moetape.arrow.schema import ids_type, pyarrow
from moetape.errors import CorruptDataError, WrongShapeError, WrongTypeError

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def numbers_of(table: Any, name: str) -> Numbers:
    """A column that must be there, with a number in each row."""
    column = _cast(name, found(table, name), pyarrow().int64())
    if column.null_count:
        raise CorruptDataError(f"{name}: expected a number in each row, got {column.null_count} nulls")
    return np.asarray(column, np.int64)


def optional_numbers_of(table: Any, name: str) -> tuple[Numbers, Flags]:
    """The values of a column that may be absent, and which rows have one."""
    column = _find(table, name)
    if column is None:
        return np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.bool_)
    column = _cast(name, column, pyarrow().int64())
    return np.asarray(column.fill_null(0), np.int64), np.asarray(column.is_valid(), np.bool_)


def reasons_of(table: Any) -> npt.NDArray[np.uint8] | None:
    """The column `missing` as indices into REASONS, or None where it is absent."""
    pa = pyarrow()
    column = _find(table, "missing")
    if column is None:
        return None
    names = _cast("missing", column, pa.string())
    indices = pa.compute.index_in(names, value_set=pa.array(REASONS, pa.string()))
    unknown = np.flatnonzero(np.asarray(pa.compute.and_(names.is_valid(), indices.is_null())))
    if unknown.size:
        raise CorruptDataError(f"missing: expected one of {REASONS}, got {names[int(unknown[0])].as_py()!r}")
    return np.asarray(indices.fill_null(0), np.uint8)


def found(table: Any, name: str) -> Any:
    """A column that must be there."""
    column = _find(table, name)
    if column is None:
        raise CorruptDataError(f"{name}: expected such a column, got {', '.join(table.schema.names)}")
    return column


class Ids:
    """The column `ids`, lists of any kind, as fixed-size ones: a view where it has such already."""

    def __init__(self, table: Any, spec: RouteSpec) -> None:
        column = _fixed_size(found(table, "ids"), spec)
        self._spec = spec
        self._chunks = column.chunks
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks], dtype=np.int64)

    def rows(self, first: int, end: int) -> tuple[npt.NDArray[np.integer], Flags]:
        """Ids [rows, layers, k], a view where they lie in one chunk, and which rows have any.

        Raises CorruptDataError naming the first row that has some of its ids.
        """
        lists = self._lists(first, end)
        valid = np.asarray(lists.is_valid())
        layers = _items(lists, self._spec.num_moe_layers)
        leaf = _items(layers, self._spec.top_k)
        for level in (layers, leaf):
            if level.null_count:
                partly = np.asarray(level.is_null()).reshape(len(lists), -1).any(axis=1) & valid
                if partly.any():
                    raise CorruptDataError(
                        "ids: expected all of them or null for the row, got a null within row "
                        f"{first + int(np.flatnonzero(partly)[0])}"
                    )
        ids = leaf.fill_null(0).to_numpy() if leaf.null_count else leaf.to_numpy()
        return ids.reshape(len(lists), self._spec.num_moe_layers, self._spec.top_k), valid

    def _lists(self, first: int, end: int) -> Any:
        number = int(np.searchsorted(self._ends, first, side="right"))
        pieces = []
        while first < end:
            chunk, chunk_end = self._chunks[number], int(self._ends[number])
            last = min(end, chunk_end)
            pieces.append(chunk.slice(first - (chunk_end - len(chunk)), last - first))
            first, number = last, number + 1
        return pieces[0] if len(pieces) == 1 else pyarrow().concat_arrays(pieces)


def _find(table: Any, name: str) -> Any:
    places = table.schema.get_all_field_indices(name)
    if len(places) > 1:
        raise CorruptDataError(f"{name}: expected one column, got {len(places)}")
    return table.column(places[0]) if places else None


def _cast(name: str, column: Any, kind: Any) -> Any:
    try:
        return column.cast(kind)
    except pyarrow().ArrowException as error:
        raise WrongTypeError(f"{name}: expected {kind}, got {column.type}: {error}") from error


def _fixed_size(column: Any, spec: RouteSpec) -> Any:
    pa, kind = pyarrow(), column.type
    item = getattr(getattr(kind, "value_type", None), "value_type", None)
    if item is None or not (pa.types.is_integer(item) or pa.types.is_floating(item)):
        raise WrongTypeError(f"ids: expected lists of lists of integers, got {kind}")
    try:
        column = column.cast(ids_type(spec, item))
    except pa.ArrowException as error:
        raise WrongShapeError(
            f"ids: expected [{spec.num_moe_layers}][{spec.top_k}] in each row, got {kind}: {error}"
        ) from error
    # pandas makes floats of integers that stand beside nulls.
    return _cast("ids", column, ids_type(spec, pa.int64())) if pa.types.is_floating(item) else column


def _items(lists: Any, size: int) -> Any:
    """What stands in fixed-size lists, those of null lists included, without a copy."""
    return lists.values.slice(lists.offset * size, len(lists) * size)
