"""RouteSpec as Python sees it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import moetape as mt

FULL: dict[str, Any] = {
    "layers": [3, 5, 9],
    "top_k": 4,
    "num_experts": 300,
    "stack": "draft",
    "shared_columns": 1,
    "distinct": False,
    "num_layers": 12,
    "excluded": {4: "hash-routed"},
    "model": "some-model",
}


def test_fields_come_back() -> None:
    spec = mt.RouteSpec(**FULL)
    assert spec.layers == (3, 5, 9)
    for name in set(FULL) - {"layers"}:
        assert getattr(spec, name) == FULL[name]
    assert (spec.num_moe_layers, spec.id_bytes, spec.row_bytes) == (3, 2, 24)
    assert 0 <= spec.fingerprint < 2**64


def test_defaults() -> None:
    spec = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)
    assert spec.layers == tuple(range(3, 61))
    assert (spec.stack, spec.shared_columns, spec.distinct) == ("target", 0, True)
    assert (spec.num_layers, spec.excluded, spec.model) == (61, {}, "")


@pytest.mark.parametrize("layers", [range(2, 5), [2, 3, 4], (2, 3, 4), np.array([2, 3, 4], np.int16)])
def test_layers_are_any_integers(layers: Any) -> None:
    assert mt.RouteSpec(layers, 1, 4).layers == (2, 3, 4)


@pytest.mark.parametrize(("num_experts", "id_bytes"), [(1, 1), (256, 1), (257, 2), (65_536, 2)])
def test_width_follows_the_number_of_experts(num_experts: int, id_bytes: int) -> None:
    # case D01
    assert mt.RouteSpec([0], 1, num_experts).id_bytes == id_bytes


def test_equality_and_hash_follow_all_fields() -> None:
    spec = mt.RouteSpec(**FULL)
    assert spec == mt.RouteSpec(**FULL)
    assert hash(spec) == hash(mt.RouteSpec(**FULL))
    changes: list[dict[str, Any]] = [
        dict(model="other"),
        dict(excluded={}),
        dict(distinct=True),
        dict(top_k=3),
    ]
    for change in changes:
        assert spec != mt.RouteSpec(**{**FULL, **change})
    assert spec != "spec"
    assert spec is not None
    assert len({spec, mt.RouteSpec(**FULL)}) == 1


@pytest.mark.parametrize("fields", [FULL, dict(layers=range(4), top_k=2, num_experts=8)])
def test_repr_makes_it_again(fields: dict[str, Any]) -> None:
    spec = mt.RouteSpec(**fields)
    assert eval(repr(spec), {"RouteSpec": mt.RouteSpec, "range": range}) == spec


def test_pickle_and_copy() -> None:
    spec = mt.RouteSpec(**FULL)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.copy(spec) == spec
    assert copy.deepcopy(spec) == spec


def test_layers_find_their_columns() -> None:
    # case G01
    spec = mt.RouteSpec(**FULL)
    assert [spec.column_of(layer) for layer in spec.layers] == [0, 1, 2]
    with pytest.raises(mt.OutOfRangeError, match=r"layer.*4"):
        spec.column_of(4)
    assert spec.with_layers([5, 9]).layers == (5, 9)
    with pytest.raises(mt.OutOfRangeError):
        spec.with_layers([4])


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (dict(layers=[]), mt.InvalidArgumentError, "layers"),  # case J01
        (dict(layers=[2, 1]), mt.InvalidArgumentError, "layers"),
        (dict(layers=[-1]), mt.InvalidArgumentError, "layers"),
        (dict(layers="12"), mt.WrongTypeError, "layers"),
        (dict(layers=None), mt.WrongTypeError, "layers"),
        (dict(layers=[1.5]), mt.WrongTypeError, "layers"),
        (dict(layers=[2**40]), mt.OutOfRangeError, r"layers\[0\]"),
        (dict(layers=[[1]]), mt.WrongShapeError, "layers"),
        (dict(top_k=0), mt.InvalidArgumentError, "top_k"),
        (dict(top_k=None), mt.WrongTypeError, "top_k: expected int, got NoneType"),
        (dict(top_k=True), mt.WrongTypeError, "top_k: expected int, got bool"),
        (dict(top_k=9, num_experts=8, distinct=True), mt.InvalidArgumentError, "top_k"),
        (dict(num_experts=0), mt.InvalidArgumentError, "num_experts"),  # case J01
        (dict(num_experts=65_537), mt.InvalidArgumentError, "num_experts"),  # case D01
        (dict(num_experts=2**70), mt.OutOfRangeError, "num_experts"),
        (dict(num_layers=9), mt.InvalidArgumentError, "num_layers"),
        (dict(num_layers=0), mt.OutOfRangeError, "num_layers"),
        (dict(excluded={5: "recorded too"}), mt.InvalidArgumentError, "excluded"),
        (dict(excluded=[4]), mt.WrongTypeError, "excluded"),
        (dict(excluded={4: 1}), mt.WrongTypeError, "excluded reason"),
        (dict(excluded={"4": "x"}), mt.WrongTypeError, "excluded layer"),
        (dict(distinct=1), mt.WrongTypeError, "distinct: expected bool, got int"),
        (dict(stack=b"target"), mt.WrongTypeError, "stack: expected str, got bytes"),
        (dict(model="\ud800"), mt.InvalidArgumentError, "model"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], error: type[mt.Error], names: str) -> None:
    with pytest.raises(error, match=names):
        mt.RouteSpec(**{**FULL, **change})


def test_wrong_state_is_refused() -> None:
    empty = mt.RouteSpec.__new__(mt.RouteSpec)
    with pytest.raises(mt.CorruptDataError, match="9 fields, got 1"):
        empty.__setstate__((1,))
