"""moetape.replay as Python sees it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids
from moetape.replay import FILL, LIVE, REPLAYED, Plan, row_ids

IDS = distinct_ids(8)
FIRST = mt.Routes.from_ids(SPEC, IDS[:5], tokens=range(100, 105))
SECOND = mt.Routes.from_ids(SPEC, IDS[5:], start=2, valid=[True, False, True])

# Sequence 0 from position 1 on, padding, and sequence 1 where it is recorded and where not.
CUT = np.concatenate([row_ids(0, range(1, 5)), [0, -1], row_ids(1, range(1, 6))])


def test_rows_of_a_rank_come_in_its_order() -> None:
    ids, uses = Plan.from_row_ids(CUT).apply([FIRST, SECOND])
    assert ids.shape == (3, 11, 2)
    assert ids.dtype == np.int64
    assert uses.tolist() == [REPLAYED] * 4 + [FILL] * 2 + [LIVE, REPLAYED, LIVE, REPLAYED, LIVE]
    assert np.array_equal(ids[:, :4], IDS[1:5].transpose(1, 0, 2))
    assert np.array_equal(ids[:, [7, 9]], IDS[[5, 7]].transpose(1, 0, 2))


@pytest.mark.parametrize("sequence", [True, 1.0, "1", None, np.bool_(True), [1]], ids=repr)
def test_a_sequence_is_an_integer(sequence: Any) -> None:
    with pytest.raises(mt.WrongTypeError, match="sequence: expected an integer, got"):
        row_ids(sequence, [0])
    assert row_ids(np.uint8(255), [7]).tolist() == [256 << 32 | 7]


def test_rows_of_no_record_are_distinct_and_spread() -> None:
    # case D10
    ids, uses = Plan.from_row_ids(np.zeros(12, np.int64)).apply([FIRST])
    assert (uses == FILL).all()
    assert (ids[..., 0] != ids[..., 1]).all()
    for layer in ids:
        counts = np.bincount(layer.reshape(-1), minlength=8)
        assert counts.max() - counts.min() <= 1
    again, _ = Plan.from_row_ids(np.zeros(12, np.int64)).apply([FIRST])
    assert np.array_equal(ids, again)


def test_layers_come_in_the_order_asked_for() -> None:
    # case K02
    plan = Plan.from_row_ids(row_ids(0, range(5)), layers=[4, 1])
    assert (plan.layers, plan.num_rows) == ([4, 1], 5)
    ids, _ = plan.apply([FIRST])
    assert np.array_equal(ids, IDS[:5, [2, 0]].transpose(1, 0, 2))
    assert Plan.from_row_ids([]).layers is None
    with pytest.raises(mt.OutOfRangeError, match="3"):
        Plan.from_row_ids(row_ids(0, range(5)), layers=[3]).apply([FIRST])


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint8", "uint16"])
def test_ids_are_widened_at_the_end(dtype: str) -> None:
    # case D02, D06
    import torch

    plan = Plan.from_row_ids(CUT)
    expected, _ = plan.apply([FIRST, SECOND])
    for name in (dtype, np.dtype(dtype), getattr(np, dtype), getattr(torch, dtype)):
        ids, _ = plan.apply([FIRST, SECOND], dtype=name)
        assert ids.dtype == dtype
        assert np.array_equal(ids, expected)


def test_results_go_where_the_caller_wants_them() -> None:
    import torch

    plan = Plan.from_row_ids(CUT)
    expected, _ = plan.apply([FIRST, SECOND])
    out = np.full((3, 11, 2), -7)
    ids, _ = plan.apply([FIRST, SECOND], out=out)
    assert ids is out
    assert np.array_equal(out, expected)
    tensor: Any = torch.full((3, 11, 2), -7, dtype=torch.int32)
    ids, _ = plan.apply([FIRST, SECOND], dtype="int32", out=tensor)
    assert id(ids) == id(tensor)
    assert np.array_equal(tensor.numpy(), expected)


def test_results_are_writable_and_live_on() -> None:
    ids, uses = Plan.from_row_ids(CUT).apply([FIRST, SECOND])
    ids[...] = 3
    uses[...] = 1
    assert ids.sum() == 3 * ids.size


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros((3, 11, 3), np.int64), mt.WrongShapeError),
        (np.zeros((3, 66), np.int64), mt.WrongShapeError),
        (np.zeros((3, 11, 2), np.int32), mt.WrongTypeError),
        (np.zeros((3, 11, 2)), mt.WrongTypeError),
        (np.zeros((3, 22, 2), np.int64)[:, ::2], mt.InvalidArgumentError),
        (np.broadcast_to(np.int64(0), (3, 11, 2)), mt.InvalidArgumentError),
        (np.frombuffer(bytes(3 * 11 * 2 * 8), np.int64).reshape(3, 11, 2), mt.InvalidArgumentError),
        ([[[0] * 2] * 11] * 3, mt.InvalidArgumentError),
        ("out", mt.WrongTypeError),
    ],
)
def test_buffers_that_do_not_fit_are_refused(out: Any, error: type[mt.Error]) -> None:
    # case A13
    with pytest.raises(error, match="out"):
        Plan.from_row_ids(CUT).apply([FIRST, SECOND], out=out)


def test_needs_are_the_smallest_spans() -> None:
    # case K02, E06
    assert Plan.from_row_ids(CUT).needs() == [(0, 1, 5), (1, 1, 6)]
    assert Plan.from_row_ids(np.array([0, -1])).needs() == []


def test_tokens_prove_the_alignment() -> None:
    # case C11
    plan = Plan.from_row_ids(CUT)
    tokens = [101, 102, 103, 104, 0, 0, 7, 7, 7, 7, 7]
    assert plan.verify([FIRST, SECOND], tokens) == 4
    assert plan.verify([SECOND, SECOND], tokens) == 0
    tokens[2] = 9
    with pytest.raises(mt.ConflictError, match="2"):
        plan.verify([FIRST, SECOND], tokens)
    with pytest.raises(mt.WrongShapeError):
        plan.verify([FIRST, SECOND], tokens[:5])


@pytest.mark.parametrize(
    ("ids", "error", "names"),
    [
        (CUT.astype(np.int32), mt.WrongTypeError, "row_ids: expected int64, got int32"),
        (CUT.astype(np.uint64), mt.WrongTypeError, "row_ids: expected int64, got uint64"),
        (CUT.astype(float), mt.WrongTypeError, "row_ids"),
        (CUT.reshape(1, -1), mt.WrongShapeError, r"row_ids: expected one dimension, got shape \[1, 11\]"),
        (np.array([5]), mt.InvalidArgumentError, "5"),
        (np.array([-2]), mt.InvalidArgumentError, "-2"),
        (row_ids(0, [1, 2, 1]), mt.InvalidArgumentError, "row_ids"),
        (None, mt.WrongTypeError, "row_ids"),
    ],
)
def test_what_is_no_row_id_is_refused(ids: Any, error: type[mt.Error], names: str) -> None:
    with pytest.raises(error, match=names):
        Plan.from_row_ids(ids)


@pytest.mark.parametrize("layers", [[1, 1], [-1], "1", [1.5], [2**40]])
def test_wrong_layers_are_refused(layers: Any) -> None:
    with pytest.raises(mt.Error):
        Plan.from_row_ids(CUT, layers=layers).apply([FIRST, SECOND])


@pytest.mark.parametrize(
    ("sources", "error"),
    [
        ([], mt.InvalidArgumentError),
        ([FIRST], mt.OutOfRangeError),
        (None, mt.WrongTypeError),
        ([FIRST, None], mt.WrongTypeError),
        (FIRST, mt.WrongTypeError),
        ([FIRST, mt.Routes.from_ids(mt.RouteSpec([0], 1, 4), [[[1]]])], mt.SpecMismatchError),
    ],
)
def test_wrong_sources_are_refused(sources: Any, error: type[mt.Error]) -> None:
    with pytest.raises(error):
        Plan.from_row_ids(CUT).apply(sources)


@pytest.mark.parametrize("dtype", ["int8", "float32", "uint4", None, 64, np.float64])
def test_types_that_cannot_hold_ids_are_refused(dtype: Any) -> None:
    with pytest.raises(mt.Error):
        Plan.from_row_ids(CUT).apply([FIRST, SECOND], dtype=dtype)


def test_plans_side_by_side_begin_their_padding_elsewhere() -> None:
    # case D10
    plan = Plan.from_row_ids([0, -1])
    ids, _ = plan.apply([FIRST], first_expert=6)
    assert ids[0].tolist() == [[6, 7], [0, 1]]
    with pytest.raises(mt.OutOfRangeError, match="first_expert"):
        plan.apply([FIRST], first_expert=-1)
    with pytest.raises(mt.WrongTypeError, match="first_expert"):
        plan.apply([FIRST], first_expert="6")  # type: ignore[arg-type]


def test_a_stage_of_dense_layers_has_no_ids() -> None:
    # case G01
    ids, uses = Plan.from_row_ids(CUT, layers=[]).apply([FIRST, SECOND])
    assert ids.shape == (0, 11, 2)
    assert uses.tolist().count(REPLAYED) == 6


def test_load_of_experts_is_known_before_the_step() -> None:
    plan = Plan.from_row_ids(CUT, layers=[4, 1])
    ids, uses = plan.apply([FIRST, SECOND])
    load = plan.expert_load([FIRST, SECOND])
    assert load.shape == (2, 8)
    for layer in range(2):
        assert np.array_equal(load[layer], np.bincount(ids[layer][uses == REPLAYED].reshape(-1), minlength=8))


def test_plans_are_values_that_can_be_pickled() -> None:
    plan = Plan.from_row_ids(CUT, layers=[4, 1])
    for copied in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), copy.copy(plan)):
        assert copied == plan
        assert copied.layers == [4, 1]
    with pytest.raises(mt.CorruptDataError, match="Plan"):
        Plan.__new__(Plan).__setstate__((CUT,))  # type: ignore[attr-defined]
    assert plan.row_ids.tolist() == np.where(CUT == -1, 0, CUT).tolist()
    assert plan != Plan.from_row_ids(CUT)
    assert plan != "plan"
    assert repr(plan) == "Plan(11 rows, layers=[4, 1])"


def test_row_ids_keep_their_shape_and_range() -> None:
    assert row_ids(0, 5) == (1 << 32) + 5
    assert row_ids(2, [[1, 2]]).tolist() == [[(3 << 32) + 1, (3 << 32) + 2]]
    assert row_ids(0, []).dtype == np.int64
    assert row_ids(2**31 - 2, 2**32 - 1) == 2**63 - 1
    for sequence, positions in ((-1, 0), (2**31 - 1, 0), (0, -1), (0, 2**32)):
        with pytest.raises(mt.OutOfRangeError):
            row_ids(sequence, positions)
    with pytest.raises(mt.WrongTypeError):
        row_ids(0, [0.5])


def test_no_rows_are_a_plan() -> None:
    # case E07
    ids, uses = Plan.from_row_ids(np.zeros(0, np.int64)).apply([FIRST])
    assert ids.shape == (3, 0, 2)
    assert uses.shape == (0,)
