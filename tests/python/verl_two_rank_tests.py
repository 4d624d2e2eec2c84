"""verl's router replay on two ranks, verl's own functions beside ours. Run by test_trainer_verl.py."""

from __future__ import annotations

from megatron_ranks import SetUp
from verl_story import prove

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
DENSE_FIRST = {"num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]}


def test_tensor_and_sequence_parallel() -> None:
    prove(SetUp(tp=2, schedule="megatron", changes=FULL))


def test_expert_parallel() -> None:
    prove(SetUp(tp=2, ep=2, schedule="megatron"))


def test_context_parallel() -> None:
    # case I10
    prove(SetUp(cp=2, schedule="megatron"))


def test_pipeline_parallel_with_a_dense_layer_first() -> None:
    prove(SetUp(pp=2, schedule="megatron", num_micro_batches=3, changes={**DENSE_FIRST, **FULL}))


def test_interleaved_pipeline_with_a_stage_of_dense_layers() -> None:
    # case G14
    changes = {**DENSE_FIRST, **FULL, "microbatch_group_size_per_vp_stage": 2}
    prove(SetUp(pp=2, vp=2, schedule="megatron", num_micro_batches=4, changes=changes))
