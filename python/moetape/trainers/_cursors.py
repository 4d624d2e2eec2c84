"""Ids of a router's forwards in their order, taken by a cursor of forwards and one of recomputation.

What slime and miles keep in each router. Rows of -1 have no record: they are routed live, and recomputation
gets what the forward chose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import moetape as mt
from moetape.trainers import _autograd as autograd


class Cursors:
    """One router's ids. top_indices_list holds [rows, k] of each micro-batch, on the CPU."""

    def __init__(self) -> None:
        self.forward_index = 0
        self.backward_index = 0
        self.top_indices_list: list[torch.Tensor] = []
        self._live: dict[int, torch.Tensor] = {}  # bool [rows] of micro-batches with rows without a record
        self._chosen: dict[int, torch.Tensor] = {}  # what the last forward took in those
        self.name = "router"

    def record(self, top_indices: torch.Tensor) -> None:
        """Add ids of a micro-batch: a copy on the CPU, pinned where there is CUDA. A row of -1 is missing."""
        if not isinstance(top_indices, torch.Tensor) or top_indices.is_floating_point():
            raise mt.WrongTypeError(f"{self.name}: expected a tensor of integers, got {top_indices!r:.60}")
        if top_indices.ndim != 2:
            raise mt.WrongShapeError(f"{self.name}: expected ids [rows, k], got {list(top_indices.shape)}")
        ids = torch.empty(top_indices.shape, dtype=top_indices.dtype, pin_memory=torch.cuda.is_available())
        ids.copy_(top_indices.detach())
        live = _missing(self.name, ids)
        if bool(live.any()):
            self._live[len(self.top_indices_list)] = live.pin_memory() if ids.is_pinned() else live
        self.top_indices_list.append(ids)

    def pop_forward(self) -> torch.Tensor:
        """The ids of the next forward."""
        ids = self._at(self.forward_index, "forward")
        self.forward_index += 1
        return ids

    def pop_backward(self) -> torch.Tensor:
        """The ids of the next recomputation."""
        ids = self._at(self.backward_index, "recomputation")
        self.backward_index += 1
        return ids

    def _at(self, index: int, what: str) -> torch.Tensor:
        if index >= len(self.top_indices_list):
            raise mt.NotCapturedError(
                f"{self.name}: expected ids for {what} {index}, got those of {len(self.top_indices_list)} "
                "micro-batches"
            )
        return self.top_indices_list[index]

    def clear(self) -> None:
        self.clear_forward()
        self.backward_index = 0
        self.top_indices_list = []
        self._live = {}

    def clear_forward(self) -> None:
        """Begin the forwards again, as after a pass over logprobs."""
        self.forward_index = 0
        self._chosen = {}

    def choose(
        self, stage: str, shape: tuple[int, int], scores: torch.Tensor, live: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The ids int64 [rows, k] = shape that the router takes in this stage; live() asks for its own."""
        backward = stage == "replay_backward"
        if not backward and autograd.in_backward():
            raise mt.ConflictError(
                f"{self.name}: expected stage replay_backward in recomputation, got replay_forward"
            )
        index = self.backward_index if backward else self.forward_index
        ids = self.pop_backward() if backward else self.pop_forward()
        if tuple(ids.shape) != shape:
            raise mt.WrongShapeError(
                f"{self.name}: expected ids [rows, k] = {list(shape)} as the router's, got {list(ids.shape)}"
            )
        if ids.numel() and int(ids.max()) >= scores.shape[1]:
            raise mt.OutOfRangeError(
                f"{self.name}: expected ids below {scores.shape[1]}, got {int(ids.max())}"
            )
        wide = ids.to(scores.device, non_blocking=True).long()
        if index not in self._live:
            return wide
        if backward:
            if index not in self._chosen:
                raise mt.NotCapturedError(
                    f"{self.name}: expected a forward before the recomputation of micro-batch {index}, "
                    "got none"
                )
            return self._chosen.pop(index).long()
        missing = self._live[index].to(scores.device, non_blocking=True)[:, None]
        chosen = torch.where(missing, live(), wide)
        self._chosen[index] = chosen.to(ids.dtype)
        return chosen


def _missing(name: str, ids: torch.Tensor) -> torch.Tensor:
    """Which rows are -1, bool [rows]; rows that cannot be right raise."""
    below = ids < 0
    missing = (ids == -1).all(dim=1)
    odd = below.any(dim=1) & ~missing
    ordered = ids.long().sort(dim=1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1) & ~missing
    for rows, error, expected in (
        (odd, mt.OutOfRangeError, "ids from 0, or -1 in all of a row without a record"),
        (repeated, mt.InvalidArgumentError, "different ids in a row (one without a record is -1)"),
    ):
        if bool(rows.any()):
            row = int(rows.nonzero()[0])
            raise error(f"{name}: expected {expected}, got {ids[row].tolist()} in row {row}")
    return missing


class Bridge:
    """Stands as a Megatron router's `router_replay`, and asks a function for the router's top-k.

    What stood there before answers when the function asks for the router's own choice.
    """

    def __init__(self, original: Any, topk_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._original, self._topk_of = original, topk_of

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def own(scores: torch.Tensor, topk: int, num_groups: Any = None, group_topk: Any = None) -> Any:
            if self._original is None:
                return default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            return self._original.get_replay_topk(scores, topk, num_groups, group_topk, default_compute_topk)

        values, ids = self._topk_of(own)(scores, topk, num_groups, group_topk)
        return values, ids
