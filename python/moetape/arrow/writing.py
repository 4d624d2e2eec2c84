"""Routes to Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetape._moetape import REASONS, Routes, Tape
from moetape.arrow.schema import KEY, Empty, Header, pyarrow, schema_of
from moetape.errors import InvalidArgumentError, SpecMismatchError, WrongShapeError, WrongTypeError


def to_arrow(routes: Routes | Iterable[Routes], sequence_ids: Sequence[str] | None = None) -> Any:
    """The pyarrow.Table of some sequences of one spec, or of a tape; ids and tokens are not copied.

    sequence_ids: a name for each; default: those of a tape that has any. Raises SpecMismatchError for routes
    of different specs, InvalidArgumentError for none at all, WrongShapeError for another number of names.
    """
    sequences = _checked_sequences(routes)
    names = _checked_names(_names_of(routes) if sequence_ids is None else sequence_ids, len(sequences))
    schema = schema_of(sequences[0].spec, named=names is not None)
    columns = _columns(schema, sequences, names)
    return pyarrow().table(
        [columns[name] for name in schema.names],
        schema=schema.with_metadata({KEY: _header_of(sequences, names).to_bytes()}),
    )


def _checked_sequences(routes: Routes | Iterable[Routes]) -> list[Routes]:
    if isinstance(routes, Routes):
        return [routes]
    if not isinstance(routes, Iterable):
        raise WrongTypeError(f"routes: expected Routes, or some of them, got {type(routes).__name__}")
    sequences = list(routes)
    if not sequences:
        raise InvalidArgumentError(
            "routes: expected one sequence or more, whose spec the table has, got none"
        )
    for number, one in enumerate(sequences):
        if not isinstance(one, Routes):
            raise WrongTypeError(f"routes[{number}]: expected Routes, got {type(one).__name__}")
        if one.spec != sequences[0].spec:
            raise SpecMismatchError(f"routes[{number}]: expected {sequences[0].spec!r}, got {one.spec!r}")
    return sequences


def _names_of(routes: Routes | Iterable[Routes]) -> list[str] | None:
    names = [routes.entry(number).id for number in range(len(routes))] if isinstance(routes, Tape) else []
    return names if any(names) else None


def _checked_names(names: Sequence[str] | None, count: int) -> list[str] | None:
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else list(names)
    if len(listed) != count:
        raise WrongShapeError(f"sequence_ids: expected {count}, one per sequence, got {len(listed)}")
    for number, name in enumerate(listed):
        if not isinstance(name, str):
            raise WrongTypeError(f"sequence_ids[{number}]: expected text, got {name!r}")
    return listed


def _header_of(sequences: Sequence[Routes], names: Sequence[str] | None) -> Header:
    empty = [
        Empty(number, one.start, one.tokens is not None, None if names is None else names[number])
        for number, one in enumerate(sequences)
        if len(one) == 0
    ]
    return Header(sequences[0].spec, len(sequences), empty)


def _columns(schema: Any, sequences: Sequence[Routes], names: Sequence[str] | None) -> dict[str, Any]:
    """Columns by name; those that are views have one chunk a sequence."""
    pa = pyarrow()
    with_rows = [one for one in sequences if len(one)]
    reasons = _joined([one.reasons for one in with_rows], np.int8)
    numbers = pa.array(np.repeat(np.arange(len(sequences), dtype=np.int32), [len(one) for one in sequences]))
    tokens = [
        pa.nulls(len(one), pa.int32()) if one.tokens is None else pa.array(one.tokens) for one in with_rows
    ]
    kind = schema.field("ids").type
    columns = {
        "sequence": numbers,
        "position": pa.array(_joined([np.arange(one.start, one.end) for one in with_rows], np.int64)),
        "token": pa.chunked_array(tokens, pa.int32()),
        "version": _versions(with_rows, len(reasons)),
        "missing": pa.DictionaryArray.from_arrays(pa.array(reasons, mask=reasons == 0), pa.array(REASONS)),
        "ids": pa.chunked_array([_ids(one, kind) for one in with_rows], kind),
    }
    if names is not None:
        columns["sequence_id"] = pa.DictionaryArray.from_arrays(numbers, pa.array(names, pa.string()))
    return columns


def _joined(parts: Sequence[npt.NDArray[Any]], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="unsafe")


def _versions(sequences: Sequence[Routes], num_rows: int) -> Any:
    versions = np.zeros(num_rows, np.int32)
    unknown = np.ones(num_rows, np.bool_)
    first = 0  # row of the sequence
    for routes in sequences:
        for start, end, version in routes.versions:
            rows = slice(first + start - routes.start, first + end - routes.start)
            versions[rows] = version
            unknown[rows] = False
        first += len(routes)
    return pyarrow().array(versions, mask=unknown)


def _ids(routes: Routes, kind: Any) -> Any:
    """A view of the ids under a bitmap of the rows that are valid."""
    pa = pyarrow()
    layers = pa.FixedSizeListArray.from_arrays(pa.array(routes.ids.reshape(-1)), routes.spec.top_k)
    bitmap = None if routes.complete else pa.py_buffer(np.packbits(routes.valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(routes), [bitmap], children=[layers])
