"""Replay in Megatron models on two ranks. Run by test_trainer_megatron.py, once for each version."""

from __future__ import annotations

from megatron_ranks import SetUp, prove

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
    # case G14
    prove(SetUp(pp=2, vp=2, schedule="megatron", num_micro_batches=4, changes={"num_layers": 4, **FULL}))
