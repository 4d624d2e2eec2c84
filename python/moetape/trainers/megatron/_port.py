"""What stands in a Megatron router's place for replay: hands it the ids of the micro-batch that runs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch

import moetape as mt
from moetape.trainers import _autograd as autograd
from moetape.trainers._microbatch import MicroBatch
from moetape.trainers.megatron._checkpoint import current
from moetape.trainers.megatron._routers import MegatronRouter
from moetape.trainers.policy import ReplayPolicy

_AUX_LOSSES = ("_apply_aux_loss", "_apply_seq_aux_loss", "_apply_global_aux_loss")


class RankMicroBatch(MicroBatch):
    """A micro-batch of one model chunk. real: bool [rows], None where no row is padding."""

    def __init__(
        self,
        chunk: Any,
        policy: ReplayPolicy,
        report: Callable[[mt.Error], None],
        names: dict[int, str],
        recorded: torch.Tensor,
        replayed: torch.Tensor,
        all_replayed: bool,
        real: torch.Tensor | None,
    ) -> None:
        super().__init__(names, recorded, replayed, all_replayed)
        self.chunk = chunk
        self.policy = policy
        self.report = report  # of errors that must wait until all ranks can raise
        self.real = real


class _Routed(threading.local):
    """What the router has just chosen in this thread."""

    micro_batch: RankMicroBatch | None = None
    ids: torch.Tensor | None = None
    live_ids: torch.Tensor | None = None


class _Around:
    """A router's method with `around` in front of it."""

    def __init__(self, plain: Callable[..., Any], around: Callable[..., Any]) -> None:
        self._plain, self._around = plain, around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._plain, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """Give a copied router its own plain method, not that of the original."""
        return copy.deepcopy(self._plain, memo)


class Port:
    """Stands as `router.router_replay`, whose names it has. Native while no micro-batch of its chunk runs."""

    router_replay_action = None  # Megatron's switch for all routers does not reach this one

    def __init__(self, router: MegatronRouter, chunk: Any) -> None:
        self.layer, self.name = router.layer, router.name
        self.layer_number = router.layer + 1
        self._chunk = chunk
        self._routed = _Routed()
        module: Any = router.module
        self._counts_bias = bool(module.enable_expert_bias)
        self._undo: list[Callable[[], None]] = []
        self._original = module.router_replay
        module.router_replay = self
        for name in _AUX_LOSSES:
            self._wrap(module, name, self._aux_loss)
        self._wrap(module, "_apply_expert_bias", self._expert_bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Give a copied router what it had before."""
        return self._original

    def _wrap(self, module: Any, name: str, around: Callable[..., Any]) -> None:
        wrapped = _Around(getattr(module, name), around)
        setattr(module, name, wrapped)

        def undo() -> None:
            if module.__dict__.get(name) is wrapped:
                delattr(module, name)

        self._undo.append(undo)

    def remove(self, module: Any) -> None:
        if module.router_replay is self:
            module.router_replay = self._original
        while self._undo:
            self._undo.pop()()

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores at the ids, ids), both [tokens, k]; scores [tokens, experts] are what top-k looks at."""

        def native() -> tuple[torch.Tensor, torch.Tensor]:
            values, ids = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            return values, ids

        micro_batch = self._running()
        self._routed.micro_batch = None
        if micro_batch is None:
            return native()
        try:
            ids = micro_batch.choose(self.layer, (scores.shape[0], topk), lambda: native()[1])
        except mt.Error as error:
            micro_batch.report(error)
            return native()
        self._routed.micro_batch, self._routed.ids, self._routed.live_ids = micro_batch, ids, None
        if self._counts_bias and micro_batch.policy.expert_bias == "live" and torch.is_grad_enabled():
            with torch.no_grad():
                self._routed.live_ids = native()[1]
        return scores.gather(1, ids), ids

    def _running(self) -> RankMicroBatch | None:
        if current:
            top = current.top
            return top if isinstance(top, RankMicroBatch) and top.chunk is self._chunk else None
        if autograd.in_backward() and self._chunk.flights:
            raise mt.UnsupportedError(
                f"replay: router {self.name} is recomputed by a checkpoint that is not Megatron's while "
                f"{len(self._chunk.flights)} micro-batches wait for their backward; use "
                "megatron.core.tensor_parallel.checkpoint"
            )
        return None

    def _aux_loss(
        self,
        plain: Any,
        probs: torch.Tensor,
        scores: torch.Tensor,
        routing_map: torch.Tensor,
        *args: Any,
        **rest: Any,
    ) -> Any:
        micro_batch = self._routed.micro_batch
        ids = self._routed.ids
        if micro_batch is None or ids is None or micro_batch.policy.aux_loss == "live":
            return plain(probs, scores, routing_map, *args, **rest)
        if micro_batch.policy.aux_loss == "none":
            return probs
        # Rows that Megatron's own padding mask has emptied stay empty.
        chosen = _map_of(ids, routing_map) & routing_map.any(dim=1, keepdim=True)
        return plain(probs, scores, chosen, *args, **rest)

    def _expert_bias(
        self, plain: Any, routing_map: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> None:
        routed, micro_batch = self._routed, self._routed.micro_batch
        if micro_batch is None:
            plain(routing_map, padding_mask=padding_mask)
            return
        live_ids = routed.live_ids
        routed.micro_batch = routed.ids = routed.live_ids = None  # nothing of it is asked for after this
        if micro_batch.policy.expert_bias == "frozen":
            return
        if live_ids is not None:
            routing_map = _map_of(live_ids, routing_map)
        if micro_batch.real is not None:
            routing_map = routing_map & micro_batch.real[:, None]
        if padding_mask is not None:
            routing_map = routing_map & ~padding_mask[:, None]
        plain(routing_map)


def check_free(router: MegatronRouter) -> None:
    """Refuse a router that a session has: of two, one would be ignored in silence."""
    module: Any = router.module
    if isinstance(module.router_replay, Port):
        raise mt.ConflictError(
            f"router {router.name} (layer {router.layer}): expected one that no session has, got one of an "
            "attached model; attach its chunks together, or detach() first"
        )


def _map_of(ids: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The routing map, bool [rows, experts], of ids [rows, k]."""
    return torch.zeros_like(like, dtype=torch.bool).scatter(1, ids, True)
