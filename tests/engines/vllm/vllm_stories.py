"""Random requests against one engine, many at a time, and the check of every row that comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot

from vllm_fixtures import random_tokens
from vllm_models import Reference

LONGEST = 256


class Story:
    """Seeded. Prompts share beginnings and come again: the prefix cache is hit, also within a step."""

    def __init__(self, model: Any, reference: Reference, seed: int, **options: Any) -> None:
        self._settings = {
            "model": str(model),
            "dtype": "float32",
            "max_model_len": LONGEST,
            "enable_return_routed_experts": True,
            **options,
        }
        self._reference = reference
        self._random = np.random.default_rng(seed)
        self._prompts: list[list[int]] = []
        self.seen: Counter[str] = Counter()

    def run(self, num_requests: int, at_once: int = 8) -> None:
        asyncio.run(self._run(num_requests, at_once))

    async def _run(self, num_requests: int, at_once: int) -> None:
        before = _counts()
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._settings))
        self.seen["scheduled ahead"] += bool(engine.vllm_config.scheduler_config.async_scheduling)
        try:
            places = asyncio.Semaphore(at_once)
            await asyncio.gather(*(self._request(engine, places, index) for index in range(num_requests)))
        finally:
            engine.shutdown()
        self.seen.update(_counts() - before)

    async def _request(self, engine: AsyncLLM, places: asyncio.Semaphore, index: int) -> None:
        async with places:
            random = self._random
            prompt, parameters = self._prompt(), self._parameters()
            wanted = random.random() > 0.1
            start = 0
            if random.random() < 0.2:
                start = int(random.integers(0, len(prompt)))
            given = SamplingParams(
                **parameters,
                routed_experts_prompt_start=start,
                extra_args=None if wanted else {"return_routed_experts": False},
                output_kind=RequestOutputKind.CUMULATIVE
                if random.random() < 0.5
                else RequestOutputKind.DELTA,
            )
            abort_after = int(random.integers(1, 8)) if random.random() < 0.1 else None
            await self._finish(
                engine, f"request-{index}", prompt, given, start if wanted else None, abort_after
            )

    def _prompt(self) -> list[int]:
        random = self._random
        if self._prompts and random.random() < 0.6:
            earlier = self._prompts[random.integers(len(self._prompts))]
            kept = int(random.integers(1, len(earlier) + 1))
            prompt = earlier[:kept] + random_tokens(random, int(random.integers(0, 20)))
        else:
            prompt = random_tokens(random, int(random.integers(1, 150)))
        prompt = prompt[: LONGEST - 40]
        self._prompts.append(prompt)
        return prompt

    def _parameters(self) -> dict[str, Any]:
        random = self._random
        greedy = random.random() < 0.4
        return {
            "max_tokens": int(random.integers(1, 40)),
            "temperature": 0.0 if greedy else 1.0,
            "ignore_eos": bool(random.random() < 0.5),
            "n": 1 if greedy else int(random.choice([1, 1, 2, 3])),
            "stop": ["a", "7"] if random.random() < 0.2 else None,
        }

    async def _finish(
        self,
        engine: AsyncLLM,
        name: str,
        prompt: list[int],
        given: SamplingParams,
        start: int | None,
        abort_after: int | None,
    ) -> None:
        tokens: dict[int, list[int]] = {}
        routes: dict[int, Any] = {}
        reasons: dict[int, Any] = {}
        num_outputs = 0
        async for output in engine.generate({"prompt_token_ids": prompt}, given, name):
            num_outputs += 1
            for choice in output.outputs:
                if given.output_kind == RequestOutputKind.DELTA:
                    tokens.setdefault(choice.index, []).extend(choice.token_ids)
                else:
                    tokens[choice.index] = list(choice.token_ids)
                if choice.finish_reason is not None:
                    routes[choice.index] = choice.routed_experts
                    reasons[choice.index] = choice.finish_reason
            if num_outputs == abort_after:
                await engine.abort(name)
            if output.num_cached_tokens:
                self.seen["cached"] += 1
        for index, ids in routes.items():
            self.seen[str(reasons[index])] += 1
            if start is None:
                assert ids is None
                self.seen["without routes"] += 1
                continue
            if ids is None:  # aborted before the first token: nothing was computed that counts
                assert reasons[index] == "abort"
                assert not tokens.get(index)
                continue
            sampled = tokens[index]
            assert len(ids) == len(prompt) + len(sampled) - 1 - start, (
                f"{name}: {len(prompt)} + {len(sampled)} tokens from {start}, {len(ids)} rows, "
                f"{reasons[index]}, {given}"
            )
            self._reference.check([*prompt, *sampled], ids, start)
            self.seen["rows"] += len(ids)


def _counts() -> Counter[str]:
    """What vLLM counts, of all engines of this process."""
    counted = Counter(
        {metric.name: int(metric.value) for metric in get_metrics_snapshot() if hasattr(metric, "value")}
    )
    drafted, accepted = (counted[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("draft", "accepted"))
    return Counter(preempted=counted["vllm:num_preemptions"], rejected=drafted - accepted)
