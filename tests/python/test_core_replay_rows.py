"""RowIds and pipeline stages as Python sees them; against trainers' own code in test_peers_slicing.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids
from moetape.replay import Plan, RowIds, pipeline_chunks, pipeline_layers, row_ids

ROWS = RowIds.from_lengths([3, 0, 5])


def positions(rows: RowIds) -> list[int]:
    """Positions of the rows of one sequence; -1 = padding."""
    return np.where(rows.ids == 0, -1, rows.ids & 0xFFFFFFFF).tolist()


def test_rows_are_those_of_the_sequences() -> None:
    # case E07
    assert np.array_equal(ROWS.ids, np.concatenate([row_ids(0, range(3)), row_ids(2, range(5))]))
    assert ROWS.offsets.tolist() == [0, 3, 3, 8]
    assert (ROWS.num_rows, ROWS.num_segments) == (8, 3)
    assert ROWS.take([1]).num_rows == 0
    assert RowIds.from_cu_seqlens(np.array([0, 3, 3, 8], np.int32)) == ROWS
    assert RowIds.from_spans([(0, 0, 3), (1, 0, 0), (2, 0, 5)]) == ROWS
    assert RowIds.from_lengths([3, 5]) != ROWS
    assert ROWS != "rows"
    assert repr(ROWS) == "RowIds(8 rows in 3 segments)"


def test_needs_are_spans_to_make_rows_of() -> None:
    plan = Plan.from_row_ids(ROWS.take([2, 0]))
    assert plan.needs() == [(0, 0, 3), (2, 0, 5)]
    assert Plan.from_row_ids(RowIds.from_spans(plan.needs())).needs() == plan.needs()


def test_each_segment_is_padded_and_cut() -> None:
    # case I10
    rows = RowIds.from_lengths([7])
    assert positions(rows.pad_each(4)) == [0, 1, 2, 3, 4, 5, 6, -1]
    assert positions(rows.pad_each(4, side="left")) == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert positions(rows.pad_each_to(9)) == [0, 1, 2, 3, 4, 5, 6, -1, -1]
    assert positions(rows.pad_each_to(np.int64(8), "left")) == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert positions(rows.pad_each(4).zigzag_each(size=2, rank=0)) == [0, 1, 6, -1]
    assert positions(rows.pad_each(4).zigzag_each(2, 1)) == [2, 3, 4, 5]
    assert positions(rows.pad_each(4).split_each(2, 1)) == [4, 5, 6, -1]
    assert ROWS.pad_each_to([4, 2, 5]).offsets.tolist() == [0, 4, 6, 11]


def test_all_rows_are_padded_and_cut() -> None:
    # case I05, I20
    rows = RowIds.from_lengths([3, 5]).pad(16)
    assert rows.num_rows == 16
    assert (rows.ids == 0).sum() == 8
    assert positions(RowIds.from_lengths([5]).pad(2).split(2, 1)) == [3, 4, -1]
    assert RowIds.from_lengths([5]).pad_to(9).num_rows == 9


def test_row_orders_and_explicit_lists() -> None:
    batch_major = RowIds.from_lengths([2, 3]).pad_each_to(3)
    sequence_major = batch_major.sequence_major()
    assert np.array_equal(sequence_major.ids, batch_major.ids.reshape(2, 3).T.reshape(-1))
    index = [4, -1, 0]
    assert batch_major.gather(index).ids.tolist() == [batch_major.ids[4], 0, batch_major.ids[0]]


def test_a_rank_of_everything_at_once() -> None:
    # case E06, G10, K02
    routes = [mt.Routes.from_ids(SPEC, distinct_ids(5)), mt.Routes.from_ids(SPEC, distinct_ids(7))]
    chunks = pipeline_chunks(6, size=2)
    seen: dict[int, list[int]] = {}
    for pipeline_rank in range(2):
        layers = pipeline_layers(SPEC, chunks, size=2, rank=pipeline_rank)
        for cp_rank in range(2):
            for tp_rank in range(2):
                rows = (
                    RowIds.from_lengths([5, 7]).pad_each(4).zigzag_each(2, cp_rank).pad(2).split(2, tp_rank)
                )
                plan = Plan.from_row_ids(rows, layers=layers)
                ids, uses = plan.apply(routes)
                assert ids.shape == (len(layers), rows.num_rows, SPEC.top_k)
                for layer in layers:
                    seen.setdefault(layer, []).extend(rows.ids[rows.ids != 0].tolist())
                for row, id_ in enumerate(rows.ids.tolist()):
                    if id_ == 0:
                        assert uses[row] == mt.replay.FILL
                        continue
                    recorded = routes[(id_ >> 32) - 1].ids[id_ & 0xFFFFFFFF]
                    for at, layer in enumerate(layers):
                        assert np.array_equal(ids[at, row], recorded[SPEC.column_of(layer)])
    everything = sorted(RowIds.from_lengths([5, 7]).ids.tolist())
    assert {layer: sorted(ids) for layer, ids in seen.items()} == dict.fromkeys(SPEC.layers, everything)


def test_arrays_are_the_callers() -> None:
    rows = RowIds.from_lengths([2])
    ids = rows.ids
    ids[:] = -1
    assert positions(rows) == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "names"),
    [
        (lambda: RowIds.from_lengths([3, -1]), mt.InvalidArgumentError, "lengths: .*got -1 at 1"),
        (lambda: RowIds.from_lengths([1.5]), mt.WrongTypeError, "lengths"),
        (lambda: RowIds.from_lengths(None), mt.WrongTypeError, "lengths"),  # type: ignore[arg-type]
        (lambda: RowIds.from_lengths([2**32] * 9), mt.Error, "rows: expected at most"),
        (lambda: RowIds.from_cu_seqlens([1, 2]), mt.InvalidArgumentError, "cu_seqlens"),
        (lambda: RowIds.from_spans([(0, 2, 1)]), mt.InvalidArgumentError, r"\[2, 1\)"),
        (lambda: RowIds.from_spans([(0, 1)]), mt.WrongTypeError, r"spans\[0\]"),  # type: ignore[list-item]
        (lambda: RowIds.from_spans([(0, 0, "1")]), mt.WrongTypeError, r"spans\[0\]"),  # type: ignore[list-item]
        (lambda: ROWS.take([3]), mt.OutOfRangeError, "segments"),
        (lambda: ROWS.pad_each(0), mt.InvalidArgumentError, "multiple"),
        (lambda: ROWS.pad_each(4, side="top"), mt.InvalidArgumentError, "side: .*'top'"),
        (lambda: ROWS.pad_each_to(4), mt.WrongShapeError, "segment 2: expected at most 4 rows to pad, got 5"),
        (lambda: ROWS.pad_each_to([4, 4]), mt.WrongShapeError, "3 segments, got 2"),
        (lambda: ROWS.pad_each_to(True), mt.WrongTypeError, "lengths"),
        (lambda: ROWS.zigzag_each(2, 0), mt.WrongShapeError, "segment 0: expected a multiple of 4"),
        (lambda: ROWS.split_each(2, 2), mt.OutOfRangeError, "rank"),
        (lambda: ROWS.split(3, 0), mt.WrongShapeError, "rows: expected a multiple of 3"),
        (lambda: ROWS.split(0, 0), mt.InvalidArgumentError, "size"),
        (lambda: ROWS.pad_to(7), mt.WrongShapeError, "expected 8 or more, got 7"),
        (lambda: ROWS.sequence_major(), mt.WrongShapeError, "segment 1"),
        (lambda: ROWS.gather([8]), mt.OutOfRangeError, "index"),
    ],
)
def test_what_cannot_be_cut_is_refused(make: Callable[[], Any], error: type[mt.Error], names: str) -> None:
    with pytest.raises(error, match=names):
        make()


def test_pipeline_stages_go_by_global_layer() -> None:
    # case G01, G02
    spec = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)
    chunks = pipeline_chunks(61, size=4, first=16, last=13)
    assert chunks == [16, 16, 16, 13]
    assert pipeline_layers(spec, chunks, size=4, rank=0) == list(range(3, 16))
    assert pipeline_layers(spec, chunks, 4, 3) == list(range(48, 61))
    halves = pipeline_chunks(8, 2, virtual_size=2)
    small = mt.RouteSpec(layers=[0, *range(3, 8)], top_k=1, num_experts=2)
    assert pipeline_layers(small, halves, 2, 0) == [0, 4, 5]
    assert pipeline_layers(small, halves, 2, 0, virtual_stage=1) == [4, 5]
    assert pipeline_layers(small, [1, 2, 5], 3, 1) == []
    assert pipeline_chunks(14, 4, embedding=True, loss=True) == [3, 4, 4, 3]
    with pytest.raises(mt.InvalidArgumentError, match="a multiple of 4 layers on the ranks, got 61"):
        pipeline_chunks(61, 4)
    with pytest.raises(mt.OutOfRangeError, match="rank"):
        pipeline_layers(spec, chunks, 4, 4)
    with pytest.raises(mt.WrongTypeError, match="spec"):
        pipeline_layers(None, chunks, 4, 0)  # type: ignore[arg-type]
    with pytest.raises(mt.WrongTypeError, match="first"):
        pipeline_chunks(61, 4, first="16")  # type: ignore[arg-type]
