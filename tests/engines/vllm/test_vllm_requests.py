"""Kinds of requests, and what is done to them while they run, in one engine within this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from vllm_fixtures import random_tokens
from vllm_models import Reference


@pytest.fixture(scope="module")
def llm(in_process: Callable[..., Any], plain_model: Path) -> Any:
    return in_process(
        plain_model,
        block_size=32,
        num_gpu_blocks_override=12,
        max_num_batched_tokens=48,
        scheduling_policy="priority",
        enable_prompt_embeds=True,
    )


def check(reference: Reference, output: Any) -> None:
    [choice] = output.outputs
    reference.check([*output.prompt_token_ids, *choice.token_ids], choice.routed_experts)


def sampling(num_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, **more)


def some_prompts(seed: int, lengths: list[int]) -> list[dict[str, list[int]]]:
    random = np.random.default_rng(seed)
    return [{"prompt_token_ids": random_tokens(random, length)} for length in lengths]


def test_a_prefix_cache_that_is_cleared_while_requests_run(llm: Any, plain_reference: Reference) -> None:
    engine = llm.llm_engine
    parameters = sampling(20, output_kind=RequestOutputKind.CUMULATIVE)
    for index, prompt in enumerate(some_prompts(1, [90, 20, 57, 110, 33, 64])):
        engine.add_request(str(index), prompt, parameters)
    finished = []
    num_steps = 0
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished]
        num_steps += 1
        if num_steps in (3, 7, 8, 15):
            assert engine.engine_core.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert len(finished) == 6
    for output in finished:
        check(plain_reference, output)


def test_urgent_requests_push_others_out(llm: Any, plain_reference: Reference) -> None:
    outputs = llm.generate(
        some_prompts(2, [70] * 6), sampling(40), use_tqdm=False, priority=[6, 5, 4, 3, 2, 1]
    )
    for output in outputs:
        check(plain_reference, output)


def test_tokens_that_a_grammar_allows(llm: Any, plain_reference: Reference) -> None:
    only = StructuredOutputsParams(regex="[ab]{5,9}")
    parameters = SamplingParams(max_tokens=20, structured_outputs=only)
    allowed = llm.get_tokenizer().convert_tokens_to_ids(["a", "b", "<eos>"])
    for output in llm.generate(some_prompts(3, [50, 3]), parameters, use_tqdm=False):
        assert {*output.outputs[0].token_ids} <= {*allowed}
        check(plain_reference, output)


def test_a_prompt_of_embeddings(llm: Any, plain_reference: Reference) -> None:
    [prompt] = some_prompts(4, [75])
    embeddings = plain_reference.embeddings(prompt["prompt_token_ids"])
    for _ in range(2):  # the second hits the first one's blocks
        [output] = llm.generate([{"prompt_embeds": embeddings}], sampling(8), use_tqdm=False)
        [choice] = output.outputs
        plain_reference.check([*prompt["prompt_token_ids"], *choice.token_ids], choice.routed_experts)
    assert output.num_cached_tokens == 64


def test_nothing_is_kept_of_requests_that_ended(llm: Any) -> None:
    llm.generate(some_prompts(5, [40] * 5), sampling(3), use_tqdm=False)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    owners = llm.llm_engine.model_executor.driver_worker.worker._moetape._owners
    assert not scheduler.aux_output_connector._num_given
    assert not owners._requests
    assert not owners._hash_of
