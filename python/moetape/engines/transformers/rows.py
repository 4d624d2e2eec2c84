"""Where recorded rows are kept: stores that grow, and the columns of a batch that point into them.

A batch is B sequences fed column by column: each forward adds S columns. A cell is a token, its slot (-1: no
row) and whether it is real (padding is not). A sequence's rows are its real cells, in order.

One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetape import Recorder, Routes, RouteSpec, Store, Ticket, UnsupportedError

Slots = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNKNOWN_TOKEN = -1


class _Part:
    """One store of the pool, and the recorder that fills it. `base` is the pool's number of its slot 0."""

    def __init__(self, spec: RouteSpec, base: int, num_slots: int, max_rows: int, device: str) -> None:
        self.base = base
        self.num_slots = num_slots
        self.max_rows = max_rows
        self.store = Store(spec, num_slots=num_slots)
        try:
            self.recorder = Recorder(self.store, max_rows=max_rows, device=device)
        except UnsupportedError:  # a build without CUDA, or a spec that no device lane holds
            self.recorder = Recorder(self.store, max_rows=max_rows)
        self.newest: Ticket | None = None  # steps land in order
        self.num_used = 0
        self.num_leases = 0

    def fits(self, num_rows: int, num_slots: int) -> bool:
        return num_rows <= self.max_rows and self.num_used + num_slots <= self.num_slots


class Lease:
    """Keeps the slots of one forward; they are free again when the last holder lets go."""

    _part: _Part | None = None

    def __init__(self, part: _Part, num_slots: int) -> None:
        self.recorder = part.recorder
        self.first = part.base + part.num_used
        self.base = part.base
        part.num_used += num_slots
        part.num_leases += 1
        self._part = part

    def landed_with(self, ticket: Ticket) -> None:
        """Remember what says that the rows are there."""
        assert self._part is not None
        self._part.newest = ticket

    def __del__(self) -> None:
        if self._part is not None:  # built to the end
            self._part.num_leases -= 1


class Pool:
    """Slots without end: a store twice as large joins when the newest is full; an unused one leaves."""

    def __init__(self, spec: RouteSpec, num_slots: int, device: str = "cpu") -> None:
        self._spec = spec
        self._device = device
        self._parts = [_Part(spec, 0, num_slots, max_rows=256, device=device)]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(part.store.memory_bytes for part in self._parts)

    def lease(self, num_rows: int, num_slots: int) -> Lease:
        """Slots for `num_slots` rows of a forward whose routers see `num_rows`."""
        *older, newest = self._parts
        self._parts = [part for part in older if part.num_leases > 0] + [newest]
        if newest.num_leases == 0 and newest.num_used > 0:
            newest.store.reset()
            newest.num_used = 0
        if not newest.fits(num_rows, num_slots):
            larger = max(2 * newest.num_slots, num_slots)
            rows = max(newest.max_rows, 1 << (num_rows - 1).bit_length())
            newest = _Part(self._spec, newest.base + newest.num_slots, larger, rows, self._device)
            self._parts = [part for part in self._parts if part.num_leases > 0] + [newest]
        return Lease(newest, num_slots)

    def read(self, slots: Slots, start: int) -> Routes:
        """The routes of a sequence whose rows stand in these slots."""
        bases = [part.base for part in self._parts]
        owner = np.searchsorted(bases, slots, side="right") - 1
        # A cell without a slot is read where its neighbour before it is.
        for index in np.flatnonzero(slots < 0):
            owner[index] = owner[index - 1] if index else len(bases) - 1
        cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(slots)]
        routes: Routes | None = None
        for first, end in pairwise(cuts):
            part = self._parts[owner[first]] if len(slots) else self._parts[-1]
            local = np.where(slots[first:end] < 0, -1, slots[first:end] - part.base)
            if part.newest is not None:
                part.newest.wait()
            piece = part.store.read(local, start=start + first)
            routes = piece if routes is None else routes.extend(piece)
        assert routes is not None
        return routes


class _Columns:
    """A [B, columns] array that grows column by column; joined when it is looked at."""

    def __init__(self, cells: npt.NDArray[Any]) -> None:
        self._chunks = [cells]

    def append(self, cells: npt.NDArray[Any]) -> None:
        self._chunks.append(cells)

    def joined(self) -> npt.NDArray[Any]:
        if len(self._chunks) > 1:
            self._chunks = [np.concatenate(self._chunks, axis=1)]
        return self._chunks[0]


class Batch:
    """B sequences and all columns fed to them; `num_unseen` columns were fed before anybody recorded."""

    def __init__(self, wanted: Flags, num_unseen: int = 0) -> None:
        self.wanted = wanted
        self.num_unseen = num_unseen
        self.num_columns = num_unseen
        shape = (len(wanted), num_unseen)
        self._tokens = _Columns(np.full(shape, UNKNOWN_TOKEN, np.int64))
        self._slots = _Columns(np.full(shape, -1, np.int64))
        self._real = _Columns(np.ones(shape, np.bool_))
        self._leases: list[Lease] = []

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.wanted)

    @property
    def tokens(self) -> Tokens:
        """[B, columns]; UNKNOWN_TOKEN where only embeddings were fed."""
        return self._tokens.joined()

    @property
    def real(self) -> Flags:
        """[B, columns]; False for padding, as the newest attention mask has it."""
        return self._real.joined()

    def append(self, tokens: Tokens, slots: Slots, real: Flags, lease: Lease) -> None:
        """Add S columns. `real` covers all columns, or only the new ones."""
        self._tokens.append(tokens)
        self._slots.append(slots)
        self.num_columns += tokens.shape[1]
        if real.shape[1] == self.num_columns:
            self._real = _Columns(real)
        else:
            self._real.append(real)
        self._leases.append(lease)

    def truncate(self, num_columns: int) -> None:
        """Forget the columns that the cache forgot."""
        self.num_columns = num_columns
        self.num_unseen = min(self.num_unseen, num_columns)
        self._change(lambda cells: cells[:, :num_columns])

    def select(self, index: npt.NDArray[np.int64]) -> None:
        """Sequence i is now what sequence index[i] was."""
        self.wanted = self.wanted[index]
        self._change(lambda cells: cells[index])

    def fork(self) -> Batch:
        """Copy the batch; both go on from the same rows."""
        copied = Batch(self.wanted, self.num_unseen)
        copied.num_columns = self.num_columns
        copied._tokens, copied._slots = _Columns(self.tokens), _Columns(self._slots.joined())
        copied._real = _Columns(self.real)
        copied._leases = list(self._leases)
        return copied

    def _change(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        self._tokens = _Columns(change(self.tokens))
        self._slots = _Columns(change(self._slots.joined()))
        self._real = _Columns(change(self.real))

    def routes(self, pool: Pool, sequence: int, num_columns: int) -> Routes | None:
        """One sequence's rows of its first `num_columns` columns, with tokens where all are known."""
        if not self.wanted[sequence]:
            return None
        real = self.real[sequence, :num_columns]
        start = int(real[: self.num_unseen].sum())
        rows = np.flatnonzero(real)[start:]
        routes = pool.read(self._slots.joined()[sequence, rows], start)
        tokens = self.tokens[sequence, rows]
        return routes if (tokens < 0).any() else routes.with_tokens(tokens.astype(np.int32))
