"""Arrow to routes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moetape._moetape import REASONS, Routes, RouteSpec
from moetape.arrow.columns import Flags, Ids, Numbers, found, numbers_of, optional_numbers_of, reasons_of
from moetape.arrow.schema import Empty, Header, pyarrow
from moetape.errors import CorruptDataError, Error, WrongTypeError


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
    runs = _sequences(table)
    rows = _Rows(table, header.spec)
    sequences = {run.number: rows.routes(run) for run in runs}
    for one in _empty(header, runs):
        sequences[one.sequence] = _without_rows(header.spec, one)
    return [sequences[number] for number in sorted(sequences)]


def sequence_ids(table: Any) -> list[str] | None:
    """The name of each sequence that from_arrow gives, or None for a table without names."""
    runs = _sequences(_checked(table))
    if "sequence_id" not in table.schema.names:
        return None
    firsts = found(table, "sequence_id").take(pyarrow().array([run.first for run in runs], "int64"))
    names = dict(zip((run.number for run in runs), firsts.to_pylist(), strict=True))
    if table.schema.metadata:
        empty = _empty(Header.of(table.schema.metadata, None), runs)
        names |= {one.sequence: one.sequence_id for one in empty}
    return [names[number] for number in sorted(names)]


def _checked(table: Any) -> Any:
    if not isinstance(table, pyarrow().Table):
        raise WrongTypeError(f"table: expected a pyarrow.Table, got {type(table).__name__}")
    return table


class _Run(NamedTuple):
    """Rows [first, end) of the table are those of a sequence."""

    number: int
    first: int
    end: int


def _sequences(table: Any) -> list[_Run]:
    numbers = numbers_of(table, "sequence")
    runs = [_Run(int(numbers[first]), first, end) for first, end in _equal_runs(numbers)]
    seen: set[int] = set()
    for run in runs:
        if run.number in seen:
            raise CorruptDataError(
                f"sequence: expected the rows of {run.number} together, got more at row {run.first}"
            )
        seen.add(run.number)
    return runs


def _empty(header: Header, runs: Sequence[_Run]) -> list[Empty]:
    """The sequences without rows, if the table is whole."""
    numbers = {run.number for run in runs} | {one.sequence for one in header.empty}
    is_whole = (
        len(numbers) == len(runs) + len(header.empty) == header.num_sequences
        and min(numbers, default=0) == 0
        and max(numbers, default=-1) == header.num_sequences - 1
    )
    return [*header.empty] if is_whole else []


def _without_rows(spec: RouteSpec, one: Empty) -> Routes:
    nothing = np.empty((0, spec.num_moe_layers, spec.top_k), np.uint8)
    tokens = np.empty(0, np.int32) if one.has_tokens else None
    return Routes.from_ids(spec, nothing, start=one.start, tokens=tokens)


class _Rows:
    """The columns that make Routes."""

    def __init__(self, table: Any, spec: RouteSpec) -> None:
        self._spec = spec
        self._positions = numbers_of(table, "position")
        self._tokens, self._has_token = optional_numbers_of(table, "token")
        self._versions, self._has_version = optional_numbers_of(table, "version")
        self._reasons = reasons_of(table)
        self._ids = Ids(table, spec)

    def routes(self, run: _Run) -> Routes:
        try:
            return self._routes(slice(run.first, run.end))
        except Error as error:
            raise type(error)(f"sequence {run.number}: {error}") from error

    def _routes(self, rows: slice) -> Routes:
        start = _start_of(self._positions[rows])
        ids, valid = self._ids.rows(rows.start, rows.stop)
        reasons = self._reasons_of(valid, rows)
        keys = np.where(self._has_version[rows], self._versions[rows], -1)
        versions = [
            (start + first, start + end, int(keys[first]))
            for first, end in _equal_runs(keys)
            if self._has_version[rows.start + first]
        ]
        routes = Routes.__new__(Routes)  # as pickle does: it checks, and keeps reasons and several versions
        routes.__setstate__((self._spec, start, ids, reasons, versions, self._tokens_of(rows)))
        return routes

    def _tokens_of(self, rows: slice) -> Numbers | None:
        known = self._has_token[rows]
        if not known.any():
            return None
        if not known.all():
            raise CorruptDataError(
                f"token: expected one in each row or in none, got {np.count_nonzero(~known)} nulls"
            )
        return self._tokens[rows]

    def _reasons_of(self, valid: Flags, rows: slice) -> npt.NDArray[np.uint8]:
        if self._reasons is None:
            return np.where(valid, 0, REASONS.index("not_sent")).astype(np.uint8)
        reasons = self._reasons[rows]
        wrong = np.flatnonzero((reasons == 0) != valid)
        if wrong.size:
            place = int(wrong[0])
            raise CorruptDataError(
                "missing: expected a reason where ids are null and only there, got "
                f"{REASONS[reasons[place]]!r} and {'ids' if valid[place] else 'null'} at position "
                f"{self._positions[rows.start + place]}"
            )
        return reasons


def _start_of(positions: Numbers) -> int:
    steps = np.flatnonzero(np.diff(positions) != 1)
    if steps.size:
        before, after = positions[steps[0] : steps[0] + 2]
        raise CorruptDataError(f"position: expected {before + 1} behind {before}, got {after}")
    return int(positions[0])


def _equal_runs(values: Numbers) -> list[tuple[int, int]]:
    """[first, end) of each run of equal values."""
    bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(first, end) for first, end in pairwise(bounds) if first < end]
