"""Where ids go from a router's hook: to a recorder on the CPU or on the device that the ids lie on."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from moetape import Recorder
from moetape.models.routers import Router


def capture_ids(recorder: Recorder, layer: int, ids: torch.Tensor, lane: int = 0) -> None:
    """Capture a router's ids [n, K] in its hook.

    A recorder on a device reads them there, on the current stream, and nothing waits; one on the CPU gets a
    copy.
    """
    ids = ids.detach()
    if recorder.device == "cpu":
        recorder.capture(layer, ids.cpu(), lane=lane)
    else:
        recorder.capture(layer, ids, lane=lane, stream=current_stream(recorder))


def current_stream(recorder: Recorder) -> int | None:
    """The address of torch's current stream on a recorder's device; None on the CPU."""
    device = recorder.device
    return None if device == "cpu" else int(torch.cuda.current_stream(torch.device(device)).cuda_stream)


def device_of(routers: Iterable[Router]) -> str:
    """The one CUDA device on which all routers choose, as Recorder takes it; else "cpu"."""
    devices = {
        tensor.device
        for router in routers
        for tensor in (*router.module.parameters(), *router.module.buffers())
    }
    if len(devices) != 1:
        return "cpu"
    (device,) = devices
    return f"cuda:{device.index}" if device.type == "cuda" else "cpu"
