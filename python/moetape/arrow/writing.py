"""Routes to Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from moetape._moetape import REASONS, Routes
from moetape.arrow.schema import KEY, Empty, Header, pyarrow, schema_of
from moetape.errors import InvalidArgumentError, SpecMismatchError, WrongShapeError, WrongTypeError


def to_arrow(routes: Routes | Iterable[Routes], sequence_ids: Sequence[str] | None = None) -> Any:
    """The pyarrow.Table of some sequences of one spec; ids and tokens are not copied.

    sequence_ids: a name for each. Raises SpecMismatchError for routes of different specs,
    InvalidArgumentError for no routes at all, WrongShapeError for another number of names.
    """
    sequences = _checked_sequences(routes)
    names = _checked_names(sequence_ids, len(sequences))
    schema = schema_of(sequences[0].spec, named=names is not None).with_metadata(
        {KEY: _header_of(sequences, names).to_bytes()}
    )
    return pyarrow().Table.from_batches(list(_batches(schema, sequences, names)), schema)


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


def _batches(schema: Any, sequences: Sequence[Routes], names: Sequence[str] | None) -> Iterator[Any]:
    """One batch a sequence that has rows."""
    pa = pyarrow()
    reasons = pa.array(REASONS, pa.string())
    labels = None if names is None else pa.array(names, pa.string())
    for number, one in enumerate(sequences):
        if len(one) == 0:
            continue
        numbers = pa.array(np.full(len(one), number, np.int32))
        columns = {
            "sequence": numbers,
            "position": pa.array(np.arange(one.start, one.end, dtype=np.int64)),
            "token": pa.nulls(len(one), pa.int32()) if one.tokens is None else pa.array(one.tokens),
            "version": _versions(one),
            "missing": pa.DictionaryArray.from_arrays(
                pa.array(one.reasons.astype(np.int8), mask=one.valid), reasons
            ),
            "ids": _ids(one, schema.field("ids").type),
        }
        if labels is not None:
            columns["sequence_id"] = pa.DictionaryArray.from_arrays(numbers, labels)
        yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _versions(routes: Routes) -> Any:
    versions = np.zeros(len(routes), np.int32)
    unknown = np.ones(len(routes), np.bool_)
    for start, end, version in routes.versions:
        versions[start - routes.start : end - routes.start] = version
        unknown[start - routes.start : end - routes.start] = False
    return pyarrow().array(versions, mask=unknown)


def _ids(routes: Routes, kind: Any) -> Any:
    """A view of the ids under a bitmap of the rows that are valid."""
    pa = pyarrow()
    layers = pa.FixedSizeListArray.from_arrays(pa.array(routes.ids.reshape(-1)), routes.spec.top_k)
    bitmap = None if routes.complete else pa.py_buffer(np.packbits(routes.valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(routes), [bitmap], children=[layers])
