"""Routes from the ranks that have them to the ranks that need them, by torch.distributed alone.

    plan, routes = exchange(plan, held, spec=spec, num_sequences=n)     # on every rank of the group
    ids, uses = plan.apply(routes)

For stacks without Ray, whose ranks each received some of the rollout. A rank sends what others ask for, and
gets no more than it needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import moetape as mt
from moetape import pieces
from moetape.pieces import Piece, Want
from moetape.trainers.agreement import agree, device_of, is_alone

__all__ = ["exchange"]

Answer = tuple[int, Piece, bytes]  # to which of the asker's wants


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
    holds or a layer that is not recorded, CorruptDataError.
    """
    error: mt.Error | None = None
    new_plan, wants = plan, list[Want]()
    try:
        new_plan, wants = pieces.wants(plan, spec)
        _check(wants, held, spec, num_sequences)
    except mt.Error as failure:
        error = failure
    agree(error, group)
    owners = _owners(sorted(held), spec, num_sequences, group)
    for want in wants:
        if want.sequence not in owners:
            error = mt.OutOfRangeError(f"sequence {want.sequence}: expected a rank that holds it, got none")
    agree(error, group)
    parts = _send(wants, owners, held, group)
    routes = []
    try:
        for want, answers in zip(wants, parts, strict=True):
            name = f"sequence {want.sequence}, from rank {owners[want.sequence]}"
            read = [pieces.read(piece, data, want, name) for piece, data in answers]
            routes.append(pieces.join(spec, want, read))
    except mt.Error as failure:
        error = failure
    agree(error, group)
    return new_plan, routes


def _check(wants: list[Want], held: Mapping[int, mt.Routes], spec: mt.RouteSpec, num_sequences: int) -> None:
    for sequence in [*held, *(want.sequence for want in wants)]:
        if not 0 <= sequence < num_sequences:
            raise mt.OutOfRangeError(f"sequence: expected 0 to {num_sequences - 1}, got {sequence}")
    for sequence, routes in held.items():
        if routes.spec.fingerprint != spec.fingerprint:
            raise mt.SpecMismatchError(f"sequence {sequence}: expected {spec}, got {routes.spec}")


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


def _send(
    wants: list[Want], owners: dict[int, int], held: Mapping[int, mt.Routes], group: Any
) -> list[list[tuple[Piece, bytes]]]:
    """Ask the owners and answer what others ask; gives what came for each want."""
    world = 1 if is_alone(group) else dist.get_world_size(group)
    asked: list[list[tuple[int, Want]]] = [[] for _ in range(world)]
    for index, want in enumerate(wants):
        asked[owners[want.sequence]].append((index, want))
    answers: list[list[Answer]] = [
        [(index, piece, data) for index, want in one for piece, data in _parts(held[want.sequence], want)]
        for one in _all_to_all(asked, group)
    ]
    found: list[list[tuple[Piece, bytes]]] = [[] for _ in wants]
    for one in _all_to_all(answers, group):
        for index, piece, data in one:
            found[index].append((piece, data))
    return found


def _parts(routes: mt.Routes, want: Want) -> list[tuple[Piece, bytes]]:
    """What is wanted and nothing else, in one piece if there are such rows."""
    start, end = max(want.start, routes.start), min(want.end, routes.end)
    return pieces.cut(pieces.select(routes.slice(start, end), want.layers)) if start < end else []


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
