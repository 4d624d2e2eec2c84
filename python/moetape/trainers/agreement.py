"""One verdict for all ranks: an error of one is raised on all, before any of them waits for another.

    agree(error_of_this_rank or None, group)       # returns on all ranks, or raises the same error on all

Costs one all-reduce of 24 bytes; what went wrong travels only if something did.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist

import moetape as mt

__all__ = ["agree", "device_of", "gather_if_any", "is_alone"]


def is_alone(group: Any = None) -> bool:
    """Tell whether a group (None = the world) has one rank."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1


def agree(error: mt.Error | None, group: Any = None, *, same: str = "") -> None:
    """Raise the first failing rank's error on all ranks of a group; all of them must call.

    same: a text that must be equal on all ranks, such as settings: ConflictError on all where it is not.
    """
    if is_alone(group):
        if error is not None:
            raise error
        return
    number = int.from_bytes(hashlib.blake2b(same.encode(), digest_size=7).digest()) if same else 0
    failed, largest, smallest = _verdict(error is not None, number, group)
    if not failed and largest == smallest:
        return
    told = _gather((None if error is None else (type(error).__name__, str(error)), same), group)
    failing = [(rank, one) for rank, (one, _) in enumerate(told) if one is not None]
    if failing:
        rank, (name, message) = failing[0]
        others = f" (and {len(failing) - 1} more ranks)" if len(failing) > 1 else ""
        raise getattr(mt, name)(f"rank {rank} of {len(told)}{others}: {message}") from error
    rank, other = next((rank, one) for rank, (_, one) in enumerate(told) if one != told[0][1])
    raise mt.ConflictError(f"rank {rank} of {len(told)}: expected {told[0][1]} as rank 0 has, got {other}")


def gather_if_any(value: Any, group: Any = None) -> list[Any]:
    """Give every rank's value to all ranks, or an empty list if it is None on all; all ranks must call."""
    if is_alone(group):
        return [] if value is None else [value]
    is_any, _, _ = _verdict(value is not None, 0, group)
    return _gather(value, group) if is_any else []


def _verdict(flag: bool, number: int, group: Any) -> tuple[bool, int, int]:
    """(whether the flag is set on any rank, the largest number, the smallest)."""
    told = torch.tensor([flag, number, -number], dtype=torch.int64, device=device_of(group))
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    is_any, largest, negated = told.tolist()
    return bool(is_any), largest, -negated


def _gather(value: Any, group: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, value, group=group)
    return told


def device_of(group: Any) -> torch.device:
    """Give a device that the group's backend can send from; the CPU where it can."""
    backend = str(dist.get_backend(group))
    if "gloo" in backend or "cpu" in backend:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
