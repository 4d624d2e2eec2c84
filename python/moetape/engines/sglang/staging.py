"""Where the ids of one forward wait until it has ended: in the recorder, or in device memory.

`begin` drops what a forward that never ended left; `capture` takes one layer's ids; `take` ends the forward
and gives what is to be finalized, whose rows are in the store after `finalize()`. One thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from moetape import AlreadyCapturedError, CapacityError, Recorder, Store, layout

Copy = Callable[[torch.Tensor], torch.Tensor]

NEVER_CAPTURED = -1  # an id below zero: the recorder refuses rows that hold it


@dataclass(frozen=True)
class Share:
    """Which rows of the batch are this rank's tokens: from `first` on. layout: None = the first ones."""

    first: int = 0
    layout: layout.Layout | None = None


class Deferred(Protocol):
    """What on_forward_end gives: device tensors to copy, then rows to put into the store."""

    def map_device_tensors(self, copy: Copy) -> None:
        """Replace each device tensor by copy(tensor), which may be asynchronous."""

    def finalize(self) -> None:
        """Put the rows into the store, once the copies are there. A second call does nothing."""


class Staging(Protocol):
    """See the module."""

    @property
    def counters(self) -> dict[str, int]: ...
    def begin(self) -> None: ...
    def capture(self, layer: int, ids: torch.Tensor) -> None: ...
    def take(self, slots: torch.Tensor, share: Share, version: int) -> Deferred: ...


class _Recording:
    """A recorder on the CPU that grows with the largest batch."""

    def __init__(self, store: Store, max_rows: int) -> None:
        self._store = store
        self._recorder = Recorder(store, max_rows=max_rows)
        self._counted: Counter[str] = Counter()

    @property
    def counters(self) -> dict[str, int]:
        counted = Counter(self._counted)
        counted.update(self._recorder.counters)
        return dict(counted)

    def _make_room(self, num_rows: int) -> None:
        if num_rows > self._recorder.max_rows:
            self._counted.update(self._recorder.counters)
            self._recorder = Recorder(self._store, max_rows=1 << (num_rows - 1).bit_length())


class HostStaging(_Recording):
    """CPU: ids go into a lane of the recorder at once, and into the store when the forward ends."""

    def __init__(self, store: Store, max_rows: int) -> None:
        super().__init__(store, max_rows)
        self._num_rows = 0

    def begin(self) -> None:
        self._recorder.begin()
        self._num_rows = 0

    def capture(self, layer: int, ids: torch.Tensor) -> None:
        num_rows = ids.shape[0]
        if self._num_rows == 0:  # the first layer
            self._make_room(num_rows)
        self._num_rows = num_rows
        try:
            self._recorder.capture(layer, ids)
        except AlreadyCapturedError:  # another forward, and the one before never ended
            self._recorder.begin()
            self._recorder.capture(layer, ids)

    def take(self, slots: torch.Tensor, share: Share, version: int) -> Deferred:
        num_rows, self._num_rows = self._num_rows, 0
        if num_rows == 0 and len(slots) == 0:
            return Landed()
        placed = share.layout or layout.graph_padded(len(slots), max(num_rows, len(slots)))
        self._recorder.commit(slots, layout=placed, version=version)
        return Landed()


class Landed:
    """Rows that are in the store already."""

    def map_device_tensors(self, copy: Copy) -> None:
        del copy

    def finalize(self) -> None:
        return None


class DeviceStaging(_Recording):
    """A device: ids wait in a buffer at a fixed address, so that graphs may hold the copies into it.

    Ids are int16 where they fit, half of what SGLang's own buffer holds and copies. After each forward its
    rows are set to NEVER_CAPTURED again: what a graph leaves out is missing, and not an older row.
    """

    def __init__(self, store: Store, max_rows: int, device: str) -> None:
        super().__init__(store, max_rows=1)
        spec = store.spec
        self._column = {layer: column for column, layer in enumerate(spec.layers)}
        dtype = torch.int16 if spec.num_experts <= 1 << 15 else torch.int32
        shape = (max_rows, spec.num_moe_layers, spec.top_k)
        self._buffer = torch.full(shape, NEVER_CAPTURED, dtype=dtype, device=device)
        self._is_used = False

    def begin(self) -> None:
        if self._is_used:
            self._clear()

    def _clear(self) -> None:
        self._buffer.fill_(NEVER_CAPTURED)
        self._is_used = False

    def capture(self, layer: int, ids: torch.Tensor) -> None:
        self._is_used = True
        max_rows, _, top_k = self._buffer.shape
        if layer not in self._column:
            self._store.spec.column_of(layer)  # raises with the layers that there are
        if ids.shape[0] > max_rows:
            raise CapacityError(f"capture: needs {ids.shape[0]} rows, the device buffer has {max_rows}")
        self._buffer[: ids.shape[0], self._column[layer]] = ids[:, :top_k]

    def take(self, slots: torch.Tensor, share: Share, version: int) -> Deferred:
        captured = self._buffer[share.first : share.first + len(slots)]
        if len(captured) < len(slots):
            raise CapacityError(
                f"forward: expected rows {share.first} to {share.first + len(slots)} in the device buffer, "
                f"which has {len(self._buffer)}"
            )
        output = Copied(self, slots.clone(), captured.clone(), version)
        self._clear()  # also of what a graph wrote without a call of capture
        return output

    def commit(self, slots: torch.Tensor, ids: torch.Tensor, version: int) -> None:
        """Put rows that are on the host into the store."""
        self._make_room(len(ids))
        self._recorder.begin()
        self._recorder.capture_all(ids, order="tlk")
        self._recorder.commit(slots, version=version)


class Copied:
    """Rows of one forward on their way from a device."""

    def __init__(self, staging: DeviceStaging, slots: torch.Tensor, ids: torch.Tensor, version: int) -> None:
        self._staging: DeviceStaging | None = staging
        self._slots, self._ids, self._version = slots, ids, version

    def map_device_tensors(self, copy: Copy) -> None:
        self._slots, self._ids = copy(self._slots), copy(self._ids)

    def finalize(self) -> None:
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.commit(self._slots.cpu(), self._ids.cpu(), self._version)
