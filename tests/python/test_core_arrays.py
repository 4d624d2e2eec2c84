"""Arrays in and out: every kind that is taken, without a copy, and every kind that is refused, by name."""

from __future__ import annotations

import array
import gc
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, Ids, distinct_ids, new_store, record

torch = pytest.importorskip("torch")

INT_TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


class DLPackOnly:
    """An array of a library that has DLPack and nothing else."""

    def __init__(self, values: Any, device: tuple[int, int] | None = None) -> None:
        self._values = values
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device or self._values.__dlpack_device__()


def captured(ids_of_layer: Any, num_rows: int) -> Ids:
    """What a store gives back of one layer's ids, given to all layers."""
    store, rec = new_store()
    rec.begin()
    for layer in SPEC.layers:
        rec.capture(layer, ids_of_layer)
    rec.commit(range(num_rows))
    routes = store.read(range(num_rows))
    assert routes.complete
    assert (routes.ids == routes.ids[:, :1]).all()
    return routes.ids[:, 0].astype(np.int64)


@pytest.mark.parametrize("dtype", INT_TYPES)
def test_every_integer_type_is_taken(dtype: str) -> None:
    ids = distinct_ids(5)[:, 0]
    assert np.array_equal(captured(ids.astype(dtype), 5), ids)
    assert np.array_equal(captured(torch.from_numpy(ids.astype(dtype)), 5), ids)
    assert np.array_equal(captured(DLPackOnly(ids.astype(dtype)), 5), ids)


def test_strides_are_kept() -> None:
    ids = distinct_ids(6)[:, 0]
    wide = np.zeros((6, 7), np.int32)
    wide[:, 1::3] = ids[:, :2]
    assert np.array_equal(captured(wide[:, 1::3], 6), ids)
    assert np.array_equal(captured(np.asfortranarray(ids), 6), ids)
    assert np.array_equal(captured(ids[::-1], 6), ids[::-1])
    assert np.array_equal(captured(ids[:, ::-1], 6), ids[:, ::-1])
    assert np.array_equal(captured(ids[::2], 3), ids[::2])
    assert np.array_equal(captured(np.broadcast_to(ids[0], (4, 2)), 4), np.tile(ids[0], (4, 1)))
    tensor = torch.from_numpy(wide)
    assert np.array_equal(captured(tensor[:, 1::3], 6), ids)
    assert np.array_equal(captured(torch.from_numpy(ids).t().contiguous().t(), 6), ids)


def test_buffers_lists_and_records_are_taken() -> None:
    ids = distinct_ids(4)[:, 0]
    flat = array.array("h", ids.reshape(-1).tolist())
    assert np.array_equal(captured(memoryview(flat).cast("B").cast("h", (4, 2)), 4), ids)
    assert np.array_equal(captured(ids.tolist(), 4), ids)
    assert np.array_equal(captured([tuple(row) for row in ids.tolist()], 4), ids)
    records = np.zeros((4, 2), [("gate", "f2"), ("odd", "i1"), ("id", "i8")])
    records["id"] = ids
    assert records["id"].strides[1] % 8 != 0
    assert np.array_equal(captured(records["id"], 4), ids)


def test_empty_batches_are_taken() -> None:
    for ids in (np.zeros((0, 2), np.int32), torch.zeros((0, 2), dtype=torch.int64)):
        assert captured(ids, 0).shape == (0, 2)


def test_capture_copies_nothing_before_it_reads() -> None:
    _, rec = new_store(max_rows=4096)
    ids = np.asfortranarray(np.tile(np.array([[1, 2]], np.int64), (4096, 1)))
    rec.capture(1, ids)
    rec.begin()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        rec.capture(1, ids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - before < 4096


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (np.zeros((2, 2), np.float32), "float32"),
        (np.zeros((2, 2), bool), "bool"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.zeros((2, 2), "datetime64[s]"), r"datetime64\[s\]"),
        (np.zeros((2, 2), object), "object"),
        (np.zeros((2, 2), ">i4"), ">i4"),
        (torch.zeros((2, 2)), "torch.float32"),
        (torch.zeros((2, 2), dtype=torch.bool), "torch.bool"),
        (torch.zeros((2, 2), dtype=torch.bfloat16), "torch.bfloat16"),
        ([[0.5, 1.0]], "float64"),
        ([["a", "b"]], "<U1"),
        (None, "NoneType"),
        (7, "int"),
        ("01", "str"),
        (object(), "object"),
    ],
)
def test_what_is_no_integer_array_is_refused_by_its_type(ids: Any, found: str) -> None:
    _, rec = new_store()
    with pytest.raises(mt.WrongTypeError, match=rf"^ids: expected an array of integers, got {found}"):
        rec.capture(1, ids)


def test_sparse_and_meta_tensors_are_refused() -> None:
    _, rec = new_store()
    for ids in (
        torch.eye(2, dtype=torch.int64).to_sparse(),
        torch.zeros((2, 2), dtype=torch.int64, device="meta"),
    ):
        with pytest.raises((mt.WrongTypeError, mt.UnsupportedError), match=r"^ids: "):
            rec.capture(1, ids)


@pytest.mark.parametrize(
    ("device", "name"), [((2, 0), "cuda:0"), ((10, 3), "rocm:3"), ((99, 1), "DLPack device 99:1")]
)
def test_other_devices_are_refused_by_name(device: tuple[int, int], name: str) -> None:
    _, rec = new_store()
    with pytest.raises(
        mt.UnsupportedError, match=f"^ids: expected an array in CPU memory, got one on {name}"
    ):
        rec.capture(1, cast(Any, DLPackOnly(distinct_ids(2)[:, 0], device)))


def test_dlpack_that_lies_is_refused() -> None:
    _, rec = new_store()

    class Broken(DLPackOnly):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no")

    class NoDevice(DLPackOnly):
        def __dlpack_device__(self) -> Any:
            return "cpu"

    broken: list[Any] = [Broken(np.zeros((2, 2), np.int8)), NoDevice(np.zeros((2, 2), np.int8))]
    for ids in broken:
        with pytest.raises(mt.WrongTypeError, match=r"^ids: "):
            rec.capture(1, ids)


@pytest.mark.parametrize("shape", [(), (2,), (2, 2, 2), (1,) * 6])
def test_wrong_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    _, rec = new_store()
    with pytest.raises(mt.WrongShapeError, match=r"^ids: expected"):
        rec.capture(1, np.zeros(shape, np.int32))


def test_ragged_lists_are_refused() -> None:
    _, rec = new_store()
    with pytest.raises(mt.WrongShapeError, match=r"^ids: expected integers in a regular shape"):
        rec.capture(1, [[1, 2], [3]])


def test_results_are_views_that_keep_their_memory_alive() -> None:
    ids = distinct_ids(8)
    store, rec = new_store()
    record(rec, range(8), ids, version=3)
    routes = store.read(range(8), tokens=range(8))
    views = [routes.ids, routes.reasons, routes.tokens]
    for view in views:
        assert view is not None
        assert not view.flags.owndata
        assert not view.flags.writeable
    assert np.shares_memory(routes.ids, routes.ids)
    assert np.shares_memory(routes.ids, routes.slice(2, 5).ids)
    assert np.shares_memory(routes.slice(2, 5).ids, routes.ids[2:5])
    store.close()
    del store, rec, routes
    gc.collect()
    # Freed memory of this size would be the next to be given out.
    filler = [distinct_ids(8, seed=seed).astype(np.uint8) for seed in range(20)]
    assert views[0] is not None
    assert np.array_equal(views[0], ids)
    assert views[1] is not None
    assert not views[1].any()
    assert views[2] is not None
    assert views[2].tolist() == list(range(8))
    assert len(filler) == 20


def test_views_cannot_be_written() -> None:
    routes = mt.Routes.from_ids(SPEC, distinct_ids(3), tokens=[1, 2, 3])
    for view in (routes.ids, routes.reasons, routes.tokens):
        assert view is not None
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0


@pytest.mark.parametrize(("num_experts", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_ids_have_the_width_of_the_spec(num_experts: int, dtype: str) -> None:
    # case D01, D05
    spec = mt.RouteSpec([0], 1, num_experts)
    assert mt.Routes.from_ids(spec, np.array([[[0]], [[255]]])).ids.dtype == dtype


def test_numpy_and_torch_give_the_same() -> None:
    ids = distinct_ids(5)
    one = mt.Routes.from_ids(SPEC, ids, tokens=np.arange(5))
    other = mt.Routes.from_ids(SPEC, torch.from_numpy(ids), tokens=torch.arange(5))
    assert one == other
    assert torch.from_numpy(one.ids.copy()).shape == (5, 3, 2)


def test_masked_meta_and_sparse_arrays_are_refused_by_name() -> None:
    _, rec = new_store()
    masked = np.ma.masked_array([[0, 1]], mask=[[True, False]])  # type: ignore[no-untyped-call]
    for ids, error, name in (
        (masked, mt.WrongTypeError, "masked"),
        (torch.empty((1, 2), dtype=torch.int64, device="meta"), mt.UnsupportedError, "meta"),
        (torch.zeros((1, 2), dtype=torch.int64).to_sparse(), mt.UnsupportedError, "sparse"),
    ):
        with pytest.raises(error, match=f"ids: .*{name}"):
            rec.capture(1, ids)
