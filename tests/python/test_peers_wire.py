"""Our forms through the decoders of those who read them, and theirs through ours."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pybase64
import pytest
import torch

import moetape as mt
from core_helpers import distinct_ids
from moetape import wire
from peer_code import peer_code

MILES = "miles-rl-0.0.2"
SPEC = mt.RouteSpec(layers=[2, 3, 5], top_k=4, num_experts=300, num_layers=6)
IDS = distinct_ids(40, SPEC)
ROUTES = mt.Routes.from_ids(SPEC, IDS)
FULL = np.zeros((40, 6, 4), np.int32)
FULL[:, list(SPEC.layers)] = IDS


def test_miles_reads_sglang() -> None:
    miles = peer_code(
        MILES,
        "miles/rollout/generate_utils/generate_endpoint_utils.py",
        "get_rollout_topk_from_response",
        np=np,
        pybase64=pybase64,
    )
    args = SimpleNamespace(num_layers=6, moe_router_topk=4)
    sample = SimpleNamespace(tokens=list(range(41)))
    output = {"meta_info": {"routed_experts": mt.encode(ROUTES, "sglang")}}
    array = miles.get_rollout_topk_from_response(args, output, sample, "routed_experts")
    assert np.array_equal(array, FULL)
    assert np.array_equal(array, mt.encode(ROUTES, "miles"))
    assert mt.decode(array, "miles", spec=SPEC, rows=len(sample.tokens) - 1) == ROUTES


def test_sglang_reads_sglang() -> None:
    # The package of miles holds SGLang's sources too.
    sglang = peer_code(
        MILES,
        "sglang/srt/layers/moe/routed_experts_capturer.py",
        "extract_routed_experts_from_meta_info",
        np=np,
        pybase64=pybase64,
    )
    data = {"meta_info": {"routed_experts": mt.encode(ROUTES, "sglang")}}
    assert np.array_equal(sglang.extract_routed_experts_from_meta_info(data).reshape(-1, 6, 4), FULL)
    [choice] = wire.read_answer(json.dumps(data), spec=SPEC)
    assert choice.routes == ROUTES


def test_areal_reads_sglang() -> None:
    areal = peer_code(
        "areal-1.0.4",
        "areal/engine/sglang_remote.py",
        "SGLangBackend.parse_generation_response",
        np=np,
        pybase64=pybase64,
        HttpGenerationResult=SimpleNamespace,
    )
    answer = {
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "prompt_tokens": 30,
            "completion_tokens": 11,
            "output_token_logprobs": [],
            "routed_experts": mt.encode(ROUTES, "sglang"),
        }
    }
    result = areal.parse_generation_response(None, answer)
    assert np.array_equal(result.routed_experts.reshape(40, 6, 4), FULL)
    [choice] = wire.read_answer(json.dumps(answer), spec=SPEC)
    assert choice.routes == ROUTES


@pytest.fixture(scope="module")
def skyrl() -> SimpleNamespace:
    routes = peer_code(
        "skyrl-0.4.0",
        "skyrl/backends/skyrl_train/utils/routed_experts.py",
        "ROUTED_EXPERT_DTYPES",
        "compact_routed_expert_indices",
        np=np,
    )
    return peer_code(
        "skyrl-0.4.0",
        "skyrl/backends/skyrl_train/inference_servers/generate_wire.py",
        "PackedArrayKey",
        "_ENVELOPE_KEYS",
        "_ROUTED_EXPERTS_NDIM",
        "_to_host_array",
        "pack_ndarray",
        "unpack_ndarray",
        "pack_routed_experts",
        "decode_packed_routed_experts",
        math=math,
        np=np,
        pybase64=pybase64,
        Collection=Collection,
        Mapping=Mapping,
        StrEnum=StrEnum,
        **vars(routes),
    )


@pytest.mark.parametrize("largest", [7, 255, 256, 299])
def test_skyrl_reads_and_writes_skyrl(skyrl: SimpleNamespace, largest: int) -> None:
    full = FULL.copy()
    full[:, list(SPEC.layers)] = np.arange(largest - 3, largest + 1)
    routes = mt.decode(full, "verl", spec=SPEC)
    text = mt.encode(routes, "skyrl")
    assert np.array_equal(skyrl.decode_packed_routed_experts(json.loads(text)), full)
    assert json.dumps(skyrl.pack_routed_experts(full), separators=(",", ":")) == text
    assert mt.decode(text, "skyrl", spec=SPEC) == routes


def test_skyrl_and_we_refuse_the_same(skyrl: SimpleNamespace) -> None:
    good = json.loads(mt.encode(ROUTES, "skyrl"))
    wide = FULL.astype(np.int32).tobytes()
    negative = np.full((1, 6, 4), -1, np.int16).tobytes()
    for change in (
        {"dtype": "int32", "data": base64.b64encode(wide).decode()},
        {"dtype": "int64"},
        {"shape": [39, 6, 4]},
        {"shape": [40, 24]},
        {"shape": [1, 6, 4], "data": base64.b64encode(negative).decode()},
        {"data": good["data"][:-4]},
        {"data": good["data"][:-1] + "?"},
    ):
        bad = good | change
        with pytest.raises((ValueError, TypeError)):
            skyrl.decode_packed_routed_experts(bad)
        with pytest.raises(mt.Error):
            mt.decode(json.dumps(bad), "skyrl", spec=SPEC)


def test_verl_takes_rows_of_all_tokens_but_the_last() -> None:
    verl = peer_code(
        "verl-0.9.1",
        "verl/utils/megatron/router_replay_utils.py",
        "align_r3_router_replay_data",
        torch=torch,
    )
    sequences = [ROUTES, ROUTES.slice(10, 17)]
    arrays = [torch.from_numpy(mt.encode(routes, "verl")) for routes in sequences]
    tokens = [torch.arange(len(routes) + 1) for routes in sequences]

    def jagged(parts: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    aligned = verl.align_r3_router_replay_data(jagged(arrays), jagged(tokens)).unbind()
    for routes, part in zip(sequences, aligned, strict=True):
        assert part.dtype == torch.int16
        # The row that verl adds belongs to no token that was fed.
        back = mt.decode(part.numpy(), "verl", spec=SPEC, start=routes.start, surplus_rows=1)
        assert back == routes
        assert wire.align(back, routes.end + 1, start=routes.start).complete
