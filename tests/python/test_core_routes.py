"""Routes as Python sees them: from outside, operations, pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids

IDS = distinct_ids(6)


def make(start: int = 0, num_rows: int = 6, **more: Any) -> mt.Routes:
    """Rows [start, start + num_rows) of one endless run."""
    ids = distinct_ids(20, seed=7)[start : start + num_rows]
    return mt.Routes.from_ids(SPEC, ids, start=start, **more)


def test_from_ids_gives_what_came() -> None:
    routes = mt.Routes.from_ids(SPEC, IDS, start=3, version=4, tokens=range(10, 16))
    assert np.array_equal(routes.ids, IDS)
    assert routes.ids.dtype == np.uint8
    assert (routes.start, routes.end, len(routes), routes.spec) == (3, 9, 6, SPEC)
    assert routes.versions == [(3, 9, 4)]
    assert routes.tokens is not None
    assert routes.tokens.dtype == np.int32
    assert routes.tokens.tolist() == list(range(10, 16))
    assert routes.complete
    assert routes.missing == {}
    assert routes.valid.dtype == bool
    assert routes.valid.all()


@pytest.mark.parametrize(
    "valid",
    [
        [True, False, True, True, False, True],
        np.array([1, 0, 1, 1, 0, 1]),
        np.array([1, 0, 2, 1, 0, 9], np.int8),
    ],
)
def test_rows_that_are_not_valid_are_missing_and_not_looked_at(valid: Any) -> None:
    # case D04
    ids = IDS.copy()
    ids[[1, 4]] = 255
    routes = mt.Routes.from_ids(SPEC, ids, valid=valid, version=1)
    assert routes.missing == {"not_sent": 2}
    assert routes.valid.tolist() == [True, False, True, True, False, True]
    assert not routes.ids[[1, 4]].any()
    assert routes.versions == [(0, 1, 1), (2, 4, 1), (5, 6, 1)]


def test_strided_ids_are_taken() -> None:
    assert np.array_equal(mt.Routes.from_ids(SPEC, np.asfortranarray(IDS)).ids, IDS)
    assert np.array_equal(mt.Routes.from_ids(SPEC, IDS[::-2]).ids, IDS[::-2])


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        (
            dict(ids=np.zeros((6, 2, 2), int)),
            mt.WrongShapeError,
            r"ids: expected \[rows, 3, 2\].*\[6, 2, 2\]",
        ),
        (dict(ids=IDS[0]), mt.WrongShapeError, r"ids: expected \[rows, 3, 2\]"),
        (dict(ids=np.full((1, 3, 2), 8)), mt.OutOfRangeError, "8"),  # case D07
        (dict(ids=np.full((1, 3, 2), -1)), mt.OutOfRangeError, "-1"),
        (dict(ids=np.zeros((1, 3, 2), int)), mt.InvalidArgumentError, "0"),  # case B12
        (dict(ids=IDS.astype(float)), mt.WrongTypeError, "ids"),
        (dict(ids=IDS, start=-1), mt.Error, "start"),
        (dict(ids=IDS, start=2**63 - 1), mt.Error, str(2**63 - 1)),
        (dict(ids=IDS, valid=[True]), mt.WrongShapeError, "valid: expected 6, one per row, got 1"),
        (dict(ids=IDS, valid=[0.5] * 6), mt.WrongTypeError, "valid"),
        (dict(ids=IDS, valid=[[True]] * 6), mt.WrongShapeError, "valid"),
        (dict(ids=IDS, valid=[[True], [True, False]]), mt.WrongTypeError, "valid"),
        (dict(ids=IDS, tokens=[1]), mt.WrongShapeError, "tokens"),
        (dict(ids=IDS, tokens=["a"] * 6), mt.WrongTypeError, "tokens"),
        (dict(ids=IDS, version=-1), mt.OutOfRangeError, "version"),
        (dict(ids=IDS, version=0xFFFFFF), mt.OutOfRangeError, "version"),
        (dict(ids=IDS, version="7"), mt.WrongTypeError, "version"),
        (dict(ids=IDS, spec=None), mt.WrongTypeError, "spec: expected RouteSpec"),
    ],
)
def test_wrong_ids_are_refused_by_name(arguments: dict[str, Any], error: type[mt.Error], names: str) -> None:
    with pytest.raises(error, match=names):
        mt.Routes.from_ids(**{"spec": SPEC, **arguments})


def test_empty_routes_are_routes() -> None:
    # case J04
    empty = mt.Routes.from_ids(SPEC, np.zeros((0, 3, 2), int), start=5)
    assert (len(empty), empty.start, empty.end) == (0, 5, 5)
    assert empty.ids.shape == (0, 3, 2)
    assert empty.complete
    assert empty.missing == {}
    assert make(0, 5).extend(empty) == make(0, 5)


def test_slices_go_by_position() -> None:
    # case C20
    routes = make(2, 8, version=1, tokens=range(8))
    part = routes.slice(4, 7)
    assert (part.start, part.end) == (4, 7)
    assert np.array_equal(part.ids, routes.ids[2:5])
    assert part.tokens is not None
    assert part.tokens.tolist() == [2, 3, 4]
    assert part.versions == [(4, 7, 1)]
    assert len(routes.slice(10, 10)) == 0
    for start, end in ((1, 4), (4, 11), (7, 4), (-1, 2)):
        with pytest.raises(mt.OutOfRangeError):
            routes.slice(start, end)


def test_with_tokens() -> None:
    routes = make().with_tokens(range(6))
    assert routes.tokens is not None
    assert routes.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(mt.WrongShapeError):
        make().with_tokens([1])
    with pytest.raises(mt.WrongTypeError, match="tokens"):
        make().with_tokens(None)  # type: ignore[arg-type]


def test_turns_are_joined_by_position() -> None:
    # case C08, C15
    joined = make(0, 6).extend(make(4, 6))
    assert joined == make(0, 10)
    with_gap = make(0, 3).extend(make(5, 2))
    assert with_gap.missing == {"gap": 2}
    assert (with_gap.start, with_gap.end) == (0, 7)


def test_overlaps_are_settled_as_asked() -> None:
    # case B11
    first = make(0, 4)
    other = mt.Routes.from_ids(SPEC, distinct_ids(4, seed=99), start=2)
    with pytest.raises(mt.ConflictError, match=r"2|3"):
        first.extend(other)
    assert np.array_equal(first.extend(other, on_overlap="keep_first").ids[:4], first.ids)
    assert np.array_equal(first.extend(other, on_overlap="keep_last").ids[2:], other.ids)
    with pytest.raises(mt.InvalidArgumentError, match="on_overlap: expected must_agree"):
        first.extend(other, on_overlap="newest")
    with pytest.raises(mt.WrongTypeError, match="other: expected Routes, got NoneType"):
        first.extend(None)  # type: ignore[arg-type]
    elsewhere = mt.Routes.from_ids(mt.RouteSpec([0], 1, 4), [[[1]]])
    with pytest.raises(mt.SpecMismatchError):
        first.extend(elsewhere)


def test_rows_of_older_versions_can_be_left_out() -> None:
    # case B05
    routes = make(0, 3, version=1).extend(make(3, 3, version=2)).extend(make(6, 2))
    assert routes.without(version_below=2).missing == {"outdated": 3}
    assert routes.without(version_below=0) == routes
    newest = make(0, 2, version=0xFFFFFE)
    assert newest.without(version_below=0xFFFFFE) == newest
    assert newest.without(version_below=0xFFFFFF).missing == {"outdated": 2}
    with pytest.raises(mt.OutOfRangeError):
        routes.without(version_below=-1)


def test_layers_of_stages_are_merged() -> None:
    # case G10
    whole = make()
    stages = [
        mt.Routes.from_ids(SPEC.with_layers(layers), whole.ids[:, columns])
        for layers, columns in (([1, 4], [0, 2]), ([2], [1]))
    ]
    merged = mt.merge_layers(stages)
    assert merged.spec.layers == SPEC.layers
    assert np.array_equal(merged.ids, whole.ids)
    with pytest.raises(mt.Error):
        mt.merge_layers([stages[0], stages[0]])
    with pytest.raises(mt.Error):
        mt.merge_layers([])


def test_shares_of_rows_are_merged() -> None:
    # case A09
    assert mt.merge_rows([make(0, 3), make(3, 2), make(5, 1)]) == make(0, 6)
    assert mt.merge_rows(iter([make(0, 3)])) == make(0, 3)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (None, "parts: expected a list of Routes, got NoneType"),
        ([None], r"parts\[0\]: expected Routes, got NoneType"),
        (["x"], r"parts\[0\]"),
        (make(), "parts: expected a list of Routes, got Routes"),
    ],
)
def test_wrong_parts_are_refused_by_name(parts: Any, names: str) -> None:
    for merge in (mt.merge_layers, mt.merge_rows):
        with pytest.raises(mt.WrongTypeError, match=names):
            merge(parts)


def test_turns_of_a_conversation_are_stitched() -> None:
    tokens = list(range(100, 110))
    turn1 = make(0, 6, version=1).with_tokens(tokens[:6])
    turn2 = make(0, 9, version=2).with_tokens(tokens[:9])
    stitched = mt.stitch(tokens, [(turn1, 4), (turn2, 8)])
    assert (stitched.start, stitched.end) == (0, 10)
    assert np.array_equal(stitched.ids[:9], make(0, 9).ids)
    assert stitched.missing == {"gap": 1}
    assert dict.fromkeys(version for _, _, version in stitched.versions).keys() == {1, 2}
    with pytest.raises(mt.InvalidArgumentError, match="token"):
        mt.stitch(tokens, [(make(0, 6), 4)])
    for captures in ([turn1], [(turn1,)], [(turn1, "4")], [(None, 4)], None):
        with pytest.raises(mt.WrongTypeError, match="captures"):
            mt.stitch(tokens, captures)  # type: ignore[arg-type]


def test_equality_looks_at_everything_but_missing_bytes() -> None:
    routes = make(0, 6, version=1, tokens=range(6))
    assert routes == make(0, 6, version=1, tokens=range(6))
    assert routes != make(0, 6, version=2, tokens=range(6))
    assert routes != make(0, 6, version=1)
    assert routes != make(1, 6, version=1, tokens=range(6))
    assert routes != "routes"
    with pytest.raises(TypeError, match="unhashable"):
        hash(routes)


def test_repr_tells_the_span_and_what_is_missing() -> None:
    routes = make(2, 4, valid=[True, True, False, True], version=9)
    assert repr(routes) == (
        "Routes([2, 6), 3 layers x 2, missing={'not_sent': 1}, versions=[(2, 4, 9), (5, 6, 9)])"
    )
    assert repr(make(0, 1, tokens=[1])).endswith("with tokens)")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_goes_by_value(protocol: int) -> None:
    parts = [
        make(0, 3, version=1, tokens=[1, 2, 3]),
        make(3, 4, valid=[True, False, True, True], version=2, tokens=[4, 5, 6, 7]),
    ]
    routes = parts[0].extend(parts[1])
    for value in (routes, routes.slice(2, 6), make(), make(4, 0)):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert again == value
        assert again.missing == value.missing
        assert again.versions == value.versions
    small = pickle.dumps(make(0, 20).slice(3, 4), protocol)
    assert len(small) < len(pickle.dumps(make(0, 20), protocol))


def test_gaps_survive_pickle() -> None:
    routes = make(0, 2).extend(make(4, 2))
    again = pickle.loads(pickle.dumps(routes))
    assert again.missing == {"gap": 2}
    assert copy.deepcopy(routes) == routes


STATE = make(2, 3, version=5).__getstate__()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, "spec"),
        (1, -3),
        (2, np.zeros((3, 3, 2), np.uint8)),
        (2, np.zeros((2, 3, 2), np.uint8)),
        (3, np.array([0, 0, 99], np.uint8)),
        (3, np.array([0, 0, 0], np.int64)),
        (3, np.array([0, 0], np.uint8)),
        (3, np.array([0, 1, 0], np.uint8)),
        (4, [(2, 9, 5)]),
        (4, [(0, 3, 5)]),
        (4, [(2, 2, 5)]),
        (4, [(2, 5, 2**24)]),
        (4, [(3, 5, 1), (2, 3, 1)]),
        (4, [(2, 5)]),
        (4, 7),
        (5, [1, 2]),
        (5, "abc"),
    ],
)
def test_wrong_states_are_refused(field: int, value: Any) -> None:
    state = list(STATE)
    state[field] = value
    with pytest.raises(mt.Error):
        mt.Routes.__new__(mt.Routes).__setstate__(tuple(state))
    with pytest.raises(mt.CorruptDataError):
        mt.Routes.__new__(mt.Routes).__setstate__(tuple(STATE[:5]))
