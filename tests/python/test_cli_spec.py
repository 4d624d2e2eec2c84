"""Specs on the command line: moetape's own, and what a model's configuration says, as Python reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import moetape as mt
from cli_helpers import refused, spec_of, succeed, succeed_json
from config_cases import NOT_UNDERSTOOD, QWEN3, RULES


def read_by_the_command_line(config: object, tmp_path: Path) -> mt.RouteSpec:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (printed,) = succeed_json("info", tmp_path / "config.json")
    assert printed["kind"] == "spec"
    return spec_of(printed)


@pytest.mark.parametrize("config", [config for config, _ in RULES])
def test_rules_are_those_of_python(config: dict[str, Any], tmp_path: Path) -> None:
    # case G01
    config = dict(model_type="toy", num_hidden_layers=6, num_experts_per_tok=2, **config)
    assert read_by_the_command_line(config, tmp_path) == mt.RouteSpec.from_config(config)


def test_real_models_are_read_as_python_reads_them(tmp_path: Path) -> None:
    tiny_models = pytest.importorskip("tiny_models")
    for kind in tiny_models.KINDS:
        config = tiny_models.tiny(kind).config
        config.save_pretrained(tmp_path / kind)
        assert spec_of(succeed_json("info", tmp_path / kind)[0]) == mt.RouteSpec.from_config(tmp_path / kind)


@pytest.mark.parametrize(
    "config",
    [
        dict(QWEN3, _name_or_path="some/where"),
        dict(model_type="vl", text_config=QWEN3, vision_config=dict(num_hidden_layers=99)),
        dict(model_type="omni", thinker_config=dict(text_config=QWEN3)),
        dict(QWEN3, time_step_limit=[0.0, float("inf"), float("-inf"), float("nan")], name='a\\"NaN'),
        dict(QWEN3, mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe", "moe", "moe"]),
        dict(QWEN3, num_experts=None, num_local_experts=[4, 16, 8]),
        dict(QWEN3, num_experts_per_tok=[0, 8, 8, 8, 8, 8], mlp_only_layers=[0]),
        dict(QWEN3, decoder_sparse_step=1 << 62, moe_layers=[1, 1000]),
        dict(QWEN3, decoder_sparse_step=None, expert_layer_period=2, expert_layer_offset=-1),
        dict(QWEN3, decoder_sparse_step=None, moe_layer_start_index=-4, moe_layer_end_index=-2),
        dict(QWEN3, decoder_sparse_step=None, first_k_dense_replace=-2),
        dict(
            model_type="longcat_flash", num_layers=3, n_routed_experts=512, zero_expert_num=256, moe_topk=12
        ),
    ],
)
def test_odd_configurations_are_read_as_python_reads_them(config: dict[str, Any], tmp_path: Path) -> None:
    assert read_by_the_command_line(config, tmp_path) == mt.RouteSpec.from_config(config)


@pytest.mark.parametrize("change", [change for change, _ in NOT_UNDERSTOOD])
def test_what_python_refuses_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, **change}))
    with pytest.raises(mt.UnsupportedError) as error:
        mt.RouteSpec.from_config(path)
    assert refused("info", path).startswith(f"{path}: {str(error.value).split(', got')[0]}")


@pytest.mark.parametrize(
    "change", [dict(num_experts=1), dict(num_experts=0), dict(mlp_only_layers=[*range(6)])]
)
def test_dense_models_have_no_moe_layers(change: dict[str, Any], tmp_path: Path) -> None:
    # case J01
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, **change}))
    assert "expected a model with MoE layers, got qwen3_moe" in refused("info", path)


@pytest.mark.parametrize(
    "change",
    [
        dict(num_hidden_layers=1 << 40),
        dict(num_hidden_layers=-1),
        dict(num_hidden_layers=1 << 63),
        dict(num_experts=1 << 40),
        dict(num_experts=(1 << 31) - 1, zero_expert_num=1),
        dict(num_experts_per_tok=1 << 33),
        dict(moe_layers=[1, 1]),
    ],
)
def test_numbers_beyond_all_models_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, **change}))
    refused("info", path)


def test_a_spec_is_read_as_it_is_printed(tmp_path: Path) -> None:
    spec = mt.RouteSpec(
        [1, 2, 5], 2, 300, stack="draft", shared_columns=1, distinct=False, num_layers=8, model="m",
        excluded={3: "hash-routed"},
    )  # fmt: skip
    path = tmp_path / "spec.json"
    fields = {name: getattr(spec, name) for name in ("stack", "top_k", "num_experts", "shared_columns")}
    fields |= {"distinct": False, "num_layers": 8, "model": "m", "excluded": {"3": "hash-routed"}}
    path.write_text(json.dumps(fields | {"layers": [1, 2, 5]}))
    printed = succeed("info", path, "--json")
    assert spec_of(json.loads(printed)[0]) == spec
    path.write_text(printed)
    assert succeed("info", path, "--json") == printed
    assert succeed("info", "-", "--json", stdin=printed.encode()).replace('"-"', f'"{path}"') == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("{", "expected JSON"),
        ("[]", "expected a JSON object, got array"),
        ("7", "expected a JSON object, got number"),
        ('{"layers": [1], "top_k": 2.5, "num_experts": 4}', "spec.top_k: expected an integer"),
        ('{"layers": [1, "2"], "top_k": 2, "num_experts": 4}', "spec.layers: expected an integer"),
        (
            '{"layers": [1], "top_k": 2, "num_experts": 4, "distinct": 1}',
            "spec.distinct: expected true or false, got 1",
        ),
        (
            '{"layers": [1], "top_k": 2, "num_experts": 4, "colour": 1}',
            "spec.colour: expected a field of a spec, got one that moetape does not know",
        ),
        (
            '{"layers": [1], "top_k": 2, "num_experts": 4, "excluded": {"x": ""}}',
            'spec.excluded: expected the index of a layer, got "x"',
        ),
        (
            '{"layers": [1], "top_k": 2, "num_experts": 4, "excluded": {"01": ""}}',
            'spec.excluded: expected the index of a layer, got "01"',
        ),
        (
            '{"layers": [1], "top_k": 2, "num_experts": 4, "excluded": 0}',
            "spec.excluded: expected an object of layers and reasons, got 0",
        ),
        (
            '{"layers": [18446744073709551615], "top_k": 2, "num_experts": 4}',
            "spec.layers: expected an integer of 32 bits, got 18446744073709551615",
        ),
        ('{"spec": {"layers": 3}}', "spec.layers: expected a list of layers, got 3"),
        (
            '{"layers": [1], "top_k": 2, "top_k": 3, "num_experts": 4}',
            'expected every key once, got "top_k" twice',
        ),
        ('{"layers": [1], "top_k": 2', "expected JSON: line 1, column 27: "),
        ('{"layers": [1], "top_k": 9, "num_experts": 4}', "top_k"),
        ('{"layers": [1], "top_k": 2, "num_experts": 4, "fingerprint": "0"}', "spec.fingerprint: expected"),
    ],
)
def test_what_is_no_spec_is_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    line = refused("convert", "-", "--spec", path, "-o", tmp_path / "x.tape", stdin=b"")
    assert line.startswith(f"{path}: ")
    assert message in line


def test_text_says_what_a_reader_needs(tmp_path: Path) -> None:
    config = dict(QWEN3, mlp_layer_types=["hash_moe", "dense", "moe", "moe", "dense", "moe"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    lines = succeed("info", tmp_path).splitlines()
    assert "layers       3 of 6: 2-3, 5" in lines
    assert "experts      top 8 of 128" in lines
    assert "excluded     0: hash-routed" in lines
