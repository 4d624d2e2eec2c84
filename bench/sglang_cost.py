"""What recording costs inside SGLang: moetape against SGLang's own capturer, in turns, on this machine's CPU.

    .venv-sglang/bin/python bench/sglang_cost.py            # after make test-sglang

1. Time on the scheduler's thread for one finished request of 8,192 tokens (rows collected, and pickled for
   the next process), one decode step, one prefill: SGLang's own functions, one process, one thread. Answers
   are compared before they are timed. Shape: Qwen3-30B-A3B, 48 layers, 8 of 128 experts, 100,000 slots.
2. Tokens a second of whole engines, and of their processors' time, which a busy machine disturbs
   less; on the tests' tiny model and on one of 24 layers and 64 experts.

Figures are medians of the ratios of neighbouring runs; absolute times are those of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests/engines/sglang"
sys.path.insert(0, str(TESTS))
os.environ.update(SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1")

NUM_TOKENS, NUM_SLOTS, NUM_LAYERS, TOP_K, EXPERTS = 8192, 100_000, 48, 8, 128
WIDE = {"num_hidden_layers": 24, "num_experts": 64, "num_experts_per_tok": 8}
MODES = ("own", "moetape")


def capturers() -> tuple[Any, Any]:
    """SGLang's and ours, with the rows of one request in the same slots."""
    import torch
    from sglang.srt.runtime_context import get_context
    from sglang.srt.state_capturer.routed_experts import RoutedExpertsCapturer
    from sglang_cpu_standin import activate

    from moetape.engines import sglang

    activate()
    names = ("num_hidden_layers", "num_experts", "num_experts_per_tok")
    config = types.SimpleNamespace(
        model_type="qwen3_moe", **dict(zip(names, (NUM_LAYERS, EXPERTS, TOP_K), strict=True))
    )
    model = torch.nn.Module()
    model.shared_experts_config = types.SimpleNamespace(num_fused_shared_experts=0)  # type: ignore[assignment]
    arguments = {
        "model": model,
        "model_config": types.SimpleNamespace(hf_text_config=config, context_len=NUM_TOKENS),
        "num_tokens": NUM_SLOTS,
        "max_running_requests": 64,
        "device": "cpu",
    }
    with get_context().override_server_args(
        enable_return_routed_experts=True, chunked_prefill_size=NUM_TOKENS, device="cpu"
    ):
        return RoutedExpertsCapturer.create(**arguments), sglang.RoutedExpertsCapturer.create(**arguments)


def step(capturer: Any, ids: Any, slots: Any) -> None:
    for layer in range(NUM_LAYERS):
        capturer.capture(layer, ids[layer])
    batch = types.SimpleNamespace(out_cache_loc=slots, out_cache_loc_virtual=None)
    output = capturer.on_forward_end(batch, False, None, no_copy_to_cpu=True)
    output.map_device_tensors(lambda tensor: tensor.clone())  # SGLang's copy to the host
    output.finalize()


def random_ids(rows: int) -> Any:
    import torch

    scores = torch.rand(NUM_LAYERS, rows, EXPERTS)
    return scores.topk(TOP_K, dim=2).indices.to(torch.int32)


def ratio(name: str, own: Callable[[], Any], ours: Callable[[], Any], rounds: int, goal: str) -> None:
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, call in zip(MODES, (own, ours), strict=True):
            began = time.perf_counter()
            call()
            times[mode].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(times["own"], times["moetape"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = [1000 * statistics.median(times[mode]) for mode in MODES]
    print(
        f"{name:42} SGLang {medians[0]:8.3f} ms  moetape {medians[1]:8.3f} ms  "
        f"{middle:5.1f}x ({low:.1f}-{high:.1f}) {goal}"
    )


def scheduler_thread() -> None:
    import torch
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.managers.scheduler_components import batch_result_processor
    from sglang.srt.state_capturer.routed_experts import set_global_experts_capturer

    from moetape.engines.sglang import answering, scheduling

    torch.set_num_threads(1)
    theirs, mine = capturers()
    guarded = scheduling.GuardedCapturer(mine)
    slots = 1 + torch.randperm(NUM_SLOTS - 1)[: NUM_TOKENS - 1]
    ids = random_ids(len(slots))
    for capturer in (theirs, mine):
        step(capturer, ids, slots)
    table = torch.zeros((1, NUM_TOKENS), dtype=torch.int32)
    table[0, : len(slots)] = slots
    processor = types.SimpleNamespace(req_to_token_pool=types.SimpleNamespace(req_to_token=table))
    collect = batch_result_processor.SchedulerBatchResultProcessor._maybe_collect_routed_experts

    def request() -> Any:
        return types.SimpleNamespace(
            return_routed_experts=True,
            routed_experts_start_len=0,
            origin_input_ids=[0] * (NUM_TOKENS - 1000),
            output_ids_through_stop=[0] * 1000,
            kv=types.SimpleNamespace(req_pool_idx=0),
            sampling_params=types.SimpleNamespace(custom_params=None),
            rid="r",
        )

    def own_finish() -> bytes:
        set_global_experts_capturer(theirs)
        finished = request()
        collect(processor, finished)
        return pickle.dumps(finished.routed_experts, pickle.HIGHEST_PROTOCOL)

    def our_finish() -> bytes:
        set_global_experts_capturer(guarded)
        finished = request()
        scheduling.collect(collect, processor, finished)
        return pickle.dumps(finished.routed_experts, pickle.HIGHEST_PROTOCOL)

    own_text = DetokenizerManager._b64_encode_per_request([pickle.loads(own_finish())])
    our_text = answering.encode_per_request(
        DetokenizerManager._b64_encode_per_request, [pickle.loads(our_finish())]
    )
    assert own_text == our_text, "the answers differ"
    sizes = len(own_finish()), len(our_finish())
    print(f"one request of {NUM_TOKENS} tokens to the next process: {sizes[0]:,} bytes, {sizes[1]:,} bytes")
    memory = theirs.host_cache.get_buffer_size_bytes(), mine.get_buffer_size_bytes()
    print(f"host memory: SGLang {memory[0]:,} bytes, moetape {memory[1]:,}, {memory[0] / memory[1]:.2f}x")
    ratio("a finished request of 8,192 tokens", own_finish, our_finish, 31, "goal 5x")
    ids, slots = random_ids(64), 1 + torch.randperm(NUM_SLOTS - 1)[:64]
    ratio("a decode step of 64", lambda: step(theirs, ids, slots), lambda: step(mine, ids, slots), 101, "")
    chunk = 1 + torch.randperm(NUM_SLOTS - 1)[:4096]
    ids = random_ids(4096)
    ratio("a prefill of 4,096", lambda: step(theirs, ids, chunk), lambda: step(mine, ids, chunk), 15, "")


def worker(model: str, num_requests: int, num_tokens: int) -> None:
    """An engine that serves one batch for every line on its input, and prints the seconds."""
    import sglang

    from scenarios import ENGINE, tokens

    engine = sglang.Engine(
        model_path=model,
        **{**ENGINE, "max_total_tokens": 16384, "disable_radix_cache": True, "sleep_on_idle": True},
    )
    prompts = [tokens(seed, 64) for seed in range(num_requests)]
    params = {"max_new_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
    print("ready", flush=True)
    for _ in sys.stdin:
        began, used = time.perf_counter(), processor_time()
        answers = engine.generate(input_ids=prompts, sampling_params=params, return_routed_experts=True)
        seconds, used = time.perf_counter() - began, processor_time() - used
        texts = hash(json.dumps([answer["meta_info"]["routed_experts"] for answer in answers]))
        print("run", seconds, used, texts, flush=True)
    engine.shutdown()


def processor_time() -> float:
    """Seconds that this process and those below it have computed."""
    import psutil

    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def tokens_per_second(name: str, pairs: int, num_requests: int, num_tokens: int, **over: int) -> None:
    from harness import environment
    from tiny_model import write

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), **over)
        workers = {}
        for mode in MODES:
            command = [sys.executable, __file__, "--worker", folder, str(num_requests), str(num_tokens)]
            workers[mode] = subprocess.Popen(
                command,
                env={**environment(mode), "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        for process in workers.values():
            answer(process, "ready")
        runs = []
        for number in range(pairs + 1):
            order = MODES if number % 2 else MODES[::-1]
            runs.append({mode: run(workers[mode]) for mode in order})
        for process in workers.values():
            process.stdin.close()
            process.wait()
    assert len({texts for pair in runs for *_, texts in pair.values()}) == 1, "the answers differ"
    for which, of in enumerate(("", " of processors")):
        rates = [{mode: num_requests * num_tokens / pair[mode][which] for mode in MODES} for pair in runs[1:]]
        low, middle, high = statistics.quantiles([pair["moetape"] / pair["own"] for pair in rates], n=4)
        medians = {mode: statistics.median(pair[mode] for pair in rates) for mode in MODES}
        print(
            f"{name + of:42} SGLang {medians['own']:8.0f} t/s moetape {medians['moetape']:8.0f} t/s "
            f"{middle:5.3f}x ({low:.3f}-{high:.3f}), {pairs} pairs"
        )


def run(process: Any) -> tuple[float, float, str]:
    process.stdin.write("go\n")
    process.stdin.flush()
    _, seconds, used, texts = answer(process, "run").split()
    return float(seconds), float(used), texts


def answer(process: Any, kind: str) -> str:
    """The next line of this kind; engines print others."""
    for line in process.stdout:
        if line.startswith(kind):
            return str(line)
    raise RuntimeError(f"an engine ended instead of saying {kind}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs=3)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", choices=("thread", "engines"))
    arguments = parser.parse_args()
    if arguments.worker:
        model, num_requests, num_tokens = arguments.worker
        worker(model, int(num_requests), int(num_tokens))
        return
    if arguments.only != "engines":
        scheduler_thread()
    if arguments.only != "thread":
        tokens_per_second("tiny: 4 layers, 4 of 16", arguments.pairs, 16, 64)
        tokens_per_second("24 layers, 8 of 64", arguments.pairs, 4, 16, **WIDE)


if __name__ == "__main__":
    main()
