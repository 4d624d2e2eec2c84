"""RouteSpec.from_config: the configurations of the field, as dicts, objects and files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import moetape as mt
from config_cases import NOT_UNDERSTOOD, QWEN3, RULES


def test_dict_object_file_and_folder_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    expected = mt.RouteSpec(range(6), 8, 128, num_layers=6, model="qwen3_moe")
    for config in (QWEN3, SimpleNamespace(**QWEN3), tmp_path, str(tmp_path / "config.json")):
        assert mt.RouteSpec.from_config(config) == expected


@pytest.mark.parametrize(("config", "layers"), RULES)
def test_rules_that_tell_moe_layers_from_dense_ones(config: dict[str, Any], layers: list[int]) -> None:
    # case G01
    spec = mt.RouteSpec.from_config(dict(num_hidden_layers=6, num_experts_per_tok=2, **config))
    assert list(spec.layers) == layers
    assert (spec.num_layers, spec.num_experts, spec.top_k) == (6, 8, 2)


@pytest.mark.parametrize(
    "name",
    ["num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "experts_per_token"],
)
def test_names_of_top_k(name: str) -> None:
    config = {"num_hidden_layers": 2, "num_local_experts": 8, name: 3}
    assert mt.RouteSpec.from_config(config).top_k == 3


def test_shared_experts_are_no_columns_unless_asked_for() -> None:
    config = dict(num_hidden_layers=2, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1)
    assert mt.RouteSpec.from_config(config).shared_columns == 0
    assert mt.RouteSpec.from_config(config, shared_columns=1).shared_columns == 1


def test_fields_replace_what_the_configuration_says() -> None:
    spec = mt.RouteSpec.from_config(QWEN3, layers=[2, 4], stack="draft", top_k=1, model="mine")
    assert spec == mt.RouteSpec([2, 4], 1, 128, stack="draft", num_layers=6, model="mine")


def test_hash_routed_layers_are_excluded_with_the_reason() -> None:
    # case G12
    config = dict(
        num_hidden_layers=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe"],
    )
    spec = mt.RouteSpec.from_config(config)
    assert spec.layers == (2, 3)
    assert spec.excluded == {0: "hash-routed", 1: "hash-routed"}


def test_zero_computation_experts_count() -> None:
    config = dict(
        model_type="longcat_flash", num_layers=3, n_routed_experts=512, zero_expert_num=256, moe_topk=12
    )
    spec = mt.RouteSpec.from_config(config)
    assert (spec.num_experts, spec.num_layers, spec.layers) == (768, 3, (0, 1, 2))


def test_the_text_part_of_several_counts() -> None:
    parts = dict(model_type="vl", text_config=QWEN3, vision_config=dict(num_hidden_layers=99))
    assert mt.RouteSpec.from_config(parts) == mt.RouteSpec.from_config(QWEN3)
    nested = SimpleNamespace(thinker_config=SimpleNamespace(text_config=SimpleNamespace(**QWEN3)))
    assert mt.RouteSpec.from_config(nested) == mt.RouteSpec.from_config(QWEN3)


def test_dense_models_have_no_moe_layers() -> None:
    # case J01
    dense = dict(model_type="llama", num_hidden_layers=6)
    for config in (dense, {**dense, "num_experts": 0}, {**dense, "num_local_experts": 1}):
        with pytest.raises(mt.InvalidArgumentError, match="with MoE layers, got llama"):
            mt.RouteSpec.from_config(config)
    with pytest.raises(mt.InvalidArgumentError, match="with MoE layers"):
        mt.RouteSpec.from_config({**QWEN3, "mlp_only_layers": list(range(6))})


@pytest.mark.parametrize(("change", "names"), NOT_UNDERSTOOD)
def test_what_is_not_understood_is_refused(change: dict[str, Any], names: str) -> None:
    with pytest.raises(mt.UnsupportedError, match=names):
        mt.RouteSpec.from_config({**QWEN3, **change})


def test_unequal_top_k_of_dense_layers_does_not_matter() -> None:
    config = {**QWEN3, "num_experts_per_tok": [0, 8, 8, 8, 8, 8], "mlp_only_layers": [0]}
    assert mt.RouteSpec.from_config(config).top_k == 8


def test_files_that_are_no_configurations(tmp_path: Path) -> None:
    with pytest.raises(mt.InvalidArgumentError, match=r"config\.json"):
        mt.RouteSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(mt.CorruptDataError, match="expected JSON"):
        mt.RouteSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(mt.CorruptDataError, match="JSON object"):
        mt.RouteSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(mt.CorruptDataError, match="expected JSON"):
        mt.RouteSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(mt.CorruptDataError):
        mt.RouteSpec.from_config(tmp_path)


def test_agrees_with_the_routers_of_real_models() -> None:
    tiny_models = pytest.importorskip("tiny_models")
    for kind in tiny_models.KINDS:
        model = tiny_models.tiny(kind)
        spec = mt.models.spec_of(model)
        assert mt.RouteSpec.from_config(model.config) == spec
        assert mt.RouteSpec.from_config(model.config.to_dict()) == spec
