"""One verdict for all ranks: an error of one is raised on all, before any of them waits for another.

    agree(error_of_this_rank or None, group)       # returns on all ranks, or raises the same error on all

Costs one all-reduce of a byte; what went wrong travels only if something did.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import moetape as mt

__all__ = ["agree", "device_of", "gather_if_any", "is_alone"]


def is_alone(group: Any = None) -> bool:
    """Tell whether a group (None = the world) has one rank."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1


def agree(error: mt.Error | None, group: Any = None) -> None:
    """Raise the first failing rank's error on all ranks of a group; all of them must call."""
    if is_alone(group):
        if error is not None:
            raise error
        return
    told = gather_if_any(None if error is None else (type(error).__name__, str(error)), group)
    failing = [(rank, one) for rank, one in enumerate(told) if one is not None]
    if not failing:
        return
    rank, (name, message) = failing[0]
    others = f" (and {len(failing) - 1} more ranks)" if len(failing) > 1 else ""
    raise getattr(mt, name)(f"rank {rank} of {len(told)}{others}: {message}") from error


def gather_if_any(value: Any, group: Any = None) -> list[Any]:
    """Give every rank's value to all ranks, or an empty list if it is None on all; all ranks must call."""
    if is_alone(group):
        return [] if value is None else [value]
    flag = torch.tensor([value is not None], dtype=torch.uint8, device=device_of(group))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    if not flag.item():
        return []
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, value, group=group)
    return told


def device_of(group: Any) -> torch.device:
    """Give a device that the group's backend can send from; the CPU where it can."""
    backend = str(dist.get_backend(group))
    if "gloo" in backend or "cpu" in backend:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
