"""What one forward of a transformers model takes: its rows, checked on the CPU and counted under a policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.models.forward import ForwardInputs
from moetape.replay import FILL, LIVE, REPLAYED, Plan
from moetape.trainers import _alignment as alignment
from moetape.trainers._microbatch import Counts, narrow
from moetape.trainers._sources import check_spec, no_rows, other_tokens
from moetape.trainers.policy import ReplayPolicy

_JITTER = ("jitter_noise", "moe_jitter_eps")  # of Mixtral and MiniMax, of DBRX
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Given:
    """What replay() was given: routes, one per sequence, and whose token stands where."""

    routes: Sequence[mt.Routes]
    attention_mask: Any = None
    row_ids: alignment.RowIds | None = None
    allow_short: bool = False


@dataclass(eq=False)
class ForwardPlan:
    """A forward's ids and the rows that take them, on the CPU; the sequences whose data is bad, and why."""

    shape: tuple[int, int, int]  # [layers, rows, k]
    dtype: torch.dtype  # of the ids
    buffer: torch.Tensor  # uint8: ids in the narrow type, then a byte a row: whether it takes them
    takes_all: bool
    counts: Counts
    bad: dict[int, mt.Error] = field(default_factory=dict)

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids [layers, rows, k], takes bool [rows]) by one asynchronous copy."""
        buffer = self.buffer.to(device, non_blocking=True)
        ids, takes = buffer.split([len(buffer) - self.shape[1], self.shape[1]])
        return ids.view(self.dtype).view(self.shape), takes.view(torch.bool)


def plan_forward(
    given: Given,
    call: ForwardInputs,
    *,
    spec: mt.RouteSpec,
    layers: Sequence[int],
    policy: ReplayPolicy,
    dropped: Collection[int] = (),
) -> ForwardPlan:
    """Check and plan a forward; sequences of `dropped` are routed live. Errors of the whole batch raise."""
    sources = _typed(given.routes)
    bad: dict[int, mt.Error] = {}
    row_ids = _row_ids(given, call, sources, set(dropped), bad)
    for sequence, source in enumerate(sources):
        if sequence not in dropped:
            try:
                check_spec(source, f"routes[{sequence}]", spec)
            except mt.SpecMismatchError as error:
                bad.setdefault(sequence, error)
        if sequence in dropped or sequence in bad:
            sources[sequence] = no_rows(spec)
        elif policy.min_version is not None:
            sources[sequence] = source.without(version_below=policy.min_version)
    plan = Plan.from_row_ids(row_ids, layers=list(layers))
    shape = (len(layers), plan.num_rows, spec.top_k)
    dtype = np.dtype(narrow(spec.num_experts))
    ids_bytes = int(np.prod(shape)) * dtype.itemsize
    buffer = torch.empty(ids_bytes + plan.num_rows, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    out = buffer.numpy()[:ids_bytes].view(dtype).reshape(shape)
    _, uses = plan.apply(sources, dtype=dtype.name, out=out)
    rows = _Rows(row_ids, np.asarray(uses), sources, set(dropped) | set(bad))
    if not given.allow_short:
        rows.check_ends(bad)
    rows.check_missing(bad, policy)
    if not call.is_embedded and any(one.tokens is not None for one in sources):
        tokens = call.tokens.detach().reshape(-1).to("cpu", torch.int32).numpy()
        for sequence, other in other_tokens(plan, sources, tokens):
            bad.setdefault(sequence, other)
    if not bad:
        rows.check_batch(policy)
    takes = rows.takes(policy)
    buffer.numpy()[ids_bytes:] = takes
    return ForwardPlan(
        shape,
        getattr(torch, dtype.name),
        buffer,
        bool(takes.all()),
        rows.counts(),
        dict(sorted(bad.items())),
    )


def refuse_jitter(model: torch.nn.Module, routers: Collection[str], policy: ReplayPolicy) -> None:
    """Refuse noise on the input of `routers` (or their blocks) in training, unless the policy allows it."""
    if "jitter" in policy.allow:
        return
    for name in sorted({*routers, *(router.rpartition(".")[0] for router in routers)}):
        module = model.get_submodule(name)
        for setting in _JITTER:
            noise = getattr(module, setting, None)
            if module.training and isinstance(noise, int | float) and noise > 0:
                raise mt.UnsupportedError(
                    f"replay: {name}: expected no noise on the router's input, got {setting}={noise}; "
                    "ReplayPolicy(allow={'jitter'}) lets it be"
                )


def _typed(routes: Any) -> list[mt.Routes]:
    if isinstance(routes, mt.Routes) or not isinstance(routes, Sequence):
        raise mt.WrongTypeError(f"routes: expected a sequence of Routes, got {type(routes).__name__}")
    for index, one in enumerate(routes):
        if not isinstance(one, mt.Routes):
            raise mt.WrongTypeError(f"routes[{index}]: expected Routes, got {type(one).__name__}")
    return list(routes)


def _row_ids(
    given: Given,
    call: ForwardInputs,
    routes: Sequence[mt.Routes],
    dropped: Collection[int],
    bad: dict[int, mt.Error],
) -> alignment.RowIds:
    if given.row_ids is not None:
        alignment.check_row_ids_shape(call, given.row_ids)
        row_ids = given.row_ids
    else:
        mask = call.attention_mask if given.attention_mask is None else given.attention_mask
        row_ids, num_tokens = alignment.row_ids_of_mask(call, mask)
        for sequence, error in alignment.wrong_lengths(routes, num_tokens, given.allow_short):
            if sequence not in dropped:
                bad[sequence] = error
    return np.ascontiguousarray(row_ids).reshape(-1)


class _Rows:
    """What the rows of a forward are, by sequence. out: sequences that are taken out of replay."""

    def __init__(
        self,
        row_ids: alignment.RowIds,
        uses: npt.NDArray[np.uint8],
        routes: Sequence[mt.Routes],
        out: Collection[int],
    ) -> None:
        self.uses = uses
        self.real = uses != FILL
        self.num_sequences = len(routes)
        self.sequence = np.where(self.real, (row_ids >> 32) - 1, -1)
        self.position = row_ids & 0xFFFFFFFF
        self.ends = np.array([one.end for one in routes] + [-1], dtype=np.int64)
        ends = self.ends[self.sequence]
        self.out = np.isin(self.sequence, list(out))
        live = (uses == LIVE) & ~self.out
        self.beyond = live & (self.position >= ends)
        self.behind_last = live & (self.position > ends)
        self.missing = live & ~self.beyond
        short = np.isin(self.sequence, self.sequence[self.behind_last])
        self.uncovered = self.missing | (self.beyond & short)

    def check_ends(self, bad: dict[int, mt.Error]) -> None:
        """Add sequences with positions behind the one that follows their routes' last."""
        for sequence in np.unique(self.sequence[self.behind_last]).tolist():
            first = int(np.flatnonzero(self.behind_last & (self.sequence == sequence))[0])
            bad.setdefault(
                sequence,
                mt.WrongShapeError(
                    f"row_ids: expected positions up to {self.ends[sequence]} of sequence {sequence}, whose "
                    f"routes end there, got {self.position[first]}; allow_short=True routes the rest live"
                ),
            )

    def check_missing(self, bad: dict[int, mt.Error], policy: ReplayPolicy) -> None:
        """Add sequences that miss more rows than the policy lets them."""
        limit = 0.0 if policy.missing == "error" else policy.max_missing
        if limit is None or not self.uncovered.any():
            return
        num_rows = np.bincount(self.sequence[self.real], minlength=self.num_sequences)
        num_missing = np.bincount(self.sequence[self.uncovered], minlength=self.num_sequences)
        for sequence in np.flatnonzero(num_missing / np.maximum(num_rows, 1) > limit).tolist():
            first = int(self.position[self.uncovered & (self.sequence == sequence)].min())
            allowed = f"for all but {limit:.0%} of" if limit else "for all of"
            error = mt.MissingRowsError(
                f"replay: expected recorded rows {allowed} the {num_rows[sequence]} tokens of sequence "
                f"{sequence}, got {num_missing[sequence]} without; the first is sequence {sequence} position "
                f"{first}"
            )
            bad.setdefault(sequence, error)

    def check_batch(self, policy: ReplayPolicy) -> None:
        """Hold the missing rows of the batch, those of sequences taken out among them, against the policy."""
        limit = policy.max_missing_in_batch
        num_missing, num_real = int((self.uncovered | self.out).sum()), int(self.real.sum())
        if limit is not None and num_missing / max(num_real, 1) > limit:
            raise mt.MissingRowsError(
                f"replay: expected at most {limit:.0%} of the batch's {num_real} tokens without a recorded "
                f"row, got {num_missing}"
            )

    def takes(self, policy: ReplayPolicy) -> Flags:
        takes: Flags = self.uses == REPLAYED
        if policy.missing == "fill":
            takes = takes | self.missing | self.beyond
        if policy.padding == "fill":
            takes = takes | ~self.real
        return takes

    def counts(self) -> Counts:
        return Counts(
            replayed=int((self.uses == REPLAYED).sum()),
            missing=int(self.missing.sum()),
            beyond=int(self.beyond.sum()),
            padding=int((~self.real).sum()),
            dropped=int(self.out.sum()),
        )
