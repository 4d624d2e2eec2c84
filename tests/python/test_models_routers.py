"""Which routers are found, which are refused, and the spec of what is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import moetape
import toy_moe
from moetape import models
from tiny_models import KINDS, tiny
from toy_moe import Router, toy

MOE_LAYERS = {"deepseek_v2": [1, 2], "deepseek_v3": [1, 2], "glm4_moe": [1, 2], "qwen3_next": [0, 1, 2, 3]}


@pytest.mark.parametrize("thing", [None, 3, "gpt2", nn.Linear], ids=str)
def test_what_is_no_model_is_refused(thing: Any) -> None:
    found = "the class Linear" if isinstance(thing, type) else type(thing).__name__
    recorder = moetape.Recorder(moetape.Store(moetape.RouteSpec([0], 2, 8), num_slots=4), max_rows=4)
    for refuse in (
        models.find_routers,
        models.spec_of,
        lambda thing: models.bind(thing, recorder),
        moetape.engines.transformers.record,
        moetape.trainers.transformers.attach,
    ):
        with pytest.raises(moetape.WrongTypeError, match=rf"model: expected a torch.nn.Module, got {found}"):
            refuse(thing)


def test_other_arguments_of_a_wrong_kind_are_refused() -> None:
    model = tiny("qwen3_moe")
    with pytest.raises(moetape.WrongTypeError, match=r"router: expected a Router .*, got NoneType"):
        models.interceptor(None)
    with pytest.raises(moetape.WrongTypeError, match="recorder: expected a Recorder, got NoneType"):
        models.bind(model, None)
    session = moetape.trainers.transformers.attach(model)
    for refuse in (
        models.find_routers,
        models.spec_of,
        moetape.engines.transformers.record,
        moetape.trainers.transformers.attach,
    ):
        with pytest.raises(moetape.WrongTypeError, match=r"excluded: expected a mapping .*, got list"):
            refuse(model, excluded=[0])
    session.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_finds_routers_of(kind: str) -> None:  # case G01, case G02
    model = tiny(kind)
    routers = models.find_routers(model)
    assert [router.layer for router in routers] == MOE_LAYERS.get(kind, [0, 1, 2])
    for router in routers:
        assert f".{router.layer}." in router.name
        assert dict(model.named_modules())[router.name] is router.module
        assert (router.top_k, router.num_experts, router.stack) == (2, 8, "target")


@pytest.mark.parametrize("kind", KINDS)
def test_spec_counts_dense_layers(kind: str) -> None:  # case G11, case G16
    model = tiny(kind)
    spec = models.spec_of(model)
    assert list(spec.layers) == MOE_LAYERS.get(kind, [0, 1, 2])
    assert spec.num_layers == model.config.num_hidden_layers
    assert (spec.top_k, spec.num_experts, spec.stack) == (2, 8, "target")
    assert kind in spec.model


@pytest.mark.parametrize("kind", KINDS)
def test_spec_of_model_is_that_of_its_config(kind: str) -> None:
    model = tiny(kind)
    assert models.spec_of(model).fingerprint == moetape.RouteSpec.from_config(model.config).fingerprint


def on_meta(kind: str, **over: object) -> nn.Module:
    config = transformers.AutoConfig.for_model(kind, **over)
    with torch.device("meta"):
        return transformers.AutoModel.from_config(config)


FOUND = [
    ("longcat_flash", {"num_layers": 2}, [0, 1], 12, 768),  # zero-computation experts included
    ("jamba", {"num_hidden_layers": 4}, [1, 3], 2, 16),  # the block itself chooses
    ("granitemoe", {"num_hidden_layers": 2}, [0, 1], 2, 8),  # ids come first
    ("llama4_text", {"num_hidden_layers": 2}, [0, 1], 1, 16),  # dense scores
    ("deepseek_v2", {"num_hidden_layers": 2, "num_experts_per_tok": 6}, [0, 1], 6, 64),
    (
        "gemma4_text",
        {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 8},
        None,
        2,
        8,
    ),
]


@pytest.mark.parametrize(("kind", "over", "layers", "top_k", "num_experts"), FOUND)
def test_finds_unusual_routers(
    kind: str, over: dict[str, object], layers: list[int] | None, top_k: int, num_experts: int
) -> None:
    spec = models.spec_of(on_meta(kind, **over))
    if layers is not None:
        assert list(spec.layers) == layers
    assert (spec.top_k, spec.num_experts) == (top_k, num_experts)


REFUSED = [
    ("phimoe", {"num_hidden_layers": 2}, "PhimoeTopKRouter.*sparse mixer"),
    ("zaya", {"num_hidden_layers": 2}, "ZayaRouter.*one class more"),
    ("deepseek_v4", {}, "DeepseekV4HashRouter.*table by token id"),
    ("switch_transformers", {}, "SwitchTransformersTop1Router.*one-hot"),
    ("nllb-moe", {}, "NllbMoeTop2Router.*one-hot"),
    ("jetmoe", {"num_hidden_layers": 2}, "JetMoeAttention.*two routers"),
    ("doge", {"is_moe": True, "num_hidden_layers": 2}, "DogeCDMoE.*product keys"),
]


@pytest.mark.parametrize(("kind", "over", "message"), REFUSED)
def test_refuses_by_name(kind: str, over: dict[str, object], message: str) -> None:  # case G12, case H09
    with pytest.raises(moetape.UnsupportedError, match=message):
        models.find_routers(on_meta(kind, **over))


def test_hash_layers_may_be_left_out_on_purpose() -> None:  # case G12
    model = on_meta("deepseek_v4")
    hashed = {
        index: "hash-routed" for index, kind in enumerate(model.config.mlp_layer_types) if kind == "hash_moe"
    }
    spec = models.spec_of(model, excluded=hashed)
    assert hashed
    assert dict(spec.excluded) == hashed
    assert list(spec.layers) == [i for i in range(model.config.num_hidden_layers) if i not in hashed]


def test_dense_model_has_no_routers_and_no_spec() -> None:  # case J01
    model = transformers.LlamaModel(
        transformers.LlamaConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8
        )
    )
    assert models.find_routers(model) == []
    with pytest.raises(moetape.InvalidArgumentError, match=r"LlamaModel.*dense"):
        models.spec_of(model)


def test_finds_topk_in_methods_and_helpers() -> None:
    assert [router.layer for router in models.find_routers(toy(toy_moe.HelperRouter(), None, Router()))] == [
        0,
        2,
    ]


def test_refuses_a_block_whose_router_never_calls_topk() -> None:  # case H13
    with pytest.raises(moetape.UnsupportedError, match=r"block layers\.1\.mlp \(Block\)"):
        models.find_routers(toy(Router(), toy_moe.ArgmaxRouter()))


def test_refuses_unequal_top_k_by_name() -> None:
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.0\.mlp\.gate: 2, layers\.1\.mlp\.gate: 3"):
        models.find_routers(toy(Router(2), Router(3)))


def test_spec_takes_the_largest_number_of_experts() -> None:
    assert models.spec_of(toy(Router(2, 8), Router(2, 12))).num_experts == 12


def test_refuses_one_module_in_two_layers() -> None:
    shared = Router()
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.1\.mlp\.gate.*layers\.0\.mlp\.gate"):
        models.find_routers(toy(shared, shared))


def test_refuses_two_stacks_and_takes_one() -> None:
    both = nn.ModuleDict({"thinker": toy(Router()), "talker": toy(Router())})
    with pytest.raises(moetape.UnsupportedError, match="one stack of layers"):
        models.find_routers(both)
    assert [router.name for router in models.find_routers(both["thinker"])] == ["layers.0.mlp.gate"]


def test_target_leaves_draft_layers_out() -> None:  # case G09
    both = nn.ModuleDict({"model": toy(Router(), Router()), "mtp": toy(Router())})
    assert [router.name for router in models.find_routers(both)] == [
        "model.layers.0.mlp.gate",
        "model.layers.1.mlp.gate",
    ]
    draft = models.spec_of(both["mtp"], stack="draft")
    assert (draft.stack, list(draft.layers)) == ("draft", [0])


def test_a_decoder_built_twice_is_found_once() -> None:  # case G04
    model = nn.Module()
    model.decoder = toy(Router(), Router())
    orphan = models.find_routers(model)[0].module
    model.decoder = toy(Router(), Router())
    routers = models.find_routers(model)
    assert len(routers) == 2
    assert orphan not in [router.module for router in routers]
