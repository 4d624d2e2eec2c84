"""Arrow to routes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetape._moetape import REASONS, Routes, RouteSpec
from moetape.arrow.schema import Empty, Header, ids_type, pyarrow
from moetape.errors import CorruptDataError, Error, WrongShapeError, WrongTypeError

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def from_arrow(table: Any, spec: RouteSpec | None = None) -> list[Routes]:
    """The sequences of a table by their number: equal to those that to_arrow took. Copies and checks.

    The rows of a sequence stand together and their positions ascend by one. Sequences may be absent, as after
    a filter; those without rows come back with a whole table only. Columns but sequence, position and ids may
    be absent, and lists of any kind and integers of any width are taken, as other tools make them.

    spec: for tables that lost their metadata. Raises CorruptDataError, WrongTypeError and WrongShapeError
    naming the column, SpecMismatchError for a table of another spec, InvalidArgumentError for one of an
    unknown spec, and for ids that cannot be what Routes.from_ids does.
    """
    header = Header.of(_checked(table).schema.metadata, spec)
    rows = _Rows(table)
    found = {number: rows.routes(header.spec, number, first, end) for number, first, end in rows.sequences}
    for one in _empty(header, rows):
        found[one.sequence] = _without_rows(header.spec, one)
    return [found[number] for number in sorted(found)]


def sequence_ids(table: Any) -> list[str] | None:
    """The name of each sequence that from_arrow gives, or None for a table without names."""
    rows = _Rows(_checked(table))
    if "sequence_id" not in table.schema.names:
        return None
    column = table.column("sequence_id")
    found = {number: column[first].as_py() for number, first, _ in rows.sequences}
    if table.schema.metadata:
        found |= {
            one.sequence: one.sequence_id for one in _empty(Header.of(table.schema.metadata, None), rows)
        }
    return [found[number] for number in sorted(found)]


def _checked(table: Any) -> Any:
    if not isinstance(table, pyarrow().Table):
        raise WrongTypeError(f"table: expected a pyarrow.Table, got {type(table).__name__}")
    return table


def _empty(header: Header, rows: _Rows) -> list[Empty]:
    """The sequences without rows, if the table is whole."""
    numbers = {number for number, _, _ in rows.sequences} | {one.sequence for one in header.empty}
    return [*header.empty] if numbers == set(range(header.num_sequences)) else []


def _without_rows(spec: RouteSpec, one: Empty) -> Routes:
    nothing = np.empty((0, spec.num_moe_layers, spec.top_k), np.uint8)
    tokens = np.empty(0, np.int32) if one.has_tokens else None
    return Routes.from_ids(spec, nothing, start=one.start, tokens=tokens)


class _Rows:
    """The columns of a table, and where its sequences are: (number, first row, row behind the last)."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._positions = self._required("position")
        self._tokens = self._optional("token")
        self._versions = self._optional("version")
        self._reasons = self._reason_column()
        self.sequences = self._find_sequences(self._required("sequence"))

    def routes(self, spec: RouteSpec, number: int, first: int, end: int) -> Routes:
        try:
            return self._routes(spec, first, end)
        except Error as error:
            raise type(error)(f"sequence {number}: {error}") from error

    def _routes(self, spec: RouteSpec, first: int, end: int) -> Routes:
        positions = self._positions[first:end]
        steps = np.flatnonzero(np.diff(positions) != 1)
        if steps.size:
            before, after = positions[steps[0] : steps[0] + 2]
            raise CorruptDataError(f"position: expected {before + 1} behind {before}, got {after}")
        ids, valid = self._ids(spec, first, end)
        reasons = self._reasons_of(valid, first, end)
        start = int(positions[0])
        runs = _runs(*self._slice(self._versions, first, end), start)
        routes = Routes.__new__(Routes)  # as pickle does: it checks, and keeps reasons and several versions
        routes.__setstate__((spec, start, ids, reasons, runs, self._tokens_of(first, end)))
        return routes

    # ---- columns of numbers

    def _find(self, name: str) -> Any:
        """The column of a name, or None."""
        places = self._table.schema.get_all_field_indices(name)
        if len(places) > 1:
            raise CorruptDataError(f"{name}: expected one column, got {len(places)}")
        return self._table.column(places[0]) if places else None

    def _found(self, name: str) -> Any:
        column = self._find(name)
        if column is None:
            raise CorruptDataError(
                f"{name}: expected such a column, got {', '.join(self._table.schema.names)}"
            )
        return column

    def _required(self, name: str) -> Numbers:
        column = _cast(name, self._found(name), pyarrow().int64())
        if column.null_count:
            raise CorruptDataError(f"{name}: expected a number in each row, got {column.null_count} nulls")
        return np.asarray(column, np.int64)

    def _optional(self, name: str) -> tuple[Numbers, Flags]:
        """Values, and which are known."""
        column = self._find(name)
        if column is None:
            return np.zeros(self._table.num_rows, np.int64), np.zeros(self._table.num_rows, np.bool_)
        column = _cast(name, column, pyarrow().int64())
        return np.asarray(column.fill_null(0), np.int64), np.asarray(column.is_valid(), np.bool_)

    def _reason_column(self) -> npt.NDArray[np.uint8] | None:
        pa = pyarrow()
        column = self._find("missing")
        if column is None:
            return None
        names = _cast("missing", column, pa.string())
        indices = pa.compute.index_in(names, value_set=pa.array(REASONS, pa.string()))
        unknown = np.flatnonzero(np.asarray(pa.compute.and_(names.is_valid(), indices.is_null())))
        if unknown.size:
            raise CorruptDataError(
                f"missing: expected one of {REASONS}, got {names[int(unknown[0])].as_py()!r}"
            )
        return np.asarray(indices.fill_null(0), np.uint8)

    def _find_sequences(self, numbers: Numbers) -> list[tuple[int, int, int]]:
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        found = [(int(numbers[first]), first, end) for first, end in pairwise(bounds) if first < end]
        seen: set[int] = set()
        for number, first, _ in found:
            if number in seen:
                raise CorruptDataError(
                    f"sequence: expected the rows of {number} together, got more at row {first}"
                )
            seen.add(number)
        return found

    def _slice(self, column: tuple[Numbers, Flags], first: int, end: int) -> tuple[Numbers, Flags]:
        return column[0][first:end], column[1][first:end]

    def _tokens_of(self, first: int, end: int) -> Numbers | None:
        tokens, known = self._slice(self._tokens, first, end)
        if not known.any():
            return None
        if not known.all():
            raise CorruptDataError(
                f"token: expected one in each row or in none, got {np.count_nonzero(~known)} nulls"
            )
        return tokens

    def _reasons_of(self, valid: Flags, first: int, end: int) -> npt.NDArray[np.uint8]:
        if self._reasons is None:
            return np.where(valid, 0, REASONS.index("not_sent")).astype(np.uint8)
        reasons = self._reasons[first:end]
        wrong = np.flatnonzero((reasons == 0) != valid)
        if wrong.size:
            place = int(wrong[0])
            raise CorruptDataError(
                "missing: expected a reason where ids are null and only there, got "
                f"{REASONS[reasons[place]]!r} and {'ids' if valid[place] else 'null'} at position "
                f"{self._positions[first + place]}"
            )
        return reasons

    # ---- ids

    def _ids(self, spec: RouteSpec, first: int, end: int) -> tuple[npt.NDArray[Any], Flags]:
        """Ids [rows, layers, k], a view where the table has them as one piece, and which rows have any."""
        rows = self._cast_ids(spec, first, end)
        valid = np.asarray(rows.is_valid())
        layers = _items(rows, spec.num_moe_layers)
        leaf = _items(layers, spec.top_k)
        for level in (layers, leaf):
            absent = np.asarray(level.is_null()).reshape(len(rows), -1).any(axis=1) & valid
            if absent.any():
                position = self._positions[first + int(np.flatnonzero(absent)[0])]
                raise CorruptDataError(
                    f"ids: expected all of them or null for the row, got a null at position {position}"
                )
        ids = leaf.fill_null(0).to_numpy() if leaf.null_count else leaf.to_numpy()
        return ids.reshape(len(rows), spec.num_moe_layers, spec.top_k), valid

    def _cast_ids(self, spec: RouteSpec, first: int, end: int) -> Any:
        pa = pyarrow()
        column = self._found("ids").slice(first, end - first)
        kind = column.type
        item = getattr(getattr(kind, "value_type", None), "value_type", None)
        if item is None or not (pa.types.is_integer(item) or pa.types.is_floating(item)):
            raise WrongTypeError(f"ids: expected lists of lists of integers, got {kind}")
        rows = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        try:
            rows = rows.cast(ids_type(spec, item))
        except pa.ArrowException as error:
            raise WrongShapeError(
                f"ids: expected [{spec.num_moe_layers}][{spec.top_k}] in each row, got {kind}: {error}"
            ) from error
        # pandas makes floats of integers that stand beside nulls.
        return _cast("ids", rows, ids_type(spec, pa.int64())) if pa.types.is_floating(item) else rows


def _cast(name: str, column: Any, kind: Any) -> Any:
    try:
        return column.cast(kind)
    except pyarrow().ArrowException as error:
        raise WrongTypeError(f"{name}: expected {kind}, got {column.type}: {error}") from error


def _items(lists: Any, size: int) -> Any:
    """What stands in fixed-size lists, those of null lists included, without a copy."""
    return lists.values.slice(lists.offset * size, len(lists) * size)


def _runs(versions: Numbers, known: Flags, start: int) -> list[tuple[int, int, int]]:
    """Runs of rows with one version, in positions."""
    keys = np.where(known, versions, -1)
    bounds = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    return [(start + first, start + end, int(keys[first])) for first, end in pairwise(bounds) if known[first]]
