"""Sessions: a request that is fed more tokens when it has answered goes on in the block where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from moetape.engines import vllm as engine
from vllm_fixtures import random_tokens
from vllm_models import Reference

NUM_SAMPLED = 6
PARAMETERS = SamplingParams(
    max_tokens=NUM_SAMPLED, temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.DELTA
)


async def converse(llm: AsyncLLM, turns: list[list[int]]) -> tuple[list[int], Any]:
    """Feed each turn when the one before is answered; all tokens that were kept, and the routes."""
    answered = asyncio.Queue[None]()
    sampled: list[int] = []
    tokens: list[int] = []

    async def inputs() -> AsyncGenerator[StreamingInput, None]:
        for turn in turns:
            yield StreamingInput({"type": "token", "prompt_token_ids": turn})
            await answered.get()

    routes = None
    unanswered = [*turns]
    async for output in llm.generate(inputs(), PARAMETERS, "session"):
        [choice] = output.outputs
        sampled += choice.token_ids
        if len(sampled) == NUM_SAMPLED:
            # The last sampled token is taken back when more is fed.
            tokens = [*tokens[:-1], *unanswered.pop(0), *sampled]
            sampled = []
            answered.put_nowait(None)
        if choice.routed_experts is not None:
            routes = choice.routed_experts
    return tokens, routes


async def ask(llm: AsyncLLM, prompt: list[int]) -> tuple[list[int], Any, int]:
    given = SamplingParams(max_tokens=2, temperature=0.0, output_kind=RequestOutputKind.FINAL_ONLY)
    async for output in llm.generate({"prompt_token_ids": prompt}, given, "later"):
        [choice] = output.outputs
        return [*prompt, *choice.token_ids], choice.routed_experts, output.num_cached_tokens
    raise AssertionError("no output")


async def tell_story(options: dict[str, Any]) -> tuple[Any, Any]:
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
    try:
        random = np.random.default_rng(1)
        told = await converse(llm, [random_tokens(random, length) for length in (45, 30, 9)])
        return told, await ask(llm, told[0])
    finally:
        llm.shutdown()


@pytest.mark.parametrize("from_outside", [False, True], ids=["local", "connector"])
def test_a_session_and_who_hits_its_blocks(
    plain_model: Path, plain_reference: Reference, tmp_path: Path, from_outside: bool
) -> None:
    options: dict[str, Any] = dict(
        model=str(plain_model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=32,
        enable_return_routed_experts=True,
    )
    if from_outside:
        options["kv_transfer_config"] = dict(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": str(tmp_path)},
        )
    (tokens, ids), (later, later_ids, num_cached) = asyncio.run(tell_story(options))
    assert len(tokens) == 45 + 30 + 9 + 3 * NUM_SAMPLED - 2
    plain_reference.check(tokens, ids)
    assert num_cached >= 96
    if from_outside:  # the hashes of a session's blocks change, so nothing proves whose they are
        assert set(engine.missing_rows(later_ids)) <= {"invalidated"}
        present = np.flatnonzero(later_ids.min(axis=(1, 2)) >= 0).tolist()
        for row in present:
            plain_reference.check(later[: row + 2], later_ids[row : row + 1].astype(np.uint8), row)
        assert present
    else:
        plain_reference.check(later, later_ids)
