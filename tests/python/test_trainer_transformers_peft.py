"""Replay in models with PEFT adapters on attention, experts and routers; the reference has them off."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.models import num_intercepted, spec_of
from moetape.trainers.transformers import Counts, ReplayPolicy, attach
from replay_helpers import (
    deterministic,
    experts_input,
    gradients,
    right_padded,
    same_gradients,
    wrong_routes,
)
from tiny_models import tiny

peft = pytest.importorskip("peft")

BATCH = right_padded([[5, 9, 11, 40, 7], [3, 8, 60]])
TARGETS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj", "o_proj"]},
    "experts": {"target_modules": [], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    "router": {"target_modules": ["o_proj"], "target_parameters": ["gate.weight"]},
    "router trained whole": {"target_modules": ["o_proj"], "modules_to_save": ["gate"]},
    "all linear": {"target_modules": "all-linear"},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    gc.collect()
    assert num_intercepted() == 0


def adapted(kind: str, targets: str) -> Any:
    model = tiny(kind).train()
    config = peft.LoraConfig(r=4, init_lora_weights=False, **TARGETS[targets])
    return peft.get_peft_model(model, config)


@pytest.mark.filterwarnings("ignore:Unsupported layer type")
@pytest.mark.parametrize(
    ("kind", "targets"),
    [("mixtral", "all linear"), ("deepseek_v3", "all linear"), *(("qwen3_moe", one) for one in TARGETS)],
)
def test_experts_of_an_adapted_model_receive_the_recorded_ids(kind: str, targets: str) -> None:
    model = adapted(kind, targets)
    assert spec_of(model) == spec_of(tiny(kind))
    session = attach(model)
    with deterministic():
        with session.record() as recording, experts_input(model, session.spec) as live:
            plain = model(**BATCH).logits
        plain.square().mean().backward()
        expected = gradients(model)
        with session.replay(recording.routes) as replay, experts_input(model, session.spec) as ids:
            own = model(**BATCH).logits
        own.square().mean().backward()
        assert replay.counts == Counts(replayed=8, padding=2)
        assert torch.equal(own, plain)
        assert same_gradients(gradients(model), expected)
        assert all(np.array_equal(ids[layer][0], live[layer][0]) for layer in session.spec.layers)

        foreign = [wrong_routes(one) for one in recording.routes]
        with session.replay(foreign), experts_input(model, session.spec) as ids:
            other = model(**BATCH).logits
        other.square().mean().backward()
        assert np.array_equal(ids[2][0][:5], foreign[0].ids[:, -1])
        assert not torch.equal(other, plain)
        changed = gradients(model)
        assert changed.keys() == expected.keys()
        assert all("lora_" in name or "modules_to_save" in name for name in changed)
        assert not same_gradients(changed, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_adapted_layers_are_recomputed_with_the_same_ids(reentrant: bool) -> None:
    model = adapted("qwen3_moe", "all linear")
    model.enable_input_require_grads()
    session = attach(model)
    with deterministic():
        with torch.no_grad(), session.record() as recording:
            model(**BATCH)
        foreign = [wrong_routes(one) for one in recording.routes]
        with session.replay(foreign):
            plain = model(**BATCH).logits
        plain.square().mean().backward()
        expected = gradients(model)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with session.replay(foreign), experts_input(model, session.spec) as ids:
            again = model(**BATCH).logits
            again.square().mean().backward()
    assert torch.equal(again, plain)
    assert same_gradients(gradients(model), expected)
    assert all(len(ids[layer]) == 2 for layer in (0, 1, 2))
    assert all(np.array_equal(*ids[layer]) for layer in (0, 1, 2))


def test_adapters_off_are_the_reference_pass() -> None:
    model = adapted("qwen3_moe", "all linear")
    base = tiny("qwen3_moe").train()(**BATCH).logits
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        model(**BATCH)
    foreign = [wrong_routes(one) for one in recording.routes]
    with torch.no_grad(), model.disable_adapter(), session.replay(foreign) as replay:
        torch.testing.assert_close(model(**BATCH).logits, base)
    assert (replay.is_live, replay.counts) == (True, Counts())
    with torch.no_grad(), session.replay(foreign) as replay, model.disable_adapter():
        torch.testing.assert_close(model(**BATCH).logits, base)
    assert replay.is_live
    with session.replay(foreign) as replay:
        loss = model(**BATCH).logits.square().mean()
    assert replay.counts.replayed == 8
    loss.backward()

    with torch.no_grad(), model.disable_adapter(), session.replay(foreign, pass_="train") as replay:
        assert not torch.allclose(model(**BATCH).logits, base)
    assert replay.counts.replayed == 8
    session.policy = ReplayPolicy(passes=("train", "logprob", "reference"))
    with torch.no_grad(), model.disable_adapter(), session.replay(foreign) as replay:
        assert not torch.allclose(model(**BATCH).logits, base)
    assert replay.counts.replayed == 8


def test_a_router_trained_whole_gets_gradients_and_its_copy_is_the_reference() -> None:
    model = adapted("qwen3_moe", "router trained whole")
    base = tiny("qwen3_moe").train()(**BATCH).logits
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        model(**BATCH)
    foreign = [wrong_routes(one) for one in recording.routes]
    with session.replay(foreign):
        model(**BATCH).logits.square().mean().backward()
    trained = {name: one for name, one in gradients(model).items() if "modules_to_save" in name}
    assert len(trained) == 3
    assert all(one.abs().sum() > 0 for one in trained.values())
    with torch.no_grad(), model.disable_adapter(), session.replay(foreign) as replay:
        torch.testing.assert_close(model(**BATCH).logits, base)
    assert replay.is_live


def test_whole_blocks_kept_twice_are_refused_by_name() -> None:
    config = peft.LoraConfig(target_modules=["o_proj"], modules_to_save=["mlp"])
    with pytest.raises(mt.UnsupportedError, match=r"mlp\.original_module\.gate and .*modules_to_save"):
        attach(peft.get_peft_model(tiny("qwen3_moe"), config))


def test_a_rollout_of_the_model_within_is_replayed_by_the_adapted_one() -> None:
    model = adapted("qwen3_moe", "attention").eval()
    prompt = torch.tensor([[5, 9, 11]])
    inner = model.get_base_model()
    with mt.engines.transformers.record(inner, version=3) as recording:
        tokens = model.generate(input_ids=prompt, max_new_tokens=4, do_sample=False)
    (routes,) = recording.routes
    assert (routes.end, routes.tokens.tolist()) == (6, tokens[0, :-1].tolist())
    session = attach(model.train())
    with session.replay([routes]) as replay:
        model(input_ids=tokens).logits.sum().backward()
    assert replay.counts == Counts(replayed=6, beyond=1)


def test_a_session_outlives_adapters_that_come_and_go() -> None:
    model = tiny("qwen3_moe").train()
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        model(**BATCH)
    foreign = [wrong_routes(one) for one in recording.routes]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, **TARGETS["all linear"]))
    for owner in (session, attach(adapted)):
        with owner.replay(foreign) as replay, experts_input(adapted, session.spec) as ids:
            adapted(**BATCH)
        assert replay.counts.replayed == 8
        assert np.array_equal(ids[2][0][:5], foreign[0].ids[:, -1])
    merged = adapted.merge_and_unload()
    assert merged is model
    with session.replay(foreign) as replay, experts_input(model, session.spec) as ids:
        model(**BATCH)
    assert np.array_equal(ids[2][0][:5], foreign[0].ids[:, -1])
