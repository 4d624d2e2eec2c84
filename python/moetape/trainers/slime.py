"""slime's routing replay by its own names; miles has moetape.trainers.miles.

    from moetape.trainers.slime import RoutingReplay, register_routing_replay, fill_routing_replay
    MegatronTrainRayActor.fill_routing_replay = fill_routing_replay

Stages are told as slime tells them, by ENABLE_ROUTING_REPLAY and ROUTING_REPLAY_STAGE in the environment.
Rows without a record, the last token's and padding, are -1 and routed live, where slime invents experts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

import moetape as mt
from moetape.trainers._cursors import Bridge, Cursors
from moetape.trainers._instances import Instances
from moetape.trainers._slime_rows import Cut, fill

__all__ = [
    "RoutingReplay",
    "fill_routing_replay",
    "get_routing_replay_compute_topk",
    "prepare_routed_experts_for_routing_replay_rank",
    "register_routing_replay",
    "set_routing_replay",
]

_STAGES = ("fallthrough", "record", "replay_forward", "replay_backward")
_current: RoutingReplay | None = None


class RoutingReplay(Cursors):
    """One router's ids, with slime's lists and checks."""

    all_routing_replays: ClassVar[Instances[Any]] = Instances()

    def __init__(self) -> None:
        super().__init__()
        RoutingReplay.all_routing_replays.append(self)

    @staticmethod
    def assert_all_consumed() -> None:
        """Raise unless every router took all its ids once in forwards and once in recomputation."""
        odd = [
            f"{one.name}: forward {one.forward_index}, backward {one.backward_index} of "
            f"{len(one.top_indices_list)}"
            for one in RoutingReplay.all_routing_replays
            if {one.forward_index, one.backward_index} != {len(one.top_indices_list)}
        ]
        if odd:
            raise mt.ConflictError(f"routing replay: expected all ids taken once, got {'; '.join(odd[:16])}")

    @staticmethod
    def clear_all() -> None:
        for one in RoutingReplay.all_routing_replays:
            one.clear()

    @staticmethod
    def clear_all_forward() -> None:
        for one in RoutingReplay.all_routing_replays:
            one.clear_forward()


def set_routing_replay(replay: RoutingReplay | None) -> None:
    """Say whose ids get_routing_replay_compute_topk takes."""
    global _current
    _current = replay


def get_routing_replay_compute_topk(old_compute_topk: Callable[..., Any]) -> Callable[..., Any]:
    """compute_topk(scores, topk, num_groups, group_topk) that does what the stage says."""
    return _compute_topk(old_compute_topk, lambda: _current)


def _compute_topk(
    plain: Callable[..., Any], replay_of: Callable[[], RoutingReplay | None]
) -> Callable[..., Any]:
    def compute_topk(
        scores: torch.Tensor, topk: int, num_groups: int | None = None, group_topk: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def live() -> tuple[torch.Tensor, torch.Tensor]:
            values, ids = plain(scores, topk, num_groups=num_groups, group_topk=group_topk)
            return values, ids

        stage = _stage()
        replay = replay_of() if stage != "fallthrough" else None
        if stage == "fallthrough":
            return live()
        if replay is None:
            raise mt.NotCapturedError(
                f"routing replay: expected a registered router in stage {stage}, got none"
            )
        if stage == "record":
            values, ids = live()
            replay.record(ids.to(torch.int16) if scores.shape[1] <= 32768 else ids)
            return values, ids
        if not replay.top_indices_list and any(one.top_indices_list for one in replay.all_routing_replays):
            return live()  # another model's, or one of multi-token prediction
        ids = replay.choose(stage, (scores.shape[0], topk), scores, lambda: live()[1])
        return scores.gather(1, ids), ids

    return compute_topk


def _stage() -> str:
    if os.environ.get("ENABLE_ROUTING_REPLAY", "0") != "1":
        return "fallthrough"
    stage = os.environ.get("ROUTING_REPLAY_STAGE")
    if stage not in _STAGES:
        raise mt.InvalidArgumentError(
            f"ROUTING_REPLAY_STAGE: expected one of {', '.join(_STAGES)}, got {stage}"
        )
    return stage


def register_routing_replay(module: torch.nn.Module) -> None:
    """Let a Megatron router record and replay; without ENABLE_ROUTING_REPLAY=1 it stays as it is."""
    if os.environ.get("ENABLE_ROUTING_REPLAY", "0") != "1" or hasattr(module, "routing_replay"):
        return
    known: Any = module
    config = getattr(known, "config", None)
    if getattr(config, "moe_router_fusion", False):
        raise mt.UnsupportedError("routing replay: expected moe_router_fusion off, got True: it ignores ids")
    replay = RoutingReplay()
    known.routing_replay = replay
    if hasattr(known, "router_replay"):
        known.router_replay = Bridge(known.router_replay, lambda plain: _compute_topk(plain, lambda: replay))
    known.register_forward_pre_hook(lambda *_: set_routing_replay(replay))


def fill_routing_replay(
    self: Any, data_iterator: Sequence[Any], num_microbatches: Sequence[int], rollout_data: dict[str, Any]
) -> None:
    """Give the actor's routers the ids of all micro-batches, as its method of this name does; all or nothing.

    rollout_routed_experts holds for each sequence an array [n - 1, layers, k], or moetape.Routes, or rows on
    their way (decode_rows). Takes it out of rollout_data.
    """
    key = "rollout_routed_experts"
    micro_batches = read_micro_batches(self.args, data_iterator, num_microbatches, rollout_data, key)
    fill(self.model, micro_batches, _replay_of)
    del rollout_data[key]


def read_micro_batches(
    args: Any, data_iterator: Sequence[Any], num_microbatches: Sequence[int], rollout_data: Any, key: str
) -> list[Any]:
    """(routes, tokens, cut) of each micro-batch; the iterators stand at their beginning again."""
    if key not in rollout_data:
        raise mt.NotCapturedError(f"rollout_data: expected {key} to replay, got {sorted(rollout_data)}")
    for iterator in data_iterator:
        iterator.reset()
    found = []
    for _ in range(sum(num_microbatches)):
        batch = data_iterator[0].get_next([key, "tokens", "max_seq_lens"])
        max_length = batch["max_seq_lens"][0] if batch.get("max_seq_lens") else None
        found.append((batch[key], batch["tokens"], Cut.here(args, max_length)))
    for iterator in data_iterator:
        iterator.reset()
    return found


def _replay_of(router: Any) -> RoutingReplay:
    replay = getattr(router.module, "routing_replay", None)
    if not isinstance(replay, RoutingReplay):
        raise mt.NotCapturedError(
            f"router {router.name} (layer {router.layer}): expected register_routing_replay, got {replay!r}"
        )
    replay.name = f"router {router.name} (layer {router.layer})"
    return replay


def prepare_routed_experts_for_routing_replay_rank(
    rollout_routed_experts: Sequence[torch.Tensor],
    tokens: Sequence[torch.Tensor],
    *,
    num_experts: int,
    data_pad_size_multiplier: int,
    sequence_parallel: bool,
    allgather_cp: bool,
    cp_rank: int,
    cp_size: int,
    tp_rank: int,
    tp_size: int,
) -> torch.Tensor:
    """A rank's rows [rows, layers, k] of packed sequences [n - 1, layers, k]; -1 where there is no record."""
    cut = Cut(data_pad_size_multiplier, cp_size, cp_rank, tp_size, tp_rank, sequence_parallel, allgather_cp)
    for at, (routes, ids) in enumerate(zip(rollout_routed_experts, tokens, strict=True)):
        if len(routes) != len(ids) - 1:
            raise mt.WrongShapeError(
                f"routes[{at}]: expected {len(ids) - 1} rows, one less than tokens, got {len(routes)}"
            )
        if routes.numel() and int(routes.max()) >= num_experts:
            raise mt.OutOfRangeError(
                f"routes[{at}]: expected ids below {num_experts}, got {int(routes.max())}"
            )
    row_ids = torch.from_numpy(cut.rows([len(ids) for ids in tokens]).ids)
    padded = [torch.cat([one, one.new_full((1, *one.shape[1:]), -1)]) for one in rollout_routed_experts]
    starts = torch.tensor([0, *(len(one) for one in padded)]).cumsum(0)
    sequence, position = (row_ids >> 32) - 1, row_ids & 0xFFFFFFFF
    rows = torch.cat(padded)[torch.where(row_ids == 0, 0, starts[sequence] + position)]
    rows[row_ids == 0] = -1
    return rows
