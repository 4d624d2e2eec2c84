"""Recorders on a device as Python sees them: what every build says, and what a GPU does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store

IDS = distinct_ids(6)


def device_store() -> tuple[mt.Store, mt.Recorder]:
    """A recorder on cuda:0, or the reason why there is none."""
    store = mt.Store(SPEC, num_slots=32)
    try:
        return store, mt.Recorder(store, max_rows=8, device="cuda:0")
    except mt.UnsupportedError as error:
        pytest.skip(str(error))


def cuda_torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU here")
    return torch


def test_without_a_device_the_error_says_why() -> None:
    store = mt.Store(SPEC, num_slots=32)
    with pytest.raises(mt.UnsupportedError, match="cuda:77: "):
        mt.Recorder(store, max_rows=8, device="cuda:77")  # which no machine has


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0x", "meta", None])
def test_devices_that_are_none_are_refused(device: Any) -> None:
    store = mt.Store(SPEC, num_slots=32)
    with pytest.raises(mt.InvalidArgumentError, match="device: expected cpu or cuda:N"):
        mt.Recorder(store, max_rows=8, device=device)
    with pytest.raises(mt.InvalidArgumentError, match="commit_path: expected mapped or packed"):
        mt.Recorder(store, max_rows=8, commit_path="pinned")


def test_sizes_are_known_without_a_device() -> None:
    ids = 8 * SPEC.row_bytes * 2  # int16 in the lane
    assert mt.Recorder.required_device_bytes(SPEC, max_rows=8) >= ids
    packed = mt.Recorder.required_device_bytes(SPEC, max_rows=8, lanes=2, commit_path="packed")
    assert packed >= 2 * (ids + 8 * (SPEC.row_bytes + 16))
    assert mt.Recorder.required_bytes(SPEC, num_slots=32, max_rows=8, device="cuda:0") > 0


def test_the_cpu_says_that_it_has_no_device() -> None:
    _, rec = new_store()
    assert rec.device == "cpu"
    for call in (
        lambda: rec.layer_buffer(1),
        lambda: rec.prepare([0]),
        lambda: rec.launch(),
        lambda: rec.capture_raw(1, 0, rows=1, columns=2, stride=2, dtype="int32"),
    ):
        with pytest.raises(mt.UnsupportedError, match="on the CPU"):
            call()


def test_streams_are_addresses_or_have_one() -> None:
    store, rec = new_store()
    rec.begin(stream=0)
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, IDS[:, column], stream=SimpleNamespace(cuda_stream=2**64 - 1))
    rec.commit(range(6), stream=None)
    assert np.array_equal(store.read(range(6)).ids, IDS)
    with pytest.raises(mt.WrongTypeError, match="stream"):
        rec.begin(stream="default")
    with pytest.raises(mt.WrongTypeError, match="stream"):
        rec.begin(stream=True)
    with pytest.raises(mt.OutOfRangeError, match="stream"):
        rec.begin(stream=-1)


def test_reports_of_the_cpu_have_landed() -> None:
    _, rec = new_store()
    rec.begin()
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, IDS[:, column])
    report = rec.commit(range(6)).report
    assert report.landed
    assert report.unwritten == {}
    assert report.num_out_of_range == 0


def test_host_memory_is_refused_by_a_device() -> None:
    _, rec = device_store()
    with pytest.raises(mt.InvalidArgumentError, match="ids: expected memory of cuda:0"):
        rec.capture(SPEC.layers[0], IDS[:, 0])


def test_tensors_on_a_device_are_recorded_there() -> None:
    store, rec = device_store()
    torch = cuda_torch()
    stream = torch.cuda.Stream()
    ids = torch.from_numpy(IDS.astype(np.int64)).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        rec.begin(stream=stream)
        for column, layer in enumerate(SPEC.layers):
            rec.capture(layer, ids[:, column], stream=stream)
        ticket = rec.commit(torch.arange(6, device="cuda"), version=3, stream=stream)
    ticket.wait()
    assert ticket.report.num_kept == 6
    routes = store.read(range(6))
    assert np.array_equal(routes.ids, IDS)
    assert routes.versions == [(0, 6, 3)]


def test_graphs_that_write_into_the_lane_are_replayed() -> None:
    store, rec = device_store()
    torch = cuda_torch()
    buffers = [torch.from_dlpack(rec.layer_buffer(layer)) for layer in SPEC.layers]
    assert buffers[0].shape == (8, SPEC.top_k)
    choice = torch.zeros(IDS.shape, dtype=torch.int16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for column, buffer in enumerate(buffers):
            buffer[:6].copy_(choice[:, column])
        rec.launch(stream=torch.cuda.current_stream())
    for step in range(5):
        ids = np.roll(IDS, step, axis=0)
        choice.copy_(torch.from_numpy(ids.astype(np.int16)))
        stream = torch.cuda.current_stream()
        rec.begin(stream=stream)
        ticket = rec.prepare(range(step, step + 6), stream=stream)
        graph.replay()
        ticket.wait()
        assert np.array_equal(store.read(range(step, step + 6)).ids, ids)


def test_addresses_between_two_ids_are_refused() -> None:
    _, rec = device_store()
    torch = cuda_torch()
    memory = torch.zeros(256, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream()
    shape = {"rows": 1, "columns": SPEC.top_k, "stride": SPEC.top_k, "dtype": "int32", "stream": stream}
    with pytest.raises(mt.InvalidArgumentError, match="ids: expected int32 at a multiple of 4 bytes"):
        rec.capture_raw(SPEC.layers[0], memory.data_ptr() + 2, **shape)
    rec.capture_raw(SPEC.layers[0], memory.data_ptr() + 4, **shape)


def test_importing_makes_nobody_wait() -> None:
    store, rec = device_store()
    torch = cuda_torch()
    asked: list[object] = []

    class Foreign:
        """A producer without torch's fast way."""

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, *, stream: object = None) -> Any:
            asked.append(stream)
            return self.tensor.__dlpack__(stream=stream)

    stream = torch.cuda.current_stream()
    ids = torch.from_numpy(IDS.astype(np.int64)).cuda()
    rec.begin(stream=stream)
    for column, layer in enumerate(SPEC.layers):
        rec.capture(layer, Foreign(ids[:, column]), stream=stream)
    ticket = rec.commit(Foreign(torch.arange(6, device="cuda")), stream=stream)
    ticket.wait()
    assert set(asked) == {-1}
    assert np.array_equal(store.read(range(6)).ids, IDS)
