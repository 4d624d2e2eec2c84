"""Where the ids of one forward wait until it has ended: in the recorder, or in device memory.

`begin` drops what a forward that never ended left; `capture` takes one layer's ids; `take` ends the forward
and gives what is to be finalized, whose rows are in the store after `finalize()`. What becomes of slots
between forwards is said as it happens, in the engine's order: `hand_out` (a new owner: no older row counts),
`clear` (all of them) and `move` (their KV went elsewhere, and takes its rows along). After `settle` the store
knows of it. One thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from moetape import AlreadyCapturedError, CapacityError, Recorder, Store, layout

Copy = Callable[[torch.Tensor], torch.Tensor]

NEVER_CAPTURED = -1  # an id below zero: the recorder refuses rows that hold it
MAX_UNTOLD = 256  # forwards whose slots' new owners the store may not know of yet


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
    def hand_out(self, slots: torch.Tensor) -> None: ...
    def clear(self) -> None: ...
    def move(self, target: torch.Tensor, source: torch.Tensor) -> None: ...
    def settle(self) -> None: ...


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

    def hand_out(self, slots: torch.Tensor) -> None:
        _disown(self._store, slots)

    def clear(self) -> None:
        self._store.reset()

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        _move(self._store, target, source)

    def settle(self) -> None:
        return None


def _disown(store: Store, slots: torch.Tensor, as_of: int | None = None) -> None:
    """No older row stays in the slots; where they cannot be told, in none."""
    try:
        store.invalidate(slots, as_of=as_of)
    except Exception:
        store.reset(as_of=as_of)
        raise


def _move(store: Store, target: torch.Tensor, source: torch.Tensor, step: int | None = None) -> None:
    """Rows go with their KV; where that fails, no older row stays in the targets."""
    moved = target != source
    target, source = target[moved], source[moved]
    try:
        store.move(source, target, step=step)
    except Exception:
        _disown(store, target, step)
        raise


class Landed:
    """Rows that are in the store already."""

    def map_device_tensors(self, copy: Copy) -> None:
        del copy

    def finalize(self) -> None:
        return None


@dataclass(eq=False)
class _HandedOut:
    """Slots with a new owner, on their device: rows of steps up to as_of count no more."""

    as_of: int
    pieces: list[torch.Tensor] = field(default_factory=list)

    def tell(self, store: Store, slots: torch.Tensor | None = None) -> None:
        """slots: the pieces, where they are on the host already; else this waits for the device."""
        _disown(store, torch.cat(self.pieces).cpu() if slots is None else slots, self.as_of)


class DeviceStaging(_Recording):
    """A device: ids wait in a buffer at a fixed address, so that graphs may hold the copies into it.

    Ids are int16 where they fit, half of what SGLang's own buffer holds and copies. After each forward its
    rows are set to NEVER_CAPTURED again: what a graph leaves out is missing, and not an older row.

    Forwards are numbered when they are launched, and finalized later: a slot that is handed out between two
    of them loses the rows of all that were launched before, whenever these arrive. The numbers of slots come
    to the host with the ids of the next forward, so that nobody waits for them.
    """

    _STEPS = 2  # numbers of one forward: its rows, and what moves them

    def __init__(self, store: Store, max_rows: int, device: str) -> None:
        super().__init__(store, max_rows=1)
        spec = store.spec
        self._column = {layer: column for column, layer in enumerate(spec.layers)}
        dtype = torch.int16 if spec.num_experts <= 1 << 15 else torch.int32
        shape = (max_rows, spec.num_moe_layers, spec.top_k)
        self._buffer = torch.full(shape, NEVER_CAPTURED, dtype=dtype, device=device)
        self._is_used = False
        self._step = 0  # of the newest forward
        self._newest: Copied | None = None  # its rows, until they are finalized
        self._handed_out = _HandedOut(self._last_step)  # since the newest forward
        self._untold: list[_HandedOut] = []  # before it

    @property
    def _last_step(self) -> int:
        return self._step + self._STEPS - 1

    def begin(self) -> None:
        if self._is_used:
            self._empty()

    def _empty(self) -> None:
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
        self._step += self._STEPS
        handed_out, self._handed_out = self._handed_out, _HandedOut(self._last_step)
        if handed_out.pieces:
            self._untold.append(handed_out)
        captured = self._buffer[share.first : share.first + len(slots)]
        if len(captured) < len(slots):
            raise CapacityError(
                f"forward: expected rows {share.first} to {share.first + len(slots)} in the device buffer, "
                f"which has {len(self._buffer)}"
            )
        self._newest = Copied(self, self._step, slots.clone(), captured.clone(), version, handed_out)
        self._empty()  # also of what a graph wrote without a call of capture
        return self._newest

    def hand_out(self, slots: torch.Tensor) -> None:
        if len(self._untold) >= MAX_UNTOLD:  # an engine that drops its results
            self.settle()
        self._handed_out.pieces.append(slots.clone())  # the engine's may be a view of all that are free

    def clear(self) -> None:
        self._store.reset(as_of=self._last_step)

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._newest is None:
            _move(self._store, target.cpu(), source.cpu(), self._last_step)
        else:
            self._newest.moves.append((target.clone(), source.clone()))

    def settle(self) -> None:
        untold, self._untold = self._untold, []
        for handed_out in untold:
            handed_out.tell(self._store)

    def finalize(self, copied: Copied) -> None:
        """Put what is on the host into the store, in the order in which it happened."""
        if copied is self._newest:
            self._newest = None
        if copied.handed_out in self._untold:
            self._untold.remove(copied.handed_out)
            copied.handed_out.tell(self._store, copied.new_owners.cpu())
        self._make_room(len(copied.ids))
        self._recorder.begin()
        self._recorder.capture_all(copied.ids.cpu(), order="tlk")
        self._recorder.commit(copied.slots.cpu(), step=copied.step, version=copied.version)
        if copied.moves:
            target, source = (torch.cat(each).cpu() for each in zip(*copied.moves, strict=True))
            _move(self._store, target, source, copied.step + 1)


class Copied:
    """Rows of one forward on their way from a device, and what was said of slots before and behind it."""

    def __init__(
        self,
        staging: DeviceStaging,
        step: int,
        slots: torch.Tensor,
        ids: torch.Tensor,
        version: int,
        handed_out: _HandedOut,
    ) -> None:
        self._staging: DeviceStaging | None = staging
        self.step, self.slots, self.ids, self.version = step, slots, ids, version
        self.handed_out = handed_out
        self.new_owners = torch.cat(handed_out.pieces) if handed_out.pieces else slots[:0]
        self.moves: list[tuple[torch.Tensor, torch.Tensor]] = []

    def map_device_tensors(self, copy: Copy) -> None:
        self.slots, self.ids, self.new_owners = map(copy, (self.slots, self.ids, self.new_owners))
        self.moves = [(copy(target), copy(source)) for target, source in self.moves]

    def finalize(self) -> None:
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.finalize(self)
