"""Routes from the ranks that have them to the ranks that need them, by torch.distributed alone.

    plan, routes = exchange(plan, held, spec=spec, num_sequences=n)     # on every rank of the group
    ids, uses = plan.apply(routes)

For stacks without Ray, whose ranks each received some of the rollout. A rank sends what others ask for, and
gets no more than it needs.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import moetape as mt
from moetape import pieces
from moetape.pieces import Piece, Want
from moetape.trainers.agreement import agree, device_of, is_alone

__all__ = ["exchange"]

Question = tuple[int, Want]  # which of the asker's wants
Answer = tuple[int, Piece, bytes]
T = TypeVar("T")


def exchange(
    plan: mt.replay.Plan,
    held: Mapping[int, mt.Routes],
    *,
    spec: mt.RouteSpec,
    num_sequences: int,
    group: Any = None,
) -> tuple[mt.replay.Plan, list[mt.Routes]]:
    """Give what plan.needs() names, and the plan of the same rows over it, as moetape.ray.fetch does.

    held: {sequence: Routes} that this rank has; sequences are counted over the whole group, from 0 to
    num_sequences. All ranks of the group (None: the world) must call, each with its own plan and the same
    spec and num_sequences. A sequence that several ranks hold is sent by the first of them.

    What is wrong on one rank is raised on all: SpecMismatchError, OutOfRangeError for a sequence that nobody
    holds or a layer that is not recorded, CorruptDataError. With other ranks, what is no moetape.Error (a
    wrong type) becomes an InvalidArgumentError.
    """
    new_plan, wants = _on_all(group, lambda: _checked(plan, held, spec, num_sequences))
    owners = _owners(sorted(held), spec, num_sequences, group)
    asked = _all_to_all(_on_all(group, lambda: _asked(wants, owners, group)), group)
    answers = _all_to_all(_on_all(group, lambda: [_answers(one, held) for one in asked]), group)
    routes = _on_all(group, lambda: _joined(wants, answers, owners, spec))
    return new_plan, routes or [pieces.no_rows(spec, spec.layers)]


def _on_all(group: Any, work: Callable[[], T]) -> T:
    """Give what this rank's work gives, if it failed on none; all ranks must call."""
    error: mt.Error | None = None
    try:
        found = work()
    except mt.Error as caught:
        error = caught
    except Exception as caught:  # whatever it is, other ranks wait for this one's verdict
        if is_alone(group):
            raise
        error = mt.InvalidArgumentError(f"exchange: {type(caught).__name__}: {caught}")
    agree(error, group)
    return found


def _checked(
    plan: mt.replay.Plan, held: Mapping[int, mt.Routes], spec: mt.RouteSpec, num_sequences: int
) -> tuple[mt.replay.Plan, list[Want]]:
    """What pieces.wants gives, if this rank may ask for it and may send what it holds."""
    new_plan, wants = pieces.wants(plan, spec)
    for sequence in [*held, *(want.sequence for want in wants)]:
        if not 0 <= sequence < num_sequences:
            raise mt.OutOfRangeError(f"sequence: expected 0 to {num_sequences - 1}, got {sequence}")
    for sequence, routes in held.items():
        if routes.spec.fingerprint != spec.fingerprint:
            raise mt.SpecMismatchError(f"sequence {sequence}: expected {spec}, got {routes.spec}")
    return new_plan, wants


def _owners(held: list[int], spec: mt.RouteSpec, num_sequences: int, group: Any) -> dict[int, int]:
    """The first rank that holds each sequence. Ranks that call otherwise are a SpecMismatchError on all."""
    mine = (spec.fingerprint, num_sequences, held)
    told: list[Any] = [mine]
    if not is_alone(group):
        told = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, mine, group=group)
    owners: dict[int, int] = {}
    for rank, (fingerprint, number, sequences) in enumerate(told):
        if (fingerprint, number) != told[0][:2]:
            raise mt.SpecMismatchError(
                f"rank {rank}: expected the spec {told[0][0]:016x} and {told[0][1]} sequences, as on rank 0, "
                f"got {fingerprint:016x} and {number}"
            )
        for sequence in sequences:
            owners.setdefault(sequence, rank)
    return owners


def _asked(wants: list[Want], owners: dict[int, int], group: Any) -> list[list[Question]]:
    """What this rank asks of each rank."""
    asked: list[list[Question]] = [[] for _ in range(1 if is_alone(group) else dist.get_world_size(group))]
    for index, want in enumerate(wants):
        if want.sequence not in owners:
            raise mt.OutOfRangeError(f"sequence {want.sequence}: expected a rank that holds it, got none")
        asked[owners[want.sequence]].append((index, want))
    return asked


def _answers(asked: list[Question], held: Mapping[int, mt.Routes]) -> list[Answer]:
    return [(index, *part) for index, want in asked for part in _parts(held[want.sequence], want)]


def _parts(routes: mt.Routes, want: Want) -> list[tuple[Piece, bytes]]:
    """What is wanted and nothing else, in one piece if there are such rows."""
    start, end = max(want.start, routes.start), min(want.end, routes.end)
    return pieces.cut(pieces.select(routes.slice(start, end), want.layers)) if start < end else []


def _joined(
    wants: list[Want], answers: list[list[Answer]], owners: dict[int, int], spec: mt.RouteSpec
) -> list[mt.Routes]:
    """What came for each want, checked."""
    parts: list[list[mt.Routes]] = [[] for _ in wants]
    for index, piece, data in itertools.chain(*answers):
        want = wants[index]
        name = f"sequence {want.sequence}, from rank {owners[want.sequence]}"
        parts[index].append(pieces.read(piece, data, want, name))
    return [pieces.join(spec, want, some) for want, some in zip(wants, parts, strict=True)]


def _all_to_all(values: list[Any], group: Any) -> list[Any]:
    """Send values[r] to rank r; gives what each rank sent here."""
    if is_alone(group):
        return values
    device = device_of(group)
    texts = [
        torch.frombuffer(bytearray(pickle.dumps(value, protocol=5)), dtype=torch.uint8) for value in values
    ]
    sizes = torch.tensor([len(text) for text in texts], device=device)
    coming = torch.empty_like(sizes)
    dist.all_to_all_single(coming, sizes, group=group)
    lengths = coming.tolist()
    received = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    dist.all_to_all_single(
        received, torch.cat(texts).to(device), lengths, [len(text) for text in texts], group=group
    )
    return [pickle.loads(one.numpy()) for one in received.cpu().split(lengths)]
