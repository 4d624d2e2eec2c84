"""Actors of the Ray tests: a rollout worker and a trainer's worker, as a stack would write them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import ray

import moetape as mt
import moetape.ray
from moetape.ray import RoutesRef
from moetape.replay import Plan

SPEC = mt.RouteSpec(layers=range(1, 9), top_k=4, num_experts=64)
STAGES = [[1, 2, 3, 4], [5, 6, 7, 8]]


def routes_of(sequence: int, length: int) -> mt.Routes:
    """The same in every process."""
    rows = np.arange(length)[:, None, None] * 5 + np.arange(1, 9)[None, :, None] * 3 + sequence
    ids = (rows + np.arange(4) * 7) % 64
    valid = np.arange(length) % 50 != 49
    return mt.Routes.from_ids(SPEC, ids, valid=valid, version=sequence, tokens=np.arange(length))


@ray.remote(num_cpus=0)
class Rollout:
    def put(self, sequence: int, length: int, **how: Any) -> RoutesRef:
        return moetape.ray.put(routes_of(sequence, length), **how)

    def keep(self, ref: RoutesRef) -> None:
        self.kept = ref

    def die(self) -> None:
        os._exit(1)


@ray.remote(num_cpus=0)
class Trainer:
    def apply(self, plan: Plan, refs: list[RoutesRef], **how: Any) -> tuple[Any, Any]:
        plan, routes = moetape.ray.fetch(plan, refs, **how)
        return plan.apply(routes, dtype="int32")

    def proven(self, plan: Plan, refs: list[RoutesRef]) -> int:
        """How many rows are proven to be where their tokens are."""
        tokens = [(one & 0xFFFFFFFF) if one > 0 else 0 for one in plan.row_ids.tolist()]
        plan, routes = moetape.ray.fetch(plan, refs)
        return plan.verify(routes, tokens)


@ray.remote
def slow() -> None:
    import time

    time.sleep(60)
