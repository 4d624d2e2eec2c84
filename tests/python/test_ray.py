"""Routes on a real Ray of two nodes on this machine: rollouts on one, four trainers' workers on the other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from moetape.replay import LIVE, Plan, RowIds

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

HERE = Path(__file__).resolve().parent
STORE_BYTES = 100 << 20
# Neither does a full store spill objects, nor does it put new ones into files.
NO_DISK = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0}
LENGTHS = [2048, 1000, 777]
CP = 2


class World:
    """The cluster's two nodes, and its actors."""

    def __init__(self, rollout_node: str, trainer_node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from ray_actors import Rollout, Trainer

        self.trainer_node = trainer_node
        self.make_rollout = Rollout.options(scheduling_strategy=On(rollout_node, soft=False)).remote
        self.rollout = self.make_rollout()
        self.trainers = [
            Trainer.options(scheduling_strategy=On(trainer_node, soft=False)).remote() for _ in range(4)
        ]

    def put(self, sequence: int, length: int, **how: Any) -> Any:
        return ray.get(self.rollout.put.remote(sequence, length, **how))

    def apply(self, plan: Plan, refs: Any, **how: Any) -> Any:
        try:
            return ray.get(self.trainers[0].apply.remote(plan, refs, **how))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    paths = [str(HERE), str(HERE.parents[1] / "python")]
    os.environ.update(
        PYTHONPATH=os.pathsep.join(paths), RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0"
    )
    cluster = Cluster()
    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    nodes = [
        cluster.add_node(**node, _system_config=NO_DISK),
        cluster.add_node(**node),
    ]
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield World(*(one.node_id for one in nodes))
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def plan_of(rank: int) -> Plan:
    """Rank (context, stage) of two by two."""
    from ray_actors import STAGES

    rows = RowIds.from_lengths([length + 1 for length in LENGTHS]).pad_each(2 * CP).zigzag_each(CP, rank % CP)
    return Plan.from_row_ids(rows, layers=STAGES[rank // CP])


def test_workers_fetch_what_their_plans_need_and_the_driver_nothing(world: World) -> None:
    from ray_actors import STAGES, routes_of

    refs = [world.put(sequence, length, layer_groups=STAGES) for sequence, length in enumerate(LENGTHS)]
    told = [trainer.apply.remote(plan_of(rank), refs) for rank, trainer in enumerate(world.trainers)]
    whole = [routes_of(sequence, length) for sequence, length in enumerate(LENGTHS)]
    for rank, (ids, uses) in enumerate(ray.get(told)):
        expected_ids, expected_uses = plan_of(rank).apply(whole, dtype="int32")
        assert np.array_equal(ids, expected_ids), rank
        assert np.array_equal(uses, expected_uses), rank
    proven = ray.get(world.trainers[0].proven.remote(plan_of(0), refs))
    assert proven == sum(
        (one & 0xFFFFFFFF) < LENGTHS[(one >> 32) - 1] for one in plan_of(0).row_ids.tolist() if one
    )
    payload = sum(ref.num_bytes for ref in refs)
    assert len(ray.cloudpickle.dumps(refs)) < 0.1 * payload
    objects = [one for ref in refs for _, one in ref.objects]
    found = ray.experimental.get_object_locations(objects)
    for one in found.values():  # once on the node of the rollout, once on that of four workers
        assert len(one["node_ids"]) == 2
        assert world.trainer_node in one["node_ids"]


def test_objects_that_a_plan_does_not_touch_stay_where_they_are(world: World) -> None:
    from ray_actors import STAGES

    ref = world.put(0, 4000, layer_groups=STAGES, rows_per_object=1000)
    rows = RowIds.from_lengths([4000]).zigzag_each(CP, 1)  # [1000, 3000)
    world.apply(Plan.from_row_ids(rows, layers=STAGES[1]), [ref])
    found = ray.experimental.get_object_locations([one for _, one in ref.objects])
    fetched = [
        (piece.start, piece.layers)
        for piece, one in ref.objects
        if world.trainer_node in found[one]["node_ids"]
    ]
    assert fetched == [(1000, tuple(STAGES[1])), (2000, tuple(STAGES[1]))]


def test_objects_go_with_the_last_reference(world: World) -> None:
    """The stores hold 100 MB and spill nothing: 400 MB go through, 40 at a time."""
    plan = Plan.from_row_ids(RowIds.from_lengths([10]))
    for step in range(10):
        refs = [world.put(sequence, 160_000) for sequence in range(8)]
        assert sum(ref.num_bytes for ref in refs) > 40e6
        ids, _ = world.apply(plan, refs[:1])
        assert ids.shape == (8, 10, 4), step
        del refs


def test_what_a_dead_rollout_owned_is_lost_by_name_and_never_zeros(world: World) -> None:
    from ray_actors import STAGES

    rollout = world.make_rollout()
    refs = [world.put(0, 2000), ray.get(rollout.put.remote(1, 2000, layer_groups=STAGES))]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(rollout.die.remote())
    plan = Plan.from_row_ids(RowIds.from_lengths([2001, 2001]), layers=STAGES[1])
    match = r"sequence 1, rows \[0, 2000\) of layers 5 to 8, put on node \w+: lost: OwnerDiedError"
    with pytest.raises(mt.IoError, match=match):
        world.apply(plan, refs)
    ids, uses = world.apply(plan, refs, on_lost="missing")
    assert (uses[2001:] == LIVE).all()
    assert (
        np.sort(ids, axis=-1)[..., 1:] > np.sort(ids, axis=-1)[..., :-1]
    ).all()  # distinct, as of any live row


def test_damaged_and_swapped_objects_are_refused(world: World) -> None:
    plan = Plan.from_row_ids(RowIds.from_lengths([2000, 2000]))
    first, second = world.put(0, 2000), world.put(1, 2000)
    swapped = replace(first, objects=((first.objects[0][0], second.objects[0][1]),))
    with pytest.raises(mt.CorruptDataError, match=r"sequence 1, rows .*: expected the piece"):
        world.apply(plan, [second, swapped])
    data = np.array(ray.get(first.objects[0][1]))
    data[len(data) // 2] ^= 1
    damaged = replace(first, objects=((first.objects[0][0], ray.put(data)),))
    with pytest.raises(mt.CorruptDataError, match="sequence 0"):
        world.apply(plan, [damaged, second])
    _, uses = world.apply(plan, [damaged, second], on_lost="missing")
    assert (uses[:2000] == LIVE).all()
    assert (uses[2000:] == mt.replay.REPLAYED).sum() == 1960


def test_wrong_calls_are_refused_by_name(world: World) -> None:
    from ray_actors import slow

    plan = Plan.from_row_ids(RowIds.from_lengths([20, 20]))
    ref = world.put(0, 20)
    with pytest.raises(mt.OutOfRangeError, match="refs: expected one for sequence 1, got 1"):
        world.apply(plan, [ref])
    other = replace(ref, spec=mt.RouteSpec(layers=[1], top_k=4, num_experts=64))
    with pytest.raises(mt.SpecMismatchError, match="sequence 1: expected RouteSpec"):
        world.apply(plan, [ref, other])
    with pytest.raises(mt.InvalidArgumentError, match="on_lost"):
        world.apply(plan, [ref, ref], on_lost="zero")
    with pytest.raises(mt.OutOfRangeError, match=r"layer: expected one of .*, got 99"):
        world.apply(Plan.from_row_ids(RowIds.from_lengths([20]), layers=[99]), [ref])
    late = replace(ref, objects=((ref.objects[0][0], slow.remote()),))
    with pytest.raises(mt.TimeoutError, match=r"sequence 1, rows .*: expected within 5 s, got [01] of 2"):
        world.apply(plan, [ref, late], timeout_s=5)
    ray.cancel(late.objects[0][1], force=True)


def test_a_plan_that_needs_nothing_or_has_no_layers_applies(world: World) -> None:
    ref = world.put(0, 20)
    _, uses = world.apply(Plan.from_row_ids(np.array([0, -1, 0])), [ref])
    assert (uses == mt.replay.FILL).all()
    ids, uses = world.apply(Plan.from_row_ids(RowIds.from_lengths([21]), layers=[]), [ref])
    assert len(ids) == 0
    assert uses.tolist() == [mt.replay.REPLAYED] * 20 + [LIVE]


def test_the_references_may_be_a_column_of_the_batch(world: World) -> None:
    column = np.empty(2, object)
    column[:] = [world.put(0, 20), world.put(1, 20)]
    plan = Plan.from_row_ids(RowIds.from_lengths([20, 20]))
    _, uses = world.apply(plan, column)
    assert (uses == mt.replay.REPLAYED).all()
    column[1] = None
    with pytest.raises(mt.WrongTypeError, match="refs: expected a RoutesRef for sequence 1, got None"):
        world.apply(plan, column)


def test_a_reference_is_small(world: World) -> None:
    from ray_actors import STAGES

    sizes = [len(ray.cloudpickle.dumps(world.put(0, length, layer_groups=STAGES))) for length in (9, 50_000)]
    assert max(sizes) < 1500


def test_moetape_does_not_need_ray() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, moetape\n"
            "assert 'ray' not in sys.modules\n"
            "sys.modules['ray'] = None\n"
            "try:\n    moetape.ray\nexcept ImportError as error:\n    print(error)",
        ],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "moetape.ray needs Ray: pip install ray\n"
