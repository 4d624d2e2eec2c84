"""slime's and miles' routing replay on two ranks. Run by test_trainer_slime.py."""

from __future__ import annotations

import numpy as np
import torch

from megatron_cpu import parallel, routers
from megatron_ranks import SetUp
from slime_story import LENGTHS, Actor, Miles, Slime, prove

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def test_tensor_and_sequence_parallel() -> None:
    prove(SetUp(tp=2, changes=FULL), Slime())


def test_expert_parallel() -> None:
    prove(SetUp(tp=2, ep=2), Miles())


def test_context_parallel() -> None:
    # case I10
    prove(SetUp(cp=2), Slime())


def test_each_pipeline_stage_gets_its_own_layers() -> None:
    # case G14; trap 10, 11
    for api in (Slime(), Miles()):
        setup = SetUp(pp=2, vp=2, changes={"num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]})
        with parallel(**setup.groups):
            actor = Actor(setup, api)
            layer = np.arange(4)[None, :, None]
            lengths = [length for micro_batch in LENGTHS for length in micro_batch]
            actor.fill([(layer + np.arange(2)).repeat(length - 1, axis=0) for length in lengths])
            found = {at: router for chunk in actor.model for at, router in routers(chunk).items()}
            assert sorted(found) == ([2] if torch.distributed.get_rank() == 0 else [1, 3])
            for at, router in found.items():
                for ids in router.routing_replay.top_indices_list:
                    assert {tuple(row) for row in ids.tolist()} == {(at, at + 1), (-1, -1)}
            api.clear()
