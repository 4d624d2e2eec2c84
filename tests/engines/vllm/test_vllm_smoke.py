"""The main job, inside vLLM as users start it: the engine and its worker are processes of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import LLM, SamplingParams

import moetape
from moetape.engines import vllm as engine
from vllm_fixtures import random_tokens
from vllm_models import Reference

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def llm(plain_model: Path) -> Iterator[LLM]:
    llm = LLM(
        str(plain_model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        enable_return_routed_experts=True,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


def generate(llm: LLM, prompts: list[list[int]], **parameters: Any) -> list[Any]:
    given = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **parameters})
    return llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], given, use_tqdm=False)


def check(reference: Reference, output: Any, start: int = 0) -> None:
    for choice in output.outputs:
        tokens = [*output.prompt_token_ids, *choice.token_ids]
        reference.check(tokens, choice.routed_experts, start)


# case C02
def test_every_row_is_what_transformers_routes(llm: LLM, plain_reference: Reference) -> None:
    random = np.random.default_rng(1)
    prompts = [random_tokens(random, length) for length in (1, 7, 40, 200)]
    outputs = generate(llm, prompts)
    assert [len(output.outputs[0].routed_experts) for output in outputs] == [12, 18, 51, 211]
    for output in outputs:
        check(plain_reference, output)


# case B16
def test_rows_of_a_cached_prefix_come_back(llm: LLM, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(2), 150)
    [first] = generate(llm, [prompt])
    [again] = generate(llm, [prompt], seed=None, temperature=1.0)
    assert again.num_cached_tokens >= 128
    check(plain_reference, first)
    check(plain_reference, again)


def test_each_of_several_choices_has_its_own_rows(llm: LLM, plain_reference: Reference) -> None:
    [output] = generate(llm, [random_tokens(np.random.default_rng(3), 20)], n=3, temperature=1.0)
    assert len({tuple(choice.token_ids) for choice in output.outputs}) == 3
    check(plain_reference, output)


# case E05
def test_rows_of_the_prompt_are_left_out_where_asked(llm: LLM, plain_reference: Reference) -> None:
    [output] = generate(llm, [random_tokens(np.random.default_rng(4), 30)], routed_experts_prompt_start=25)
    check(plain_reference, output, start=25)


# case C19
# case J09
def test_a_request_can_go_without_routes(llm: LLM, plain_reference: Reference) -> None:
    random = np.random.default_rng(5)
    prompts = [{"prompt_token_ids": random_tokens(random, 20)} for _ in range(3)]
    parameters = [
        SamplingParams(max_tokens=5, extra_args=None if wanted else {"return_routed_experts": False})
        for wanted in (True, False, True)
    ]
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    assert outputs[1].outputs[0].routed_experts is None
    check(plain_reference, outputs[0])
    check(plain_reference, outputs[2])


def test_a_stop_string_cuts_rows_with_the_tokens(llm: LLM, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(6), 20)
    [free] = generate(llm, [prompt], max_tokens=30, temperature=0.0)
    text = free.outputs[0].text
    stop = text[len(text) // 2 :][:2]
    [stopped] = generate(llm, [prompt], max_tokens=30, temperature=0.0, stop=[stop])
    assert stopped.outputs[0].stop_reason == stop
    assert len(stopped.outputs[0].token_ids) < 30
    check(plain_reference, stopped)


def test_the_array_becomes_routes(llm: LLM, plain_model: Path) -> None:
    [output] = generate(llm, [random_tokens(np.random.default_rng(7), 9)])
    ids = output.outputs[0].routed_experts
    routes = engine.routes_of(ids, moetape.RouteSpec.from_config(plain_model))
    assert routes.complete
    assert np.array_equal(routes.ids, ids)
    assert engine.missing_rows(ids) == {}


def test_the_example_of_the_page_runs(
    llm: LLM, plain_model: Path, plain_reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs/vllm.md").read_text()
    [example] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)

    def started(model: str, **options: Any) -> LLM:
        assert (model, options) == (str(plain_model), {"enable_return_routed_experts": True})
        return llm

    monkeypatch.setattr("vllm.LLM", started)
    names: dict[str, Any] = {}
    exec(example.replace('"MODEL"', repr(str(plain_model))), names)
    assert len(names["routes"]) == len(names["output"].prompt_token_ids) + 7
    plain_reference.check([*names["routes"].tokens.tolist(), 0], names["ids"])
