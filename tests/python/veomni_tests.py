"""verl's controller for VeOmni by its names, beside verl's own, in VeOmni's own Qwen3-MoE.

Run by test_trainer_verl_veomni.py in a process of its own: VeOmni changes transformers when it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from veomni.models.transformers.qwen3_moe.generated import patched_modeling_qwen3_moe_gpu as veomni
from veomni.utils.moe_router_replay import get_active_replay

import moetape as mt
from moetape.trainers.verl import veomni as ours
from peer_code import peer_code

LENGTH, TOP_K, NUM_EXPERTS = 10, 3, 8


def verls() -> Any:
    return peer_code(
        "verl-0.9.1",
        "verl/utils/veomni/router_replay.py",
        "RouterReplayAction",
        "VeOmniRouterReplay",
        torch=torch,
        os=os,
        Enum=Enum,
        __name__=__name__,
    )


def qwen(**changes: Any) -> Any:
    settings = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
        "attn_implementation": "eager",
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    model = veomni.Qwen3MoeModel(Qwen3MoeConfig(**{**settings, **changes}))
    model.train()
    return model


TOKENS = torch.randint(0, 64, (1, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["verl", "ours"])
def api(request: pytest.FixtureRequest) -> Any:
    return ours if request.param == "ours" else verls()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    yield
    assert get_active_replay() is None, "a test left its controller installed"


def run(model: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = model(TOKENS, use_cache=False).last_hidden_state.square().mean()
    loss.backward()
    return loss.detach(), [one.grad.clone() for one in model.parameters() if one.grad is not None]


def same(left: Any, right: Any) -> bool:
    return torch.equal(left[0], right[0]) and all(map(torch.equal, left[1], right[1]))


def recorded(replay: Any, model: Any) -> torch.Tensor:
    replay.begin_record()
    replay.begin_microbatch()
    run(model)
    ids: torch.Tensor = replay.take_recorded()
    return ids


def replayed(replay: Any, model: Any, ids: torch.Tensor) -> Any:
    replay.begin_replay()
    replay.begin_microbatch(targets=list(ids.long().unbind(1)))
    told = run(model)
    assert replay.num_fired == replay.num_targets
    return told


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=["plain", "not-reentrant", "reentrant"])
def test_own_routes_change_no_bit_and_foreign_ones_are_verls(checkpointing: bool | None) -> None:
    # case I01, I04
    found = []
    for api in (verls(), ours):
        model = qwen()
        if checkpointing is not None:
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
            model.enable_input_require_grads()
        plain = run(model)
        replay = api.VeOmniRouterReplay()
        replay.install(model)
        ids = recorded(replay, model)
        assert same(plain, replayed(replay, model, ids))
        foreign = (ids + 1) % NUM_EXPERTS
        foreign[-2:] = 0  # as the engine pads
        found.append((ids, replayed(replay, model, foreign)))
        assert not same(plain, found[-1][1])
        replay.clear()
        assert same(plain, run(model))
        replay.uninstall()
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][0].dtype == found[1][0].dtype == torch.int16
    assert same(found[0][1], found[1][1])
    gates = [one.grad for name, one in model.named_parameters() if name.endswith("gate.weight")]
    assert all(one.abs().sum() > 0 for one in gates)


def test_the_experts_get_the_recorded_ids() -> None:
    model = qwen()
    seen: list[torch.Tensor] = []
    for layer in model.layers:
        layer.mlp.experts.register_forward_pre_hook(lambda _, given: seen.append(given[1].clone()))
    replay = ours.VeOmniRouterReplay()
    replay.install(model)
    ids = (recorded(replay, model) + 2) % NUM_EXPERTS
    seen.clear()
    replayed(replay, model, ids)
    assert torch.equal(torch.stack(seen, dim=1), ids.long())
    replay.uninstall()


def test_names_are_verls() -> None:
    theirs = {one for one in dir(verls().VeOmniRouterReplay) if not one.startswith("_")}
    assert theirs <= set(dir(ours.VeOmniRouterReplay))
    assert [one.value for one in ours.RouterReplayAction] == [one.value for one in verls().RouterReplayAction]


def test_a_dense_layer_first_takes_targets_by_layer() -> None:
    # trap 9, 10: verl matches by firing order, which is off by one here
    model = qwen(num_hidden_layers=3, mlp_only_layers=[0])
    plain = run(model)
    replay = ours.VeOmniRouterReplay()
    replay.install(model)
    ids = recorded(replay, model)
    assert ids.shape == (LENGTH, 2, TOP_K)
    assert same(plain, replayed(replay, model, ids))
    everywhere = torch.cat([torch.zeros_like(ids[:, :1]), ids], dim=1)  # as a rollout tells it
    assert same(plain, replayed(replay, model, everywhere))
    replay.uninstall()
    theirs = verls().VeOmniRouterReplay()
    theirs.install(model)
    with pytest.raises(AssertionError):
        replayed(theirs, model, everywhere)
    theirs.uninstall()


def test_rows_without_a_record_are_live() -> None:
    # case I16
    model = qwen()
    plain = run(model)
    replay = ours.VeOmniRouterReplay()
    replay.install(model)
    ids = recorded(replay, model)
    for value in (-1, 0):
        gone = ids.clone()
        gone[3:6] = value
        assert same(plain, replayed(replay, model, gone))
    replay.uninstall()


class Router(torch.nn.Module):
    pass


def scores(seed: int) -> torch.Tensor:
    return torch.rand(4, NUM_EXPERTS, generator=torch.Generator().manual_seed(seed))


def test_a_live_choice_is_kept_for_recomputation() -> None:
    # case I17; trap 5: verl chooses again
    kept = []
    for api in (verls(), ours):
        replay, router = api.VeOmniRouterReplay(), Router()
        replay.begin_replay()
        replay.begin_microbatch(targets=[torch.tensor([[0, 1], [0, 0], [2, 1], [0, 0]])])
        seen: list[torch.Tensor] = []

        def forward(
            weight: torch.Tensor,
            replay: Any = replay,
            router: Any = router,
            seen: list[torch.Tensor] = seen,
        ) -> torch.Tensor:
            moved = scores(len(seen))  # recomputation sees other scores
            ids = replay.on_router_forward(router, moved, moved.topk(2).indices)
            seen.append(ids)
            return weight * weight.detach().gather(1, ids).sum()

        weight = torch.rand(4, NUM_EXPERTS, requires_grad=True)
        checkpoint(forward, weight, use_reentrant=False).sum().backward()
        assert len(seen) == 2
        kept.append(torch.equal(*seen))
    assert kept == [False, True]


def test_recomputation_of_an_earlier_micro_batch_is_an_error() -> None:
    # case I02: verl would give it the ids of the later one
    model = qwen()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    replay = ours.VeOmniRouterReplay()
    replay.install(model)
    ids = recorded(replay, model)
    replay.begin_replay()
    replay.begin_microbatch(targets=list(ids.long().unbind(1)))
    earlier = model(TOKENS, use_cache=False).last_hidden_state.sum()
    replay.begin_microbatch(targets=list(ids.long().unbind(1)))
    model(TOKENS, use_cache=False)
    with pytest.raises(mt.ConflictError, match="recomputation of an earlier one"):
        earlier.backward()
    replay.clear()
    replay.uninstall()


def test_other_models_route_live() -> None:
    # trap 10, 19
    model, reference = qwen(), qwen()
    plain = run(reference)
    replay = ours.VeOmniRouterReplay()
    replay.install(model)
    ids = recorded(replay, model)
    replay.begin_replay()
    replay.begin_microbatch(targets=list(((ids + 1) % NUM_EXPERTS).long().unbind(1)))
    assert same(plain, run(reference))
    replay.uninstall()


def test_what_cannot_be_right_is_an_error() -> None:
    # case I07, I22; trap 2, 22
    replay = ours.VeOmniRouterReplay()
    with pytest.raises(mt.StepOrderError, match="begin_record or begin_replay"):
        replay.begin_microbatch()
    replay.begin_record()
    with pytest.raises(mt.InvalidArgumentError, match="got some in RECORD"):
        replay.begin_microbatch(targets=[torch.zeros(1, 2)])
    with pytest.raises(mt.NotCapturedError, match="got no router"):
        replay.take_recorded()
    replay.begin_replay()
    with pytest.raises(mt.InvalidArgumentError, match="got none in REPLAY"):
        replay.begin_microbatch()
    with pytest.raises(mt.StepOrderError, match="expected RECORD"):
        replay.take_recorded()
    with pytest.raises(mt.WrongTypeError):
        replay.begin_microbatch(targets=[torch.rand(4, 2)])
    with pytest.raises(mt.WrongShapeError):
        replay.begin_microbatch(targets=[torch.zeros(4, 2).long(), torch.zeros(3, 2).long()])
    good = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]])

    def refused(second: Any, error: type[Exception], message: str) -> None:
        first, router, live = good, Router(), scores(0)
        replay.begin_microbatch(targets=[first, torch.tensor(second)])
        replay.on_router_forward(Router(), live, live.topk(2).indices)
        with pytest.raises(error, match=message):
            replay.on_router_forward(router, live, live.topk(2).indices)

    refused([[0, 1], [2, 2], [4, 5], [6, 7]], mt.InvalidArgumentError, r"got \[2, 2\] in row 1")
    refused([[0, 0], [2, 3], [4, 5], [6, 7]], mt.InvalidArgumentError, r"got \[0, 0\] in row 0")
    refused([[0, 1], [2, 3], [4, -1], [6, 7]], mt.InvalidArgumentError, r"got \[4, -1\] in row 2")
    refused([[0, 1], [2, 3], [4, 5], [6, 8]], mt.OutOfRangeError, "below 8, got 8")
    replay.begin_microbatch(targets=[good])
    replay.on_router_forward(Router(), scores(0), scores(0).topk(2).indices)
    with pytest.raises(mt.NotCapturedError, match="layer 1, got those of 1"):
        replay.on_router_forward(Router(), scores(0), scores(0).topk(2).indices)
    replay.begin_microbatch(targets=[good])
    with pytest.raises(mt.WrongShapeError, match=r"\[3, 2\] as the router's, got \[4, 2\]"):
        replay.on_router_forward(Router(), scores(0)[:3], scores(0)[:3].topk(2).indices)
