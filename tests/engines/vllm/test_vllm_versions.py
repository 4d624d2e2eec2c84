"""Weights that are updated while requests run: rows carry the version that vLLM tells, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

import moetape
from moetape.engines import vllm as engine
from vllm_fixtures import random_tokens

NUM_SAMPLED = 9


@pytest.fixture(scope="module")
def llm(in_process: Callable[..., Any], plain_model: Path) -> Any:
    return in_process(plain_model, block_size=32).llm_engine


def run(llm: Any, prompt: list[int], updates: dict[int, str]) -> Any:
    """One request; updates: the label of the weights by the number of tokens sampled before it."""
    parameters = SamplingParams(
        max_tokens=NUM_SAMPLED, temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.CUMULATIVE
    )
    llm.add_request("r", {"prompt_token_ids": prompt}, parameters)
    num_sampled = 0
    while llm.has_unfinished_requests():
        if num_sampled in updates:
            llm.set_weight_version(updates[num_sampled])
        for output in llm.step():
            num_sampled = len(output.outputs[0].token_ids)
    return output.outputs[0]


def test_weights_that_change_between_two_tokens(llm: Any, plain_model: Path) -> None:
    prompt = random_tokens(np.random.default_rng(1), 40)
    choice = run(llm, prompt, {0: "default", 3: "7", 5: "8"})
    spec = moetape.RouteSpec.from_config(plain_model)
    versions = engine.versions_of(choice.weight_versions, len(prompt))
    routes = engine.routes_of(choice.routed_experts, spec, versions=versions)
    assert routes.complete
    # Token 3 came out of the forward that was fed token 2, which is row 42.
    assert routes.versions == [(42, 44, 7), (44, 48, 8)]
    assert sum(routes.without(version_below=8).missing.values()) == 2


def test_rows_from_the_prefix_cache_claim_no_version(llm: Any, plain_model: Path) -> None:
    """They are of the weights that computed their KV, which an update leaves where it is."""
    prompt = random_tokens(np.random.default_rng(2), 70)
    run(llm, prompt, {0: "8"})
    choice = run(llm, prompt, {0: "9"})
    spec = moetape.RouteSpec.from_config(plain_model)
    versions = engine.versions_of(choice.weight_versions, len(prompt))
    routes = engine.routes_of(choice.routed_experts, spec, versions=versions)
    assert routes.versions == [(69, 69 + NUM_SAMPLED, 9)]
