"""verl's RouterReplay: Megatron's with a mask of the rows that are replayed; others keep a live choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

import moetape as mt
from moetape.trainers._instances import Instances
from moetape.trainers._microbatch import narrow
from moetape.trainers.megatron._router_replay import RouterReplay as MegatronRouterReplay
from moetape.trainers.megatron._router_replay import RouterReplayAction

__all__ = ["RouterReplay", "RouterReplayAction", "apply_router_replay_patch"]


class RouterReplay(MegatronRouterReplay):
    """Record and replay of one router; rows outside the mask are routed live, once for forward and backward.

    A router that was given no ids routes live under any action: verl's actions reach the routers of all
    models, and those of multi-token prediction. That all of a model have ids, set_router_replay_data checks.
    """

    router_instances: ClassVar[Instances[Any]] = Instances()
    global_router_replay_instances = router_instances

    def __init__(self) -> None:
        super().__init__()
        self.target_replay_mask: torch.Tensor | None = None
        self.replay_backward_mask_list: list[torch.Tensor | None] = []
        self._to_freeze = False  # the last of replay_backward_list awaits its forward's live choice

    def set_target_indices(self, topk_indices: torch.Tensor, replay_mask: torch.Tensor | None = None) -> None:
        """Set ids [rows, k] and mask bool [rows] of the next forward, and line them up for recomputation."""
        if replay_mask is None:
            self._checked(topk_indices)
        else:
            if replay_mask.dtype != torch.bool or tuple(replay_mask.shape) != tuple(topk_indices.shape[:1]):
                raise mt.WrongShapeError(
                    f"{self._name}: replay_mask: expected bool [{len(topk_indices)}] as the ids have rows, "
                    f"got {replay_mask.dtype} {list(replay_mask.shape)}"
                )
            self._checked(topk_indices[replay_mask] if topk_indices.device.type == "cpu" else topk_indices)
        self.target_topk_idx = topk_indices
        self.target_replay_mask = replay_mask
        self.replay_backward_list.append(topk_indices)
        self.replay_backward_mask_list.append(replay_mask)
        self._to_freeze = replay_mask is not None

    def clear_indices(self) -> None:
        super().clear_indices()
        self.target_replay_mask = None
        self.replay_backward_mask_list = []
        self._to_freeze = False

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        action = getattr(self.router_replay_action, "value", None)
        if action not in ("replay_forward", "replay_backward"):
            return super().get_replay_topk(scores, topk, num_groups, group_topk, default_compute_topk)

        def live() -> tuple[torch.Tensor, torch.Tensor]:
            if default_compute_topk is None:
                raise mt.InvalidArgumentError(
                    f"{self._name}: expected default_compute_topk for rows that are routed live, got none"
                )
            return default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)

        if self.target_topk_idx is None:
            return live()
        backward = action == "replay_backward"
        mask = None if backward else self.target_replay_mask
        if backward and self.replay_backward_mask_list and self.replay_backward_mask_list.pop(0) is not None:
            raise mt.NotCapturedError(
                f"{self._name}: expected a forward before recomputation, which keeps its live rows; got none"
            )
        ids = self._next(action, (scores.shape[0], topk), scores.shape[1]).to(scores.device, torch.int64)
        if mask is not None:
            ids = torch.where(mask.to(scores.device)[:, None], ids, live()[1])
            if self._to_freeze:
                self.replay_backward_list[-1] = ids.to(getattr(torch, narrow(scores.shape[1])))
                self.replay_backward_mask_list[-1] = None
        if not backward:
            self._to_freeze = False
        return scores.gather(1, ids), ids


def apply_router_replay_patch() -> None:
    """Give Megatron routers that are built from now on, with moe_enable_routing_replay, this RouterReplay.

    Megatron's own routing, aux losses and dispatchers stay as they are.
    """
    from megatron.core.transformer.moe import router

    known: Any = router
    if not hasattr(known, "RouterReplay"):
        raise mt.UnsupportedError(
            "router replay: expected a megatron-core with RouterReplay (0.16 or newer), got one without"
        )
    known.RouterReplay = RouterReplay
    RouterReplay.router_instances.clear()
