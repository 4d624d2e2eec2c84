"""Recorder, Ticket and CommitReport as Python sees them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, capture_layers, distinct_ids, new_store, record

IDS = distinct_ids(6)


def test_a_step_comes_back_by_slots() -> None:
    store, rec = new_store()
    ticket = record(rec, [9, 3, 7, 20, 0, 31], IDS, version=5)
    assert ticket.ready
    ticket.wait(timeout=0)
    routes = store.read([9, 3, 7, 20, 0, 31])
    assert routes.complete
    assert np.array_equal(routes.ids, IDS)
    assert routes.versions == [(0, 6, 5)]
    assert np.array_equal(store.read([0, 9]).ids, IDS[[4, 0]])


def test_report_tells_what_became_of_every_token() -> None:
    _, rec = new_store()
    ids = IDS.copy()
    ids[1, 2] = [-1, 3]
    ids[4, 0] = [5, 5]
    ids[4, 1] = [9, 2]
    report = record(rec, [0, 1, -1, 3, 4, 5], ids).report
    assert (report.step, report.num_tokens, report.num_kept) == (1, 6, 3)
    assert (report.num_refused, report.num_no_slot, report.num_elsewhere) == (2, 1, 0)
    assert sum(report.refused.values()) == 2
    assert report.refused["negative"] == 1
    offender = report.first_offender
    assert offender is not None
    assert (offender.layer, offender.row, offender.value, offender.fault) == (4, 1, -1, "negative")
    assert "num_kept=3" in repr(report)
    assert 'fault="negative"' in repr(offender)


def test_report_of_a_clean_step_names_no_offender() -> None:
    _, rec = new_store()
    report = record(rec, range(6), IDS).report
    assert report.refused == {}
    assert report.first_offender is None


def test_chunks_of_a_layer_are_put_side_by_side() -> None:
    # case A19
    store, rec = new_store()
    rec.begin()
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, IDS[:4, column])
        rec.capture(layer, IDS[4:, column], offset=4)
    rec.commit(range(6))
    assert np.array_equal(store.read(range(6)).ids, IDS)
    rec.begin()
    rec.capture(1, IDS[:3, 0])
    with pytest.raises(mt.AlreadyCapturedError, match="layer 1"):
        rec.capture(1, IDS[3:5, 0])


@pytest.mark.parametrize("order", ["ltk", "tlk"])
def test_all_layers_at_once(order: str) -> None:
    store, rec = new_store()
    for ids in (IDS, np.asfortranarray(IDS), IDS.astype(np.int16)[::-1][::-1]):
        rec.begin()
        rec.capture_all(ids.transpose(1, 0, 2) if order == "ltk" else ids, order=order)
        rec.commit(range(6))
        assert np.array_equal(store.read(range(6)).ids, IDS)


def test_all_layers_at_once_must_be_all_layers() -> None:
    _, rec = new_store()
    with pytest.raises(mt.WrongShapeError, match=r"3 layers in order ltk, got shape \[6, 3, 2\]"):
        rec.capture_all(IDS)
    with pytest.raises(mt.WrongShapeError, match=r"\[layers, rows, columns\]"):
        rec.capture_all(IDS[0])
    with pytest.raises(mt.InvalidArgumentError, match="order"):
        rec.capture_all(IDS, order="klt")
    assert rec.counters["failed_captures"] == 2


def test_ids_that_are_no_integers_fail_the_step() -> None:
    # case H03
    store, rec = new_store()
    for ids, error in ((IDS[:, 0] * 0.5, mt.WrongTypeError), (IDS, mt.WrongShapeError)):
        rec.begin()
        with pytest.raises(error, match="ids"):
            rec.capture(1, ids)
        capture_layers(rec, IDS)
        with pytest.raises(error, match="ids"):
            rec.commit(range(6))
        assert store.read(range(6)).missing == {"refused": 6}
    assert rec.counters["failed_captures"] == 2
    assert rec.counters["failed_commits"] == 2


def test_shared_columns_are_cut_off() -> None:
    # case A12
    spec = mt.RouteSpec([0], top_k=2, num_experts=64, shared_columns=1)
    store = mt.Store(spec, num_slots=4)
    rec = mt.Recorder(store, max_rows=4)
    rec.capture(0, np.array([[4, 7, 64], [1, 3, 64]]))
    rec.commit([0, 1])
    assert store.read([0, 1]).ids.reshape(-1).tolist() == [4, 7, 1, 3]


def test_lanes_are_independent() -> None:
    store, rec = new_store(lanes=2)
    assert (rec.lanes, rec.max_rows, rec.spec) == (2, 16, SPEC)
    rec.begin(lane=0)
    rec.begin(lane=1)
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, IDS[:3, column], lane=0)
        rec.capture(layer, IDS[3:, column], lane=1)
    rec.commit([3, 4, 5], lane=1)
    rec.commit([0, 1, 2], lane=0)
    assert np.array_equal(store.read(range(6)).ids, IDS)
    for call in (rec.begin, lambda lane: rec.commit([0], lane=lane)):
        with pytest.raises(mt.OutOfRangeError, match="lane"):
            call(lane=2)


def test_layouts_say_whose_rows_they_are() -> None:
    # case A06, A07
    store, rec = new_store()
    gathered = distinct_ids(8)
    rec.begin()
    capture_layers(rec, gathered)
    report = rec.commit(range(5), layout=mt.layout.dp_concat([3, 5], rank=1)).report
    assert report.num_kept == 5
    assert np.array_equal(store.read(range(5)).ids, gathered[3:])
    rec.begin()
    capture_layers(rec, gathered)
    with pytest.raises(mt.WrongShapeError, match="8"):
        rec.commit(range(5), layout=mt.layout.dp_concat([3, 6], rank=1))


def test_versions_may_be_one_per_token() -> None:
    # case B05
    store, rec = new_store()
    for versions in ([1, 1, 1, 2, 2, 9], np.array([1, 1, 1, 2, 2, 9], np.int16)):
        rec.begin()
        capture_layers(rec, IDS)
        rec.commit(range(6), version=versions)
        assert store.read(range(6)).versions == [(0, 3, 1), (3, 5, 2), (5, 6, 9)]
    rec.begin()
    capture_layers(rec, IDS)
    rec.commit(range(6), version=np.int64(4))
    assert store.read(range(6)).versions == [(0, 6, 4)]
    rec.begin()
    capture_layers(rec, IDS)
    for versions in ([1, 2], []):
        rec.begin()
        capture_layers(rec, IDS)
        with pytest.raises(mt.WrongShapeError, match=f"expected 6, one per slot, got {len(versions)}"):
            rec.commit(range(6), version=versions)
        assert store.read(range(6)).missing == {"refused": 6}
    with pytest.raises(mt.NotCapturedError):  # a failed commit closes the step
        rec.commit(range(6))


def test_steps_are_the_engines_where_it_counts_them() -> None:
    store, rec = new_store()
    rec.begin()
    capture_layers(rec, IDS)
    assert rec.commit(range(6), step=40).report.step == 40
    assert store.last_step == 40
    rec.begin()
    capture_layers(rec, IDS)
    with pytest.raises(mt.StepOrderError, match="40"):
        rec.commit(range(6), step=40)
    assert store.read(range(6)).missing == {"refused": 6}


@pytest.mark.parametrize("version", [-1, 0xFFFFFF, 2**32, 2**62])
def test_an_impossible_version_closes_the_step_and_refuses_its_slots(version: int) -> None:
    store, rec = new_store()
    record(rec, range(6), IDS)
    rec.begin()
    capture_layers(rec, IDS)
    with pytest.raises(mt.StepOrderError, match=f"version.*{version}"):
        rec.commit([0, 1, 2, 3, 4, 5], version=version)
    assert store.read(range(6)).missing == {"refused": 6}
    record(rec, range(6), IDS)
    assert store.read(range(6)).complete


def test_a_layer_that_nobody_captured_fails_the_commit() -> None:
    # case H01, H04
    store, rec = new_store()
    record(rec, range(8), distinct_ids(8, seed=1))
    rec.begin()
    rec.capture(1, IDS[:, 0])
    rec.capture(4, IDS[:, 2])
    with pytest.raises(mt.NotCapturedError, match="2"):
        rec.commit(range(6))
    assert store.read(range(8)).missing == {"refused": 6}
    record(rec, range(6), IDS)
    assert np.array_equal(store.read(range(6)).ids, IDS)


@pytest.mark.parametrize(
    ("layer", "error"),
    [(0, mt.OutOfRangeError), (-1, mt.OutOfRangeError), (3, mt.OutOfRangeError), (None, mt.WrongTypeError)],
)
def test_a_layer_outside_the_spec_is_an_error_and_no_write(layer: Any, error: type[mt.Error]) -> None:
    # case H03
    store, rec = new_store()
    rec.begin()
    capture_layers(rec, IDS)
    with pytest.raises(error, match="layer"):
        rec.capture(layer, IDS[:, 0])
    rec.commit(range(6))
    assert np.array_equal(store.read(range(6)).ids, IDS)
    assert rec.counters["captures"] >= 3


def test_more_rows_than_the_lane_holds_are_refused() -> None:
    # case A04
    _, rec = new_store(max_rows=4)
    with pytest.raises(mt.CapacityError, match=r"4.*6|6.*4"):
        rec.capture(1, IDS[:, 0])


def test_wrong_arguments_of_commit_leave_the_step_open() -> None:
    store, rec = new_store()
    rec.begin()
    capture_layers(rec, IDS)
    for arguments in (
        dict(slots=None),
        dict(slots=[0.5] * 6),
        dict(slots=np.arange(6, dtype=np.uint16)),
        dict(slots=range(6), layout="whole"),
        dict(slots=range(6), step="1"),
        dict(slots=range(6), version=None),
        dict(slots=range(6), version=1.5),
        dict(slots=range(6), lane=None),
    ):
        with pytest.raises(mt.WrongTypeError):
            rec.commit(**arguments)
    rec.commit(range(6))
    assert store.read(range(6)).complete


def test_slots_of_every_kind() -> None:
    import torch

    store, rec = new_store()
    expected = [5, 1, 8, 2, 9, 0]
    array = np.array(expected)
    for slots in (
        expected,
        tuple(expected),
        array,
        array.astype(np.int32),
        np.repeat(array, 2)[::2],
        torch.tensor(expected),
        torch.tensor(expected, dtype=torch.int32),
    ):
        store.reset()
        record(rec, slots, IDS)
        assert np.array_equal(store.read(expected).ids, IDS)


def test_slots_out_of_range_or_twice_fail_the_commit() -> None:
    # case B06
    store, rec = new_store()
    for slots, error in (
        ([0, 1, 2, 3, 4, 32], mt.OutOfRangeError),
        ([0, 1, 2, 3, 4, 4], mt.InvalidArgumentError),
    ):
        record(rec, range(8), distinct_ids(8))
        with pytest.raises(error, match="slots"):
            record(rec, slots, IDS)
        assert store.read(range(8)).missing == {"refused": 5}


def test_counters_count() -> None:
    # case J07
    _, rec = new_store()
    record(rec, range(6), IDS)
    rec.begin()
    capture_layers(rec, IDS)
    rec.begin()
    capture_layers(rec, IDS)
    rec.commit([-1] * 6)
    counters = rec.counters
    assert counters["captures"] == 9
    assert (counters["commits"], counters["failed_commits"], counters["abandoned"]) == (2, 0, 1)
    assert (counters["rows_kept"], counters["rows_no_slot"]) == (6, 6)


def test_physical_ids_are_mapped_back() -> None:
    # case A15, H05
    spec = mt.RouteSpec([0], top_k=1, num_experts=64)
    store = mt.Store(spec, num_slots=4)
    id_map = mt.layout.IdMap.interleaved_shared(num_experts=64, num_ranks=2, shared_per_rank=1)
    rec = mt.Recorder(store, max_rows=4, id_maps={0: id_map})
    rec.capture(0, [[41], [32]])
    rec.commit([0, 1])
    routes = store.read([0, 1])
    assert routes.ids[0].tolist() == [[40]]
    assert routes.valid.tolist() == [True, False]


def test_a_recorder_keeps_its_store_alive() -> None:
    store, rec = new_store()
    del store
    gc.collect()
    assert record(rec, range(6), IDS).report.num_kept == 6


def test_sizes_are_known_before() -> None:
    # case K01
    needed = mt.Recorder.required_bytes(SPEC, num_slots=4, max_rows=16, lanes=2)
    assert needed > 0
    store = mt.Store(SPEC, num_slots=4)
    assert mt.Recorder(store, max_rows=16, lanes=2, memory_limit=needed).lanes == 2
    with pytest.raises(mt.MemoryLimitError):
        mt.Recorder(store, max_rows=16, lanes=2, memory_limit=needed - 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (dict(max_rows=0), mt.InvalidArgumentError),
        (dict(max_rows=-5), mt.InvalidArgumentError),
        (dict(max_rows=2**62), mt.Error),
        (dict(max_rows=4, lanes=0), mt.InvalidArgumentError),
        (dict(max_rows=4, lanes=2**40), mt.OutOfRangeError),
        (dict(max_rows=4, memory_limit=0), mt.InvalidArgumentError),
        (dict(max_rows=4, id_maps=[1]), mt.WrongTypeError),
        (dict(max_rows=4, id_maps={1: None}), mt.WrongTypeError),
        (dict(max_rows=4, id_maps={9: mt.layout.IdMap([0])}), mt.Error),
    ],
)
def test_wrong_options_are_refused(arguments: dict[str, Any], error: type[mt.Error]) -> None:
    with pytest.raises(error):
        mt.Recorder(mt.Store(SPEC, num_slots=4), **arguments)
    with pytest.raises(mt.WrongTypeError, match="store: expected Store, got RouteSpec"):
        mt.Recorder(SPEC, max_rows=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_wrong_timeouts_are_refused(timeout: float) -> None:
    _, rec = new_store()
    ticket = record(rec, range(6), IDS)
    with pytest.raises(mt.InvalidArgumentError, match="timeout"):
        ticket.wait(timeout)
    with pytest.raises(mt.WrongTypeError, match="timeout"):
        ticket.wait("soon")  # type: ignore[arg-type]
    for longest in (0, 1.5, float("inf"), 10**400):
        ticket.wait(longest)


def test_a_closed_store_refuses_commits() -> None:
    store, rec = new_store()
    record(rec, range(6), IDS)
    store.close()
    with pytest.raises(mt.ClosedError):
        record(rec, range(6), IDS)
