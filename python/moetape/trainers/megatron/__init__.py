"""Replays recorded routes in Megatron models (megatron-core), on every rank, under any schedule.

    session = attach(model)                                  # once: a model, or its list of virtual chunks
    micro_batches = [session.packed(routes, lengths) ...]    # or MicroBatchRoutes(routes, row_ids)
    with session.forward_step(step, micro_batches, pass_="train") as replayed:
        forward_backward(forward_step_func=replayed, ...)
    optimizer.step()

Routers take the recorded experts; weights are made by Megatron's own code, and gradients flow through them.
Needs no moe_enable_routing_replay, and patches no model but the attached one.
"""

from moetape.trainers._microbatch import Counts
from moetape.trainers.megatron._plan import MicroBatchRoutes
from moetape.trainers.megatron._router_replay import RouterReplay, RouterReplayAction
from moetape.trainers.megatron._session import Session, attach
from moetape.trainers.megatron._step import ReplayedStep
from moetape.trainers.policy import ReplayPolicy

__all__ = [
    "Counts",
    "MicroBatchRoutes",
    "ReplayPolicy",
    "ReplayedStep",
    "RouterReplay",
    "RouterReplayAction",
    "Session",
    "attach",
]
