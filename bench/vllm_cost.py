"""What recording costs inside vLLM on the CPU: tokens/s with routes over tokens/s without.

    .venv-vllm/bin/python bench/vllm_cost.py [--pairs 40] [--model tiny|wide]

Two engines, each with all of vLLM in one process, take turns with the same requests: one waits while the
other runs. Each has one thread, so its seconds on a core are what a machine without other work would take;
the clock's are printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS: dict[str, dict[str, int]] = {
    "tiny": dict(num_hidden_layers=4, num_experts=16, num_experts_per_tok=4),
    "wide": dict(num_hidden_layers=24, num_experts=64, num_experts_per_tok=8),
}
NUM_REQUESTS, PROMPT, SAMPLED = 16, 32, 32


class Engine:
    """One engine, in a child process that waits for its turn."""

    def __init__(self, model: Path, records: bool) -> None:
        command = [sys.executable, __file__, "--serve", str(model), "--records", str(int(records))]
        settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
        settings |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        settings |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
        )
        self._answer()

    def seconds(self, seed: int) -> tuple[float, float]:
        """By the clock, and of this process on a core."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{seed}\n")
        self._child.stdin.flush()
        clock, core = self._answer()
        return clock, core

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise SystemExit("vllm_cost: an engine ended early")


def serve(model: str, records: bool) -> None:
    import numpy as np
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        enable_return_routed_experts=records,
        enable_prefix_caching=False,
    )
    parameters = SamplingParams(max_tokens=SAMPLED, temperature=0.0, ignore_eos=True)
    print("ANSWER 0", flush=True)
    for line in sys.stdin:
        random = np.random.default_rng(int(line))
        prompts = [
            {"prompt_token_ids": random.integers(3, 500, PROMPT).tolist()} for _ in range(NUM_REQUESTS)
        ]
        began = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        for output in outputs:
            ids = output.outputs[0].routed_experts
            assert ids is None if not records else len(ids) == PROMPT + SAMPLED - 1 and ids.min() >= 0
        print(f"ANSWER {json.dumps(took)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, bool(args.records))
    sys.path.insert(0, str(ROOT / "tests/engines/vllm"))
    from vllm_models import make_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder), "plain", moe_intermediate_size=128, **MODELS[args.model])
        engines = {records: Engine(model, records) for records in (False, True)}
        for engine in engines.values():
            engine.seconds(0)
        clock, core = [], []
        for pair in range(args.pairs):
            order = (False, True) if pair % 2 else (True, False)
            took = {records: engines[records].seconds(pair + 1) for records in order}
            clock.append(took[False][0] / took[True][0])
            core.append(took[False][1] / took[True][1])
            speed = NUM_REQUESTS * SAMPLED / took[True][1]
            print(
                f"  {speed:6.0f} tokens/s with routes: {core[-1]:.3f}, by the clock {clock[-1]:.3f}",
                flush=True,
            )
        for engine in engines.values():
            engine.close()
    print(
        f"{args.model}: median ratio of tokens/s {statistics.median(core):.3f} of {args.pairs} pairs, "
        f"by the clock {statistics.median(clock):.3f}"
    )
    return None


if __name__ == "__main__":
    main()
