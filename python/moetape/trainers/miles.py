"""miles' routing replay by its own names (miles-rl 0.0.2, miles.utils.replay_base).

    from moetape.trainers.miles import RoutingReplayManager, all_replay_managers, routing_replay_manager
    MegatronTrainRayActor._fill_replay_data = fill_replay_data

Rows without a record are -1, as in miles, but routed live: miles gives them running experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import moetape as mt
from moetape.trainers._cursors import Bridge, Cursors
from moetape.trainers._instances import Instances
from moetape.trainers._slime_rows import fill
from moetape.trainers.slime import read_micro_batches

__all__ = [
    "BaseReplayManager",
    "Replay",
    "RoutingReplayManager",
    "all_replay_managers",
    "fill_replay_data",
    "routing_replay_manager",
]

Replay = Cursors
_STAGES = ("fallthrough", "record", "replay_forward", "replay_backward")


class BaseReplayManager:
    """The replays of a kind of choice, and what all of them do now: `enabled` and `stage`."""

    name = ""
    filename = ""
    data_key = ""
    if_sp_region = True
    enable_check_replay_result = False
    replay_check_threshold = 1e-2

    def __init__(self) -> None:
        self.replays: Instances[Replay] = Instances()
        self.current: Replay | None = None
        self.enabled = False
        self.stage = "fallthrough"

    def create_replay(self) -> Replay:
        replay = Replay()
        self.replays.append(replay)
        return replay

    def set_current(self, replay: Replay) -> None:
        self.current = replay

    def get_current(self) -> Replay | None:
        return self.current

    def clear_all(self) -> None:
        for replay in self.replays:
            replay.clear()

    def clear_all_forward(self) -> None:
        for replay in self.replays:
            replay.clear_forward()

    def get_topk_fn(self, old_topk_fn: Callable[..., Any], return_probs: bool) -> Callable[..., Any]:
        """top-k(scores, topk, ...) that does what the stage says: (values, ids), or ids alone."""
        return self._topk_fn(old_topk_fn, return_probs, self.get_current)

    def _topk_fn(
        self, plain: Callable[..., Any], return_probs: bool, replay_of: Callable[[], Replay | None]
    ) -> Callable[..., Any]:
        def topk_fn(scores: torch.Tensor, topk: int, *args: Any, **kwargs: Any) -> Any:
            def live() -> torch.Tensor:
                told = plain(scores, topk, *args, **kwargs)
                ids: torch.Tensor = told[1] if return_probs else told
                return ids

            if self.stage not in _STAGES:
                raise mt.InvalidArgumentError(
                    f"{self.name} replay: stage: expected one of {', '.join(_STAGES)}, got {self.stage}"
                )
            if not self.enabled or self.stage == "fallthrough":
                return plain(scores, topk, *args, **kwargs)
            replay = replay_of()
            if replay is None:
                raise mt.NotCapturedError(
                    f"{self.name} replay: expected a registered module in stage {self.stage}, got none"
                )
            if self.stage == "record":
                told = plain(scores, topk, *args, **kwargs)
                ids = told[1] if return_probs else told
                replay.record(ids.to(torch.int16) if scores.shape[1] <= 32768 else ids)
                return told
            if not replay.top_indices_list and any(one.top_indices_list for one in self.replays):
                return plain(scores, topk, *args, **kwargs)
            ids = replay.choose(self.stage, (scores.shape[0], topk), scores, live)
            if self.enable_check_replay_result:
                self.check_replay_result(plain, scores, topk, ids, *args, **kwargs)
            return (scores.gather(1, ids), ids) if return_probs else ids

        return topk_fn

    def register_to_module(self, module: torch.nn.Module, attr_name: str) -> None:
        """Give a module its replay; a Megatron router asks it from then on. Nothing where not enabled."""
        if not self.enabled:
            return
        known: Any = module
        if getattr(getattr(known, "config", None), "moe_router_fusion", False):
            raise mt.UnsupportedError(
                "routing replay: expected moe_router_fusion off, got True: it ignores ids"
            )
        replay = self.create_replay()
        setattr(module, attr_name, replay)
        if hasattr(known, "router_replay"):
            known.router_replay = Bridge(
                known.router_replay, lambda plain: self._topk_fn(plain, True, lambda: replay)
            )
        known.register_forward_pre_hook(lambda *_: self.set_current(replay))

    def check_replay_result(
        self,
        old_topk_fn: Callable[..., Any],
        scores: torch.Tensor,
        topk: int,
        top_indices: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Raise if more than replay_check_threshold of the rows share no expert with the live choice."""
        live = old_topk_fn(scores, topk, *args, **kwargs)
        live = live[1] if isinstance(live, tuple) else live
        strangers = ~(live[:, :, None] == top_indices[:, None, :]).any(dim=(1, 2))
        share = float(strangers.float().mean()) if len(strangers) else 0.0
        if share > self.replay_check_threshold:
            raise mt.ConflictError(
                f"{self.name} replay: expected at most {self.replay_check_threshold:.2%} of rows without an "
                f"expert of the live choice, got {share:.2%}; the first is row {int(strangers.nonzero()[0])}"
            )


class RoutingReplayManager(BaseReplayManager):
    """The routers' replays."""

    name = "routing"
    filename = "routing_replay.pt"
    data_key = "rollout_routed_experts"


routing_replay_manager = RoutingReplayManager()
all_replay_managers = [routing_replay_manager]


def fill_replay_data(
    self: Any,
    data_iterator: Sequence[Any],
    num_microbatches: Sequence[int],
    rollout_data: dict[str, Any],
    data_key: str,
    replay_list: Any,
    register_replay_list_func: Any = None,
    if_sp_region: bool = True,
) -> None:
    """Give the actor's routers the ids of all micro-batches, as its _fill_replay_data does; all or nothing.

    Routers are found by their layer number, so the order of replay_list does not matter, and
    register_replay_list_func is not asked. Takes data_key out of rollout_data.
    """
    if not if_sp_region:
        raise mt.UnsupportedError("replay: expected data of routers (if_sp_region), got another kind's")
    micro_batches = read_micro_batches(self.args, data_iterator, num_microbatches, rollout_data, data_key)

    def replay_of(router: Any) -> Replay:
        replay = getattr(router.module, "routing_replay", None)
        if not isinstance(replay, Replay) or not any(replay is one for one in replay_list):
            raise mt.NotCapturedError(
                f"router {router.name} (layer {router.layer}): expected a replay of the list, got {replay!r}"
            )
        replay.name = f"router {router.name} (layer {router.layer})"
        return replay

    fill(self.model, micro_batches, replay_of)
    del rollout_data[data_key]
