"""What one micro-batch needs on one rank: its rows in the order of Megatron's routers, checked on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.replay import FILL, LIVE, REPLAYED, Plan
from moetape.trainers._microbatch import Counts, narrow
from moetape.trainers._sources import check_spec, no_rows, other_tokens, rows_of
from moetape.trainers.policy import ReplayPolicy

Ids64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatchRoutes:
    """The routes of one micro-batch, and whose token stands where in this rank's part of it.

    routes: one of each sequence (Routes, or a RowSource such as decode_rows gives).
    row_ids: int64 of the shape of the rank's input_ids, [batch, length] or [rows] where sequences are packed:
    (sequence + 1) << 32 | position, 0 or -1 for padding; sequence indexes `routes`. Cut for context
    parallelism by the very code that cuts the tokens, and not cut for sequence parallelism. Or the mt.Error
    that came of making them: forward_step raises it on all ranks.
    tokens: the rank's input_ids, to hold them against the token ids that routes carry; optional.
    lengths: tokens of each sequence on all ranks together, to hold the routes' ends against; optional.
    """

    routes: Sequence[mt.Routes | mt.RowSource]
    row_ids: Any
    tokens: Any = None
    lengths: Sequence[int] | None = None


@dataclass(frozen=True)
class Shard:
    """The rank's part of the rows in sequence parallelism."""

    size: int = 1
    rank: int = 0

    def rows(self, what: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rank's rows of [batch, length] or [rows], as its routers see them: row s * batch + b."""
        if array.ndim not in (1, 2):
            raise mt.WrongShapeError(f"{what}: expected [batch, length] or [rows], got {list(array.shape)}")
        length = array.shape[-1]
        if length % self.size:
            raise mt.WrongShapeError(
                f"{what}: expected a length that {self.size} ranks of sequence parallelism can share, "
                f"got {length}"
            )
        rows = np.ascontiguousarray(array.T).reshape(-1)
        part = len(rows) // self.size
        return rows[self.rank * part : (self.rank + 1) * part]


@dataclass
class Planned:
    """A micro-batch of a chunk on the CPU, ready to go to the device in one copy."""

    shape: tuple[int, int, int]  # [layers, rows, k]
    dtype: torch.dtype  # of the ids
    buffer: torch.Tensor  # uint8: ids in the narrow type, then a byte a row: replayed, then one: real
    counts: Counts = field(default_factory=Counts)
    all_replayed: bool = False
    has_padding: bool = False

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(ids [layers, rows, k], replayed bool [rows], real bool [rows]) by one asynchronous copy."""
        buffer = self.buffer.to(device, non_blocking=True)
        num_rows = self.shape[1]
        ids, replayed, real = buffer.split([len(buffer) - 2 * num_rows, num_rows, num_rows])
        return ids.view(self.dtype).view(self.shape), replayed.view(torch.bool), real.view(torch.bool)


@dataclass
class Checked:
    """The plans of one micro-batch for every chunk of the rank, and the sequences whose data is bad."""

    chunks: list[Planned]
    bad: dict[int, mt.Error] = field(default_factory=dict)


def plan_micro_batch(
    given: MicroBatchRoutes,
    *,
    name: str,
    spec: mt.RouteSpec,
    chunks: Sequence[Sequence[int]],
    shard: Shard,
    policy: ReplayPolicy,
    dropped: Collection[int] = (),
    first_expert: int = 0,
) -> Checked:
    """Check and plan a micro-batch; sequences of `dropped` are routed live. Errors of the whole raise."""
    sources = _typed(given.routes, f"{name}: routes")
    row_ids = shard.rows(f"{name}: row_ids", _int64(given.row_ids, f"{name}: row_ids"))
    if not sources and not np.isin(row_ids, (0, -1)).all():
        raise mt.OutOfRangeError(f"{name}: routes: expected one of each sequence of row_ids, got none")
    nothing = no_rows(spec)
    checked = Checked([])
    too_long = dict(_too_long(given, sources, name))
    for sequence, source in enumerate(sources):
        if sequence in dropped:
            sources[sequence] = nothing
            continue
        try:
            if sequence in too_long:
                raise too_long[sequence]
            sources[sequence] = _usable(source, f"{name}: routes[{sequence}]", spec, policy)
        except mt.Error as error:
            checked.bad[sequence] = error
            sources[sequence] = nothing
    sources = sources or [nothing]  # a micro-batch of padding alone
    for layers in chunks:
        plan = Plan.from_row_ids(row_ids, layers=list(layers))
        try:
            planned, uses = _apply(plan, sources, spec, len(layers), first_expert)
        except mt.Error:
            if not _drop_unreadable(plan, sources, nothing, checked.bad, name):
                raise
            planned, uses = _apply(plan, sources, spec, len(layers), first_expert)
        if not checked.chunks:
            rows = _Rows(row_ids, uses, sources, set(dropped) | set(checked.bad))
            rows.check(checked.bad, policy, name)
            if given.tokens is not None:
                _verify(given, plan, sources, shard, checked.bad, name)
        _mark(planned, rows, policy)
        checked.chunks.append(planned)
    return checked


def _typed(routes: Any, what: str) -> list[Any]:
    if isinstance(routes, mt.Routes | mt.RowSource) or not isinstance(routes, Sequence):
        raise mt.WrongTypeError(f"{what}: expected a sequence of Routes, got {type(routes).__name__}")
    for index, one in enumerate(routes):
        if not isinstance(one, mt.Routes | mt.RowSource):
            raise mt.WrongTypeError(f"{what}[{index}]: expected Routes, got {type(one).__name__}")
    return list(routes)


def _too_long(given: MicroBatchRoutes, sources: Sequence[Any], name: str) -> Iterator[tuple[int, mt.Error]]:
    """Yield (sequence, error) of routes that go on behind their sequence's last token."""
    if given.lengths is None:
        return
    if len(given.lengths) != len(sources):
        raise mt.WrongShapeError(
            f"{name}: routes: expected one of each of {len(given.lengths)} sequences, got {len(sources)}"
        )
    for sequence, (source, length) in enumerate(zip(sources, given.lengths, strict=True)):
        if (end := _end(source)) > length:
            error = mt.WrongShapeError(
                f"{name}: routes[{sequence}]: expected an end within the sequence's {length} tokens, "
                f"got {end}"
            )
            yield sequence, error


def _drop_unreadable(
    plan: Plan, sources: list[Any], nothing: mt.Routes, bad: dict[int, mt.Error], name: str
) -> bool:
    """Find the texts whose rows this rank cannot read, and put nothing in their place."""
    found = False
    for sequence, source in enumerate(sources):
        if isinstance(source, mt.Routes):
            continue
        try:
            rows_of(plan, sequence).apply(sources, dtype="int64")
        except mt.Error as error:
            bad[sequence] = type(error)(f"{name}: routes[{sequence}]: {error}")
            sources[sequence] = nothing
            found = True
    return found


def _int64(array: Any, what: str) -> Ids64:
    if isinstance(array, mt.Error):
        raise array
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().numpy()
    elif isinstance(array, mt.replay.RowIds):
        array = array.ids
    ids: npt.NDArray[Any] = np.asarray(array)
    if ids.dtype != np.int64:
        raise mt.WrongTypeError(f"{what}: expected int64, got {ids.dtype}")
    return ids


def _usable(source: Any, what: str, spec: mt.RouteSpec, policy: ReplayPolicy) -> Any:
    check_spec(source, what, spec)
    if policy.min_version is None:
        return source
    if not isinstance(source, mt.Routes):
        raise mt.UnsupportedError(
            f"{what}: expected Routes, which tell versions, got {type(source).__name__}"
        )
    return source.without(version_below=policy.min_version)


def _apply(
    plan: Plan, sources: list[Any], spec: mt.RouteSpec, num_layers: int, first_expert: int
) -> tuple[Planned, npt.NDArray[np.uint8]]:
    dtype = np.dtype(narrow(spec.num_experts))
    shape = (num_layers, plan.num_rows, spec.top_k)
    ids_bytes = int(np.prod(shape)) * dtype.itemsize
    buffer = torch.empty(
        ids_bytes + 2 * plan.num_rows, dtype=torch.uint8, pin_memory=torch.cuda.is_available()
    )
    out = buffer.numpy()[:ids_bytes].view(dtype).reshape(shape)
    _, uses = plan.apply(sources, dtype=dtype.name, out=out, first_expert=first_expert % spec.num_experts)
    return Planned(shape, getattr(torch, dtype.name), buffer), np.asarray(uses)


class _Rows:
    """What the rows of a micro-batch are, by sequence."""

    def __init__(
        self, row_ids: Ids64, uses: npt.NDArray[np.uint8], sources: list[Any], out: Collection[int]
    ) -> None:
        self.uses = uses
        self.num_sequences = len(sources)
        self.sequence = np.where(uses == FILL, -1, (row_ids >> 32) - 1)
        self.position = row_ids & 0xFFFFFFFF
        ends = np.array([_end(source) for source in sources] + [-1], dtype=np.int64)
        live = uses == LIVE
        self.out = np.isin(self.sequence, list(out))
        self.beyond = live & ~self.out & (self.position == ends[self.sequence])
        self.missing = live & ~self.out & ~self.beyond

    def check(self, bad: dict[int, mt.Error], policy: ReplayPolicy, name: str) -> None:
        """Add sequences that miss more than the policy lets them."""
        limit = 0.0 if policy.missing == "error" else policy.max_missing
        if limit is None or not self.missing.any():
            return
        num_rows = np.bincount(self.sequence[self.sequence >= 0], minlength=self.num_sequences)
        num_missing = np.bincount(self.sequence[self.missing], minlength=self.num_sequences)
        for sequence in np.flatnonzero(num_missing / np.maximum(num_rows, 1) > limit).tolist():
            first = int(self.position[self.missing & (self.sequence == sequence)].min())
            share = f"at least {1 - limit:.0%} of" if limit else "all"
            bad[sequence] = mt.MissingRowsError(
                f"{name}: routes[{sequence}]: expected recorded rows for {share} its "
                f"{num_rows[sequence]} tokens here, got {num_missing[sequence]} without; the first is "
                f"position {first}"
            )


def _end(source: Any) -> int:
    return int(source.end if isinstance(source, mt.Routes) else source.start + len(source))


def _verify(
    given: MicroBatchRoutes,
    plan: Plan,
    sources: list[Any],
    shard: Shard,
    bad: dict[int, mt.Error],
    name: str,
) -> None:
    """Hold the rows' tokens against those that routes carry, sequence by sequence."""
    tokens = given.tokens
    array = tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
    if array.shape != _int64(given.row_ids, "row_ids").shape:
        raise mt.WrongShapeError(f"{name}: tokens: expected the shape of row_ids, got {list(array.shape)}")
    rows = shard.rows(f"{name}: tokens", array).astype(np.int32)
    # Texts carry no tokens.
    routes = [one if isinstance(one, mt.Routes) else no_rows(one.spec) for one in sources]
    for sequence, error in other_tokens(plan, routes, rows):
        bad.setdefault(sequence, mt.ConflictError(f"{name}: routes[{sequence}]: {error}"))


def _mark(planned: Planned, rows: _Rows, policy: ReplayPolicy) -> None:
    """Say which rows take the planned ids, and count them."""
    uses = rows.uses
    takes = uses == REPLAYED
    if policy.missing == "fill":
        takes = takes | rows.missing | rows.beyond
    if policy.padding == "fill":
        takes = takes | (uses == FILL)
    real = uses != FILL
    num_rows = len(uses)
    tail = planned.buffer.numpy()[-2 * num_rows :] if num_rows else np.empty(0, np.uint8)
    tail[:num_rows], tail[num_rows:] = takes, real
    planned.all_replayed, planned.has_padding = bool(takes.all()), not bool(real.all())
    planned.counts = Counts(
        replayed=int((uses == REPLAYED).sum()),
        missing=int(rows.missing.sum()),
        beyond=int(rows.beyond.sum()),
        padding=int((~real).sum()),
        dropped=int(rows.out.sum()),
    )
