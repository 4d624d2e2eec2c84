"""verl's router replay in Megatron models, verl's own functions beside ours. Run by test_trainer_verl.py."""

from __future__ import annotations

import pytest
import torch

import moetape as mt
from megatron_cpu import config, forward, gpt, parallel, routers, tokens
from megatron_ranks import SetUp
from moetape.trainers import verl as ours
from verl_story import LENGTHS, Engine, jagged, prove, same

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
DENSE_FIRST = {"num_layers": 3, "moe_layer_freq": [0, 1, 1]}


def test_it_trains_as_verl_does() -> None:
    # case I01
    prove(SetUp(schedule="megatron"))


def test_recomputation_takes_what_the_forward_took() -> None:
    # case I17; trap 4, 5
    prove(SetUp(schedule="megatron", changes={**DENSE_FIRST, **FULL}))


def test_sigmoid_with_a_bias() -> None:
    changes = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
    }
    prove(SetUp(schedule="megatron", changes=changes))


def test_missing_rows_are_routed_live() -> None:
    # case I16, I22
    with parallel():
        engine = Engine(SetUp(schedule="megatron", num_micro_batches=1), ours)
        plain = engine.step(None)
        gone = [jagged([torch.full((length, 2, 2), -1, dtype=torch.int16) for length in LENGTHS])]
        assert same(plain, engine.step("R2", gone))


def test_a_logprob_pass_leaves_nothing_behind() -> None:
    # trap 4
    with parallel():
        engine = Engine(SetUp(schedule="megatron"), ours)
        _, _, record = engine.step("record")
        before = engine.step("R2", record)
        engine.step("R3", [jagged([one[:-1] for one in each.unbind()]) for each in record], forward_only=True)
        assert same(before, engine.step("R2", record))


def test_routers_of_other_models_route_live() -> None:
    # trap 10: an orphan, and the routers of multi-token prediction
    with parallel():
        engine = Engine(SetUp(schedule="megatron"), ours)
        reference = gpt(engine.config, seed=9)
        plain = forward(reference, tokens(1, 8))
        ours.RouterReplay.set_global_router_replay_action(ours.RouterReplayAction.REPLAY_FORWARD)
        assert torch.equal(forward(reference, tokens(1, 8)), plain)
        del reference
        ours.RouterReplay.clear_global_router_replay_action()
        assert len(ours.RouterReplay.router_instances) == 2, "a model that is gone left its routers"


def test_without_a_model_the_list_is_asked() -> None:
    with parallel():
        engine = Engine(SetUp(schedule="megatron", changes=DENSE_FIRST), ours)
        [model] = engine.chunks
        helper = ours.RouterReplayHelper
        held = helper.get_micro_batch_router_list(engine.config)
        assert held == [one.router_replay for one in routers(model).values()]
        assert ours.get_moe_num_layers_to_build(engine.config) == 2
        assert ours.get_num_layers_to_build(engine.config) == 3
        assert ours.get_current_rank_layer_info(engine.config) == {"start": 0, "end": 3, "count": 3}
        assert [ours.is_moe_layer(engine.config, layer) for layer in range(3)] == [False, True, True]
        ids = torch.stack([torch.arange(11) % 8, (torch.arange(11) + 1) % 8], dim=1)
        routes = jagged([one[:, None].expand(-1, 2, -1) for one in ids.split(LENGTHS)])
        ours.set_router_replay_data(routes, None, engine.config)
        assert [one.target_topk_idx.tolist() for one in held] == [ids.tolist()] * 2
        another = gpt(engine.config, seed=9)
        with pytest.raises(mt.WrongShapeError, match=r"expected 2 as this rank's layers have, or 2 .* got 4"):
            helper.get_micro_batch_router_list(engine.config)
        del another


def test_a_router_that_recorded_nothing_is_named() -> None:
    with parallel():
        engine = Engine(SetUp(schedule="megatron", changes=DENSE_FIRST), ours)
        [model] = engine.chunks
        with pytest.raises(mt.NotCapturedError, match=r"got none in \[1, 2\]"):
            ours.merge_router_topk_indices(None, engine.tokens[0], [], engine.config, model=model)


def test_padded_batches_are_merged_as_verl_merges() -> None:
    with parallel():
        engine = Engine(SetUp(schedule="megatron", num_micro_batches=1), ours)
        [model] = engine.chunks
        mask = torch.tensor([[0] * (8 - length) + [1] * length for length in LENGTHS]).bool()
        ids = torch.zeros(2, 8, dtype=torch.int64)
        ids[mask] = engine.tokens[0].values()
        ours.set_model_router_replay_action(model, ours.RouterReplayAction.RECORD)
        forward(model, engine.packed[0])
        padded: list[torch.Tensor] = []
        ours.merge_router_topk_indices(mask, ids, padded, engine.config, model=model)
        packed: list[torch.Tensor] = []
        ours.merge_router_topk_indices(None, engine.tokens[0], packed, engine.config, model=model)
        assert torch.equal(padded[0][mask], packed[0].values())
        assert (padded[0][~mask] == -1).all()


def test_replay_needs_a_router_that_looks_at_ids() -> None:
    # trap 1
    with parallel():
        engine = Engine(SetUp(schedule="megatron"), ours)
        _, _, record = engine.step("record")
        engine.config.moe_router_fusion = True
        with pytest.raises(mt.UnsupportedError, match="moe_router_fusion"):
            ours.set_router_replay_data(record[0], None, engine.config, model=engine.chunks[0])


def test_routers_without_the_setting_stay_megatrons() -> None:
    ours.apply_router_replay_patch()
    with parallel():
        assert not list(ours.iter_model_routers(gpt(config())))
