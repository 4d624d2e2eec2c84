"""Replay in Megatron models on two ranks. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

import numpy as np
import pytest

import moetape as mt
from megatron_cpu import parallel
from megatron_ranks import Ranks, SetUp, prove, step
from moetape.trainers.megatron import MicroBatchRoutes, attach

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}


def test_expert_parallel() -> None:
    prove(SetUp(ep=2))
    prove(SetUp(ep=2, changes={"moe_token_dispatcher_type": "allgather", **FULL}))


def test_tensor_and_sequence_parallel() -> None:
    prove(SetUp(tp=2))
    prove(SetUp(tp=2, ep=2, changes=SELECTIVE))


def test_context_parallel() -> None:
    # case I10
    prove(SetUp(cp=2))


def test_pipeline_parallel() -> None:
    # case I02
    prove(
        SetUp(
            pp=2,
            schedule="megatron",
            num_micro_batches=4,
            changes={"num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]},
        )
    )
    prove(SetUp(pp=2, schedule="megatron", num_micro_batches=4, changes=FULL))


def test_interleaved_pipeline_parallel() -> None:
    # case G14; trap 11
    prove(SetUp(pp=2, vp=2, schedule="megatron", num_micro_batches=4, changes={"num_layers": 4, **FULL}))


def test_a_layer_that_no_stage_has_is_refused_on_all_stages() -> None:
    """Each stage's routers are in the spec, which has one more: its ids would go nowhere, unnoticed."""
    setup = SetUp(pp=2, schedule="megatron", changes={"num_layers": 4, "moe_layer_freq": [0, 1, 0, 1]})
    with parallel(**setup.groups) as state:
        ranks = Ranks(setup, state)
        spec = mt.RouteSpec(layers=[1, 2, 3], top_k=2, num_experts=8, num_layers=4)
        session = attach(ranks.chunks, spec=spec)
        ids = np.tile(np.arange(2), (setup.length, 3, 1))
        routes = [mt.Routes.from_ids(spec, ids) for _ in range(setup.batch)]
        given = [MicroBatchRoutes(routes, ranks.row_ids)] * setup.num_micro_batches
        for _ in range(2):  # it does not go away by being told
            with pytest.raises(mt.SpecMismatchError, match=r"on its 2 pipeline stages, got none in \[2\]"):
                session.forward_step(step, given)
        session.detach()
