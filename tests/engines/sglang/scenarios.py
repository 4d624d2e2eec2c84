"""Engines as they are started and the requests that each is sent: by both SGLang's capturer and moetape's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

ENGINE = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "enable_return_routed_experts": True,
    "max_total_tokens": 2048,
    "mem_fraction_static": 0.1,
    "log_level": "warning",
    "random_seed": 1,
}

NARROW = {"moetape": {"form": "narrow"}}
TAPE = {"moetape": {"form": "tape"}}
LAST_ROW = {"moetape": {"last_row": True}}


def tokens(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, 259), k=length)


@dataclass(frozen=True)
class Call:
    """Requests that are sent at once. `ours`: with an option of moetape's, which SGLang's own is not sent.

    In one call of Engine.generate, or, where `start` or `wanted` differ, in one call each.
    """

    prompts: list[list[int]]
    num_tokens: int | list[int] = 8
    start: int | list[int] = 0
    wanted: bool | list[bool] = True
    params: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    stream: bool = False

    def arguments(self) -> list[dict[str, Any]]:
        """Those of each call of Engine.generate."""
        number = len(self.prompts)
        limits = self.num_tokens if isinstance(self.num_tokens, list) else [self.num_tokens] * number
        common = {"temperature": 0.0, "ignore_eos": True, **self.params}
        params = [{**common, "max_new_tokens": limit} for limit in limits]
        if not isinstance(self.start, list) and not isinstance(self.wanted, list) and not self.stream:
            return [_arguments(self.prompts, params, self.wanted, self.start)]
        starts = self.start if isinstance(self.start, list) else [self.start] * number
        wanted = self.wanted if isinstance(self.wanted, list) else [self.wanted] * number
        return [_arguments(*each) for each in zip(self.prompts, params, wanted, starts, strict=True)]


def _arguments(prompts: Any, params: Any, wanted: Any, start: Any) -> dict[str, Any]:
    return {
        "input_ids": prompts,
        "sampling_params": params,
        "return_routed_experts": wanted,
        "routed_experts_start_len": start,
    }


MIXED = [tokens(seed, length) for seed, length in enumerate((1, 40, 7, 90, 3, 25, 61, 12))]
SHARED = [tokens(100, 48) + tokens(200 + seed, 5) for seed in range(4)]

CALLS: dict[str, Call] = {
    "batch": Call(MIXED, num_tokens=[8, 3, 30, 1, 12, 5, 2, 20]),
    "prefix": Call(SHARED, num_tokens=6),
    "prefix again": Call(SHARED, num_tokens=9),
    "start": Call(SHARED, num_tokens=4, start=[0, 17, 48, 53]),
    "start behind the prompt": Call([tokens(7, 5)], num_tokens=4, start=6),
    "some want": Call(MIXED[:3], wanted=[True, False, True]),
    "nobody wants": Call(MIXED[:3], wanted=False),
    "prefill only": Call([tokens(9, 5), tokens(10, 20)], num_tokens=0),
    "several choices": Call(MIXED[1:3], params={"n": 3, "temperature": 1.0, "sampling_seed": 5}),
    "stream": Call([tokens(11, 9)], num_tokens=12, stream=True),
    "stop token": Call(
        MIXED[:4], num_tokens=20, params={"ignore_eos": False, "stop_token_ids": [88, 12, 340]}
    ),
    "narrow": Call(MIXED, params={"custom_params": NARROW}, ours=True),
    "tape": Call(SHARED, num_tokens=5, start=10, params={"custom_params": TAPE}, ours=True),
    "last row": Call(
        [tokens(9, 5), tokens(10, 20)], num_tokens=0, params={"custom_params": LAST_ROW}, ours=True
    ),
    "last row of a decode": Call([tokens(9, 5)], num_tokens=3, params={"custom_params": LAST_ROW}, ours=True),
    "wrong option": Call([tokens(9, 5)], params={"custom_params": {"moetape": {"form": "int8"}}}, ours=True),
}

PLAIN = ["batch", "prefix", "prefix again", "start"]
CALLS["many"] = Call([tokens(300 + seed, 40) for seed in range(10)], num_tokens=80)


@dataclass(frozen=True)
class Scenario:
    """Engine arguments beyond ENGINE, calls in order, and environment variables."""

    engine: dict[str, Any]
    calls: list[str]
    env: dict[str, str] = field(default_factory=dict)


# Two ranks on a CPU: a core for each, and no NCCL, which SGLang would else start without a GPU.
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/none"}

SCENARIOS: dict[str, Scenario] = {
    "default": Scenario({}, [name for name in CALLS if name != "many"]),
    "no overlap, chunks": Scenario(
        {"disable_overlap_schedule": True, "chunked_prefill_size": 16},
        [*PLAIN, "stream", "prefill only", "many"],
    ),
    "no radix cache, message pack": Scenario(
        {"disable_radix_cache": True}, [*PLAIN, "narrow", "many"], {"SGLANG_USE_PICKLE_IPC": "0"}
    ),
    "pages and chunks": Scenario({"page_size": 16, "chunked_prefill_size": 32}, [*PLAIN, "many"]),
    # SGLang's own switch for its tests: requests are retracted every third step.
    "retraction in a small cache": Scenario(
        {"max_total_tokens": 600}, ["many", "start", "many"], {"SGLANG_TEST_RETRACT": "1"}
    ),
    "no tokenizer": Scenario({"skip_tokenizer_init": True}, [*PLAIN, "narrow"]),
    "broken": Scenario({}, ["batch", "prefix"], {"MOETAPE_TEST_BREAK": "capture"}),
    "tensor parallel": Scenario({"tp_size": 2}, PLAIN, TWO_RANKS),
    "pipeline parallel": Scenario({"pp_size": 2}, ["batch"], TWO_RANKS),
    # SGLang's own does not survive this one, so it is the last.
    "not chunked": Scenario({"chunked_prefill_size": -1, "max_running_requests": 4}, ["batch", "many"]),
}

SMOKE = "default"
