"""Megatron's RouterReplay by its own names, for stacks that drive it or a copy of it; its faults are errors.

    router.router_replay = RouterReplay()          # or moe_enable_routing_replay with this class in its place
    RouterReplay.set_replay_data(ids)              # [rows, k] of each router, in the order of the instances
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

As in Megatron, data of recomputation is first in, first out, and the caller switches the action between
forward and backward. attach() needs neither. Otherwise than there: instances that are gone leave the list;
ids may be of any integer type; ids that cannot be right, data that is not there, and an action that does not
fit are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

import torch

import moetape as mt
from moetape.trainers import _autograd as autograd
from moetape.trainers._instances import Instances


class RouterReplayAction(Enum):
    """What routers do: note their choice, take the ids set last, or take those of the next recomputation."""

    RECORD = "record"
    REPLAY_FORWARD = "replay_forward"
    REPLAY_BACKWARD = "replay_backward"


class RouterReplay:
    """Record and replay of one router. Ids are [rows, k] in the router's row order, s * batch + b.

    A class of its own list, such as trainers.verl has, gives itself other global_router_replay_instances.
    """

    global_router_replay_instances: ClassVar[Instances[Any]] = Instances()

    @classmethod
    def set_replay_data(cls, all_layers_topk_indices: Sequence[torch.Tensor]) -> None:
        """Give every instance its ids; all are checked before any is set."""
        instances = list(cls.global_router_replay_instances)
        if len(all_layers_topk_indices) != len(instances):
            raise mt.WrongShapeError(
                f"replay data: expected ids of {len(instances)} routers, got {len(all_layers_topk_indices)}"
            )
        pairs = list(zip(instances, all_layers_topk_indices, strict=True))
        for instance, ids in pairs:
            instance._checked(ids)
        for instance, ids in pairs:
            instance.set_target_indices(ids)

    @classmethod
    def get_recorded_data(cls) -> list[torch.Tensor | None]:
        return [one.get_recorded_indices() for one in cls.global_router_replay_instances]

    @classmethod
    def clear_global_indices(cls) -> None:
        for one in cls.global_router_replay_instances:
            one.clear_indices()

    @classmethod
    def set_global_router_replay_action(cls, router_replay_action: RouterReplayAction) -> None:
        for one in cls.global_router_replay_instances:
            one.set_router_replay_action(router_replay_action)

    @classmethod
    def clear_global_router_replay_action(cls) -> None:
        for one in cls.global_router_replay_instances:
            one.clear_router_replay_action()

    @classmethod
    def clear_global_router_replay_instances(cls) -> None:
        cls.global_router_replay_instances.clear()

    @classmethod
    def set_global_static_buffers(cls, static_buffer: torch.Tensor) -> None:
        """Give instance i the slice [:, i] of a buffer [rows, instances, k] to record into."""
        instances = list(cls.global_router_replay_instances)
        if static_buffer.shape[1] != len(instances):
            raise mt.WrongShapeError(
                f"static buffer: expected {len(instances)} layers as instances, got {static_buffer.shape[1]}"
            )
        for index, one in enumerate(instances):
            one.set_static_buffer(static_buffer[:, index, :])

    @classmethod
    def clear_global_static_buffers(cls) -> None:
        for one in cls.global_router_replay_instances:
            one.clear_static_buffer()

    def __init__(self) -> None:
        self.target_topk_idx: torch.Tensor | None = None
        self.recorded_topk_idx: torch.Tensor | None = None
        self.router_replay_action: RouterReplayAction | None = None
        self.replay_backward_list: list[torch.Tensor] = []
        self.static_buffer: torch.Tensor | None = None
        self.layer_number: int | None = None  # Megatron's, from 1
        self.global_router_replay_instances.append(self)

    def set_target_indices(self, topk_indices: torch.Tensor) -> None:
        """Set the ids of the next forward, and line them up for its recomputation."""
        self._checked(topk_indices)
        self.target_topk_idx = topk_indices
        self.replay_backward_list.append(topk_indices)

    def get_recorded_indices(self) -> torch.Tensor | None:
        return self.recorded_topk_idx

    def record_indices(self, topk_indices: torch.Tensor) -> None:
        """Keep a router's choice; in the static buffer, if one is set."""
        if self.static_buffer is None:
            self.recorded_topk_idx = topk_indices
            return
        num_rows = len(topk_indices)
        if num_rows > len(self.static_buffer):
            raise mt.CapacityError(
                f"{self._name}: expected at most {len(self.static_buffer)} rows as the static buffer holds, "
                f"got {num_rows}"
            )
        self.static_buffer[:num_rows].copy_(topk_indices)
        self.recorded_topk_idx = self.static_buffer[:num_rows]

    def clear_indices(self) -> None:
        self.recorded_topk_idx = None
        self.target_topk_idx = None
        self.replay_backward_list = []

    def set_router_replay_action(self, router_replay_action: RouterReplayAction) -> None:
        self.router_replay_action = router_replay_action

    def clear_router_replay_action(self) -> None:
        self.router_replay_action = None

    def set_static_buffer(self, buffer: torch.Tensor) -> None:
        self.static_buffer = buffer

    def clear_static_buffer(self) -> None:
        self.static_buffer = None

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores at the ids, ids), both [rows, k], by the action. scores are [rows, experts]."""
        action = getattr(self.router_replay_action, "value", None)  # Megatron's own enum does as well
        if action in ("replay_forward", "replay_backward"):
            ids = self._next(action, (scores.shape[0], topk), scores.shape[1]).to(scores.device, torch.int64)
            return scores.gather(1, ids), ids
        if default_compute_topk is None:
            raise mt.InvalidArgumentError(
                f"{self._name}: expected default_compute_topk without replay, got none"
            )
        values, ids = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if action == "record":
            self.record_indices(ids)
        return values, ids

    def _next(self, action: str, shape: tuple[int, int], num_experts: int) -> torch.Tensor:
        if action == "replay_backward":
            if not self.replay_backward_list:
                raise mt.NotCapturedError(
                    f"{self._name}: expected ids of a forward to recompute, got none left"
                )
            ids = self.replay_backward_list.pop(0)
        elif autograd.in_backward():
            raise mt.ConflictError(
                f"{self._name}: expected REPLAY_BACKWARD in recomputation, got REPLAY_FORWARD, whose ids are "
                "those of the last forward"
            )
        elif self.target_topk_idx is None:
            raise mt.NotCapturedError(f"{self._name}: expected ids set before REPLAY_FORWARD, got none")
        else:
            ids = self.target_topk_idx
        if tuple(ids.shape) != shape:
            raise mt.WrongShapeError(
                f"{self._name}: expected ids [rows, k] = {list(shape)} as the router's, got {list(ids.shape)}"
            )
        if ids.device.type == "cpu" and ids.numel() and int(ids.long().max()) >= num_experts:
            raise mt.OutOfRangeError(
                f"{self._name}: expected ids below {num_experts}, got {int(ids.long().max())}"
            )
        return ids

    def _checked(self, ids: Any) -> None:
        """Refuse ids that cannot be right; those on a device are not looked at, which would wait for it."""
        if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
            kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise mt.WrongTypeError(f"{self._name}: expected a tensor of integers, got {kind}")
        if ids.ndim != 2:
            raise mt.WrongShapeError(f"{self._name}: expected ids [rows, k], got {list(ids.shape)}")
        if ids.device.type != "cpu" or not ids.numel():
            return
        wide = ids.long()
        if bool((wide < 0).any()):
            raise mt.OutOfRangeError(f"{self._name}: expected ids from 0, got {int(wide.min())}")
        ordered = wide.sort(dim=1).values
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1)
        if bool(repeated.any()):
            row = int(repeated.nonzero()[0])
            raise mt.InvalidArgumentError(
                f"{self._name}: expected different ids in a row, got {wide[row].tolist()} in row {row}"
            )

    @property
    def _name(self) -> str:
        if self.layer_number is None:
            alive = list(self.global_router_replay_instances)
            return f"router {alive.index(self)}" if self in alive else "router"
        return f"router of layer {self.layer_number - 1}"
