"""Store and RowSource as Python sees them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import moetape as mt
from core_helpers import SPEC, Ids, capture_layers, distinct_ids, new_store, record

IDS = distinct_ids(6)


def stored(slots: npt.ArrayLike = range(6), ids: Ids = IDS) -> tuple[mt.Store, mt.Recorder]:
    store, rec = new_store()
    record(rec, slots, ids, version=1)
    return store, rec


def test_sizes_are_known_before_and_limits_are_kept() -> None:
    # case K01, K05
    spec = mt.RouteSpec(range(48), top_k=8, num_experts=128)
    needed = mt.Store.required_bytes(spec, 1_897_744)
    assert needed >= 1_897_744 * (48 * 8 + 16)
    assert needed <= 1_897_744 * (48 * 8 + 16) * 1.01
    with pytest.raises(mt.MemoryLimitError, match=str(needed)):
        mt.Store(spec, num_slots=1_897_744, memory_limit=needed - 1)
    small = mt.Store.required_bytes(SPEC, 32)
    store = mt.Store(SPEC, 32, memory_limit=small, huge_pages=False, populate=True)
    assert store.memory_bytes == small


def test_properties() -> None:
    store, rec = new_store()
    assert (store.spec, store.num_slots, store.last_step) == (SPEC, 32, 0)
    record(rec, range(6), IDS)
    assert store.last_step == 1


def test_unwritten_and_placeless_slots_are_missing() -> None:
    # case B07
    store, _ = stored()
    routes = store.read([0, -1, 30, 1], start=7)
    assert routes.missing == {"unwritten": 1, "no_slot": 1}
    assert not routes.complete
    assert routes.valid.tolist() == [True, False, False, True]
    assert [mt.REASONS[reason] for reason in routes.reasons] == ["valid", "no_slot", "unwritten", "valid"]
    assert (routes.start, routes.end) == (7, 11)
    assert not routes.ids[[1, 2]].any()
    assert routes.versions == [(7, 8, 1), (10, 11, 1)]


def test_the_pad_slot_is_no_place() -> None:
    store = mt.Store(SPEC, num_slots=8, pad_slot=0)
    rec = mt.Recorder(store, max_rows=8)
    assert record(rec, [0, 1, 0, 2, -1, 3], IDS).report.num_no_slot == 3
    assert store.read([0, 1]).missing == {"no_slot": 1}


def test_slots_outside_the_store_are_errors() -> None:
    # case B06
    store, _ = stored()
    for slots in ([32], [-2], [0, 2**62], np.array([2**31 - 1], np.int32)):
        for call in (store.read, store.rows, store.invalidate):
            with pytest.raises(mt.OutOfRangeError, match="slots"):
                call(slots)


def test_as_of_hides_later_rows() -> None:
    store, rec = stored()
    record(rec, [0, 1], distinct_ids(2, seed=9), version=2)
    assert store.read(range(3), as_of=1).missing == {"later": 2}
    assert store.read(range(3)).versions == [(0, 2, 2), (2, 3, 1)]


def test_tokens_stay_with_their_rows() -> None:
    store, _ = stored()
    for tokens in ([7, 8, 9], np.array([7, 8, 9], np.uint16), (7, 8, 9)):
        found = store.read([0, 1, 2], tokens=tokens).tokens
        assert found is not None
        assert found.tolist() == [7, 8, 9]
    assert store.read([0]).tokens is None
    with pytest.raises(mt.WrongShapeError, match="tokens: expected 3, one per row, got 2"):
        store.read([0, 1, 2], tokens=[1, 2])
    with pytest.raises(mt.OutOfRangeError, match=r"tokens\[1\]"):
        store.read([0, 1], tokens=[1, 2**31])


def test_a_slot_given_away_does_not_show_its_last_owner() -> None:
    # case B02
    store, rec = stored()
    store.invalidate([1, 3])
    assert store.read(range(6)).missing == {"invalidated": 2}
    record(rec, [1], distinct_ids(1, seed=3))
    assert store.read([1]).complete
    store.invalidate(range(6), as_of=0)
    assert store.read(range(6)).missing == {"invalidated": 1}


def test_a_slot_given_away_before_its_step_lands_stays_invalid() -> None:
    store, rec = stored()
    store.invalidate([2], as_of=5)
    rec.begin()
    capture_layers(rec, IDS)
    rec.commit(range(6), step=4)
    assert store.read(range(6)).missing == {"invalidated": 1}


def test_reset_hides_everything() -> None:
    # case B18
    store, rec = stored()
    early = store.read(range(6))
    store.reset()
    assert store.read(range(6)).missing == {"invalidated": 6}
    assert np.array_equal(early.ids, IDS)
    record(rec, [0], IDS[:1])
    assert store.read([0]).complete


def test_rows_move_with_their_kv() -> None:
    # case B01
    store, rec = stored()
    store.move(range(4), [8, 9, 10, 11])
    record(rec, range(4), distinct_ids(4, seed=5))
    assert np.array_equal(store.read([8, 9, 10, 11]).ids, IDS[:4])
    store.move([8, 9], [9, 8])
    assert np.array_equal(store.read([9, 8]).ids, IDS[:2])
    store.move([30], [8])
    assert not store.read([8]).complete
    with pytest.raises(mt.WrongShapeError):
        store.move([1, 2], [3])
    with pytest.raises(mt.OutOfRangeError):
        store.move([1], [99])
    with pytest.raises(mt.InvalidArgumentError, match="timeout"):
        store.move([1], [2], timeout=-1.0)


def test_rows_come_back_with_their_kv() -> None:
    # case B01
    store, _ = stored()
    kept = store.read(range(4))
    store.reset()
    store.write([20, 21, 22, 23], kept)
    assert store.read([20, 21, 22, 23]) == kept
    store.write([1], mt.Routes.from_ids(SPEC, IDS[:1]), version=8)
    assert store.read([1]).versions == [(0, 1, 8)]
    with pytest.raises(mt.WrongShapeError):
        store.write([1, 2], kept)
    other = mt.Routes.from_ids(mt.RouteSpec([0], 1, 4), [[[1]]])
    with pytest.raises(mt.SpecMismatchError):
        store.write([1], other)
    with pytest.raises(mt.WrongTypeError, match="routes: expected Routes, got NoneType"):
        store.write([1], None)  # type: ignore[arg-type]


def test_results_do_not_change_with_later_steps() -> None:
    store, rec = stored()
    routes = store.read(range(6))
    record(rec, range(6), distinct_ids(6, seed=8))
    assert np.array_equal(routes.ids, IDS)


def test_blocks_are_slots() -> None:
    # case B06
    store, rec = new_store()
    slots = mt.blocks([3, 1], block_size=4, num_tokens=6)
    assert len(slots) == 6
    record(rec, slots, IDS)
    assert np.array_equal(store.read([12, 13, 14, 15, 4, 5]).ids, IDS)
    assert np.array_equal(store.read(slots).ids, IDS)
    assert store.read(mt.blocks(np.array([3, -1], np.int32), 4, 6)).missing == {"no_slot": 2}
    store.invalidate(mt.blocks([1], 4, 2))
    assert store.read(slots).missing == {"invalidated": 2}
    with pytest.raises(mt.OutOfRangeError, match="slots"):
        store.read(mt.blocks([8], 4, 1))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (dict(block_ids=[0], block_size=4, num_tokens=5), mt.WrongShapeError),
        (dict(block_ids=[], block_size=4, num_tokens=1), mt.WrongShapeError),
        (dict(block_ids=[0], block_size=0, num_tokens=1), mt.OutOfRangeError),
        (dict(block_ids=[0], block_size=4, num_tokens=-1), mt.OutOfRangeError),
        (dict(block_ids=[-2], block_size=4, num_tokens=1), mt.OutOfRangeError),
        (dict(block_ids=[2**62], block_size=4, num_tokens=1), mt.OutOfRangeError),
        (dict(block_ids=[0], block_size=2**62, num_tokens=2**62), mt.Error),
        (dict(block_ids=None, block_size=4, num_tokens=1), mt.WrongTypeError),
        (dict(block_ids=[0], block_size="4", num_tokens=1), mt.WrongTypeError),
    ],
)
def test_wrong_blocks_are_refused(arguments: dict[str, Any], error: type[mt.Error]) -> None:
    with pytest.raises(error):
        stored()[0].read(mt.blocks(**arguments))


def test_no_blocks_are_no_slots() -> None:
    assert len(stored()[0].read(mt.blocks([], 4, 0))) == 0


def test_a_closed_store_refuses_by_name() -> None:
    # case K08
    store, _ = stored()
    routes = store.read(range(6))
    rows = store.rows(range(6))
    store.close()
    store.close()
    for call in (
        lambda: store.read([0]),
        lambda: store.rows([0]),
        lambda: store.invalidate([0]),
        lambda: store.reset(),
        lambda: store.move([0], [1]),
        lambda: store.write([0], routes.slice(0, 1)),
        lambda: mt.encode(rows, "sglang"),
        lambda: mt.Recorder(store, max_rows=4) and record(mt.Recorder(store, max_rows=6), range(6), IDS),
    ):
        with pytest.raises(mt.ClosedError):
            call()
    assert np.array_equal(routes.ids, IDS)
    assert store.spec == SPEC


def test_a_store_closes_behind_its_block() -> None:
    # case K08
    with pytest.raises(ZeroDivisionError), mt.Store(SPEC, num_slots=4) as store:
        _ = 1 / 0
    with pytest.raises(mt.ClosedError):
        store.read([0])


def test_rows_are_the_same_as_a_read() -> None:
    store, rec = stored()
    rows = store.rows([0, 5, 30], start=4)
    assert (len(rows), rows.start, rows.spec) == (3, 4, SPEC)
    record(rec, [0], distinct_ids(1, seed=4))
    assert mt.encode(rows, "lightllm", missing="zeros") == mt.encode(
        store.read([0, 5, 30], as_of=1), "lightllm", missing="zeros"
    )


def test_rows_keep_their_store_alive() -> None:
    store, rec = stored()
    rows = store.rows(range(6))
    expected = mt.encode(store.read(range(6)), "vllm")
    del store, rec
    gc.collect()
    assert mt.encode(rows, "vllm") == expected


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        (dict(num_slots=0), mt.InvalidArgumentError, "num_slots"),
        (dict(num_slots=-1), mt.InvalidArgumentError, "num_slots"),
        (dict(num_slots=2**62), mt.InvalidArgumentError, "num_slots"),
        (dict(num_slots=None), mt.WrongTypeError, "num_slots: expected int, got NoneType"),
        (dict(num_slots=4.0), mt.WrongTypeError, "num_slots: expected int, got float"),
        (dict(num_slots=np.arange(3)), mt.WrongTypeError, "num_slots: expected int, got ndarray"),
        (dict(num_slots=4, memory_limit=0), mt.InvalidArgumentError, "memory_limit"),
        (dict(num_slots=4, memory_limit="1G"), mt.WrongTypeError, "memory_limit"),
        (dict(num_slots=4, huge_pages=None), mt.WrongTypeError, "huge_pages"),
        (dict(num_slots=4, populate=1), mt.WrongTypeError, "populate"),
        (dict(num_slots=4, pad_slot=None), mt.WrongTypeError, "pad_slot"),
        (dict(num_slots=4, spec=None), mt.WrongTypeError, "spec: expected RouteSpec, got NoneType"),
        (dict(num_slots=4, spec="spec"), mt.WrongTypeError, "spec: expected RouteSpec, got str"),
    ],
)
def test_wrong_options_are_refused_by_name(
    arguments: dict[str, Any], error: type[mt.Error], names: str
) -> None:
    with pytest.raises(error, match=names):
        mt.Store(**{"spec": SPEC, **arguments})


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (dict(slots=None), "slots"),
        (dict(slots=3), "slots"),
        (dict(slots="3"), "slots"),
        (dict(slots=np.arange(3, dtype=np.int16)), "slots: expected int32 or int64, got int16"),
        (dict(slots=[0], start=None), "start"),
        (dict(slots=[0], start=1.0), "start"),
        (dict(slots=[0], as_of="now"), "as_of: expected int or None, got str"),
        (dict(slots=[0], tokens=[0.5]), "tokens"),
    ],
)
def test_wrong_types_of_read_are_refused_by_name(arguments: dict[str, Any], names: str) -> None:
    store, _ = stored()
    with pytest.raises(mt.WrongTypeError, match=names):
        store.read(**arguments)
    if "tokens" not in arguments:
        with pytest.raises(mt.WrongTypeError, match=names):
            store.rows(**arguments)


@pytest.mark.parametrize("start", [-1, 2**63 - 1])
def test_impossible_positions_are_refused(start: int) -> None:
    # case C20
    store, _ = stored()
    with pytest.raises(mt.Error, match=str(start)):
        store.read([0, 1], start=start)


@pytest.mark.parametrize("as_of", [-1, 2**40])
def test_impossible_steps_are_refused(as_of: int) -> None:
    store, _ = stored()
    with pytest.raises(mt.Error, match="as_of"):
        store.read([0, 1], as_of=as_of)
