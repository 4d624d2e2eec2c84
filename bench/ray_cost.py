"""Routes of one sequence from a rollout actor to a trainer's worker, as Ray stacks do it and by moetape.ray.

    python bench/ray_cost.py

The usual way: int32 of all layers is the actor's result, the driver puts it into the batch, and every worker
cuts its part out of it. One machine, so nothing crosses a network; medians of rounds in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

import moetape as mt
import moetape.ray
from moetape.replay import Plan, RowIds, pipeline_chunks, pipeline_layers

SPEC = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256, num_layers=61)
CHUNKS = pipeline_chunks(61, size=4, first=16, last=15)
STAGES = [pipeline_layers(SPEC, CHUNKS, size=4, rank=stage) for stage in range(4)]
LENGTH, CP = 32_768, 4
ROUNDS = 15


@ray.remote(num_cpus=0)
class Rollout:
    def __init__(self) -> None:
        ids = (np.arange(LENGTH - 1)[:, None, None] + np.arange(58)[:, None] + np.arange(8)) % 256
        self.routes = mt.Routes.from_ids(SPEC, ids.astype(np.uint8), tokens=np.arange(LENGTH - 1))

    def widened(self) -> Any:
        return self.routes.ids.astype(np.int32)

    def put(self) -> moetape.ray.RoutesRef:
        return moetape.ray.put(self.routes, layer_groups=STAGES, rows_per_object=LENGTH // (2 * CP))


@ray.remote(num_cpus=0)
class Trainer:
    """Rank 1 of the context, stage 1."""

    def __init__(self) -> None:
        rows = RowIds.from_lengths([LENGTH]).zigzag_each(CP, 1)
        self.plan = Plan.from_row_ids(rows, layers=STAGES[1])
        self.positions = (rows.ids & 0xFFFFFFFF).astype(np.int64)
        self.columns = [SPEC.column_of(layer) for layer in STAGES[1]]

    def cut(self, ids: Any) -> int:
        mine = np.ascontiguousarray(
            ids[self.positions.clip(max=len(ids) - 1)][:, self.columns].transpose(1, 0, 2)
        )
        return int(mine[:, 7].sum())

    def fetch(self, refs: list[moetape.ray.RoutesRef]) -> int:
        plan, routes = moetape.ray.fetch(self.plan, refs)
        ids, _ = plan.apply(routes, dtype="int32")
        return int(ids[:, 7].sum())


def main() -> None:
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=1 << 30,
        log_to_driver=False,
        configure_logging=False,
    )
    rollout, trainer = Rollout.remote(), Trainer.remote()

    def usual() -> tuple[int, int]:
        ids = ray.get(rollout.widened.remote())
        return ray.get(trainer.cut.remote(ids)), ids.nbytes

    def by_reference() -> tuple[int, int]:
        ref = ray.get(rollout.put.remote())
        return ray.get(trainer.fetch.remote([ref])), len(ray.cloudpickle.dumps(ref))

    ways: dict[str, Callable[[], tuple[int, int]]] = {
        "int32 of all layers, by the driver": usual,
        "moetape.ray": by_reference,
    }
    assert usual()[0] == by_reference()[0]
    times: dict[str, list[float]] = {name: [] for name in ways}
    num_bytes = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            _, num_bytes[name] = way()
            times[name].append(time.perf_counter() - began)
    print("| way | ms | through the driver |")
    print("|---|---:|---:|")
    for name in ways:
        print(f"| {name} | {statistics.median(times[name]) * 1e3:.0f} | {num_bytes[name]:,} bytes |")


if __name__ == "__main__":
    main()
