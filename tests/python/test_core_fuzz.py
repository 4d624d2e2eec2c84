"""Wrong use never crashes: whatever comes, a call works or raises a moetape.Error, and everything goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store, record

IDS = distinct_ids(4)
ROUTES = mt.Routes.from_ids(SPEC, IDS, tokens=range(4))
PLAN = mt.replay.Plan.from_row_ids(mt.replay.row_ids(0, range(4)))

INTEGERS = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), 2**64]),
)
ARRAYS = hnp.arrays(
    dtype=st.one_of(hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(), hnp.boolean_dtypes()),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
VIEWS = ARRAYS.map(lambda array: array[..., ::-1].T if array.ndim else array)
OBJECTS = st.sampled_from(
    [
        SPEC,
        mt.Store(SPEC, num_slots=2),
        ROUTES,
        PLAN,
        mt.layout.whole(),
        mt.layout.dp_concat([1, 3], rank=1),
        mt.layout.rows([0, 0]),
        mt.blocks([0, 1], 2, 3),
        mt.layout.IdMap([1, 0]),
        mt.Routes,
        np.int64(3),
        len,
    ]
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.lists(INTEGERS, max_size=6),
    st.lists(st.lists(INTEGERS, max_size=3), max_size=3),
    st.dictionaries(INTEGERS, st.one_of(st.text(max_size=3), INTEGERS), max_size=2),
    ARRAYS,
    VIEWS,
    OBJECTS,
    st.lists(OBJECTS, max_size=3),
)


def survives(call: Callable[..., Any], arguments: list[Any]) -> None:
    """Calls; only moetape's own errors may come out."""
    with contextlib.suppress(mt.Error):
        call(*arguments)


CALLS: dict[str, Callable[[], tuple[Callable[..., Any], int]]] = {
    "RouteSpec": lambda: (lambda *a: mt.RouteSpec(*a[:3], shared_columns=a[3], excluded=a[4]), 5),
    "column_of": lambda: (SPEC.column_of, 1),
    "with_layers": lambda: (SPEC.with_layers, 1),
    "from_ids": lambda: (mt.Routes.from_ids, 6),
    "from_ids of the spec": lambda: (lambda *a: mt.Routes.from_ids(SPEC, *a), 5),
    "slice": lambda: (ROUTES.slice, 2),
    "with_tokens": lambda: (ROUTES.with_tokens, 1),
    "extend": lambda: (ROUTES.extend, 2),
    "without": lambda: (ROUTES.without, 1),
    "routes state": lambda: (lambda *a: mt.Routes.__new__(mt.Routes).__setstate__(a), 6),
    "merge_layers": lambda: (mt.merge_layers, 1),
    "merge_rows": lambda: (mt.merge_rows, 1),
    "stitch": lambda: (mt.stitch, 2),
    "required_bytes": lambda: (lambda slots: mt.Store.required_bytes(SPEC, slots), 1),
    "read": lambda: (new_store()[0].read, 4),
    "rows": lambda: (new_store()[0].rows, 3),
    "invalidate": lambda: (new_store()[0].invalidate, 2),
    "reset": lambda: (new_store()[0].reset, 1),
    "move": lambda: (lambda source, target, step: new_store()[0].move(source, target, step, timeout=0.0), 3),
    "write": lambda: (lambda *a: new_store()[0].write(a[0], a[1], step=a[2], version=a[3], timeout=0.0), 4),
    "write routes": lambda: (
        lambda *a: new_store()[0].write(a[0], ROUTES, step=a[1], version=a[2], timeout=0.0),
        3,
    ),
    "Recorder": lambda: (lambda *a: mt.Recorder(new_store()[0], 4, *a), 3),
    "begin": lambda: (new_store()[1].begin, 1),
    "capture": lambda: (new_store()[1].capture, 4),
    "capture ids": lambda: (lambda *a: new_store()[1].capture(1, *a), 3),
    "capture_all": lambda: (new_store()[1].capture_all, 3),
    "capture_all ids": lambda: (lambda ids: new_store()[1].capture_all(ids, order="tlk"), 1),
    "commit": lambda: (new_store()[1].commit, 5),
    "wait": lambda: (record(new_store()[1], range(4), IDS).wait, 1),
    "blocks": lambda: (mt.blocks, 3),
    "encode": lambda: (mt.encode, 3),
    "decode": lambda: (lambda *a: mt.decode(a[0], "vllm", spec=SPEC, start=a[1], rows=a[2]), 3),
    "decode anything": lambda: (lambda *a: mt.decode(a[0], a[1], spec=a[2]), 3),
    "from_row_ids": lambda: (mt.replay.Plan.from_row_ids, 2),
    "apply": lambda: (PLAN.apply, 3),
    "apply routes": lambda: (lambda *a: PLAN.apply([ROUTES], *a), 2),
    "verify": lambda: (PLAN.verify, 2),
    "dp_concat": lambda: (lambda *a: mt.layout.dp_concat(*a[:2]).place(*a[2:]), 4),
    "dp_padded": lambda: (lambda *a: mt.layout.dp_padded(*a[:3]).place(*a[3:]), 5),
    "dp_shards": lambda: (lambda *a: mt.layout.dp_shards(*a[:3]).place(*a[3:]), 5),
    "graph_padded": lambda: (lambda *a: mt.layout.graph_padded(*a[:2]).place(*a[2:]), 4),
    "tp_shard": lambda: (lambda *a: mt.layout.tp_shard(*a[:3]).place(*a[3:]), 5),
    "tp_split": lambda: (lambda *a: mt.layout.tp_split(*a[:3]).place(*a[3:]), 5),
    "layout rows": lambda: (lambda *a: mt.layout.rows(a[0]).place(*a[1:]), 3),
    "infer": lambda: (mt.layout.infer, 6),
    "IdMap": lambda: (lambda *a: mt.layout.IdMap(a[0])(a[1]), 2),
    "interleaved_shared": lambda: (mt.layout.IdMap.interleaved_shared, 3),
}


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_junk_raises_errors_of_moetape(name: str, data: st.DataObject) -> None:
    call, num_arguments = CALLS[name]()
    survives(call, [data.draw(JUNK) for _ in range(num_arguments)])


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_wrong_numbers_raise_errors_of_moetape(name: str, data: st.DataObject) -> None:
    call, num_arguments = CALLS[name]()
    numbers = st.one_of(INTEGERS, st.lists(INTEGERS, max_size=5), hnp.arrays(np.int64, st.integers(0, 6)))
    survives(call, [data.draw(numbers) for _ in range(num_arguments)])


@settings(max_examples=25, deadline=None)
@given(
    junk=st.lists(st.tuples(st.sampled_from(["begin", "capture", "commit", "read"]), JUNK, JUNK), max_size=6)
)
def test_store_and_recorder_go_on_after_wrong_use(junk: list[tuple[str, Any, Any]]) -> None:
    store, rec = new_store()
    for name, first, second in junk:
        target: Any = store if name == "read" else rec
        survives(getattr(target, name), [first] if name == "begin" else [first, second])
    ids = distinct_ids(6)
    rec.begin()
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, ids[:, column])
    rec.commit(range(6))
    assert np.array_equal(store.read(range(6)).ids, ids)


@pytest.mark.filterwarnings("ignore:nanobind")
@pytest.mark.parametrize("kind", [mt.RouteSpec, mt.Routes, mt.Store, mt.Recorder, mt.replay.Plan, mt.Ticket])
def test_objects_that_were_never_made_are_refused(kind: Any) -> None:
    empty = kind.__new__(kind)
    for call in (
        lambda: mt.Store(empty, num_slots=4),
        lambda: mt.Recorder(empty, max_rows=4),
        lambda: mt.encode(empty, "sglang"),
        lambda: empty.spec,
        lambda: empty.layers,
        lambda: repr(empty) and empty.report,
    ):
        with pytest.raises((mt.WrongTypeError, TypeError, AttributeError)):
            call()
