"""Record, ship and replay the routes of a Mixture-of-Experts model: what moetape is for, in one run.

A model serves a batch of prompts in bfloat16 while its routes are recorded. The routes of each request go
through the three wire dialects and back. A float32 copy, the trainer, then computes the same tokens without
and with replay.

    python examples/demo.py [--model FOLDER]

Without --model it is a small Qwen3-MoE with seeded random weights. The output is the same in every run.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # a checkpoint is a folder here

import numpy as np
import torch
import transformers

import moetape as mt
from moetape.engines.transformers import record
from moetape.trainers.transformers import attach

DIALECTS = ("sglang", "vllm", "lightllm")
VERSION = 7  # of the weights, as a trainer would count them
NEW_TOKENS = 48
PROMPTS = (
    "The capital of France is",
    "Write a short poem about the sea.",
    "def fibonacci(n):",
    "Explain in one sentence why the sky is blue.",
    "List three uses of a paper clip:",
    "Once upon a time, in a town by the river,",
    "2 + 2 =",
    "Translate to German: Good morning, how are you?",
)


class DemoError(Exception):
    """A promise that did not hold."""


@dataclass
class Request:
    """One prompt and what the server sampled for it."""

    tokens: list[int]
    num_prompt: int
    logprobs: torch.Tensor  # of the sampled tokens, by the server
    routes: mt.Routes


def small_model() -> Any:
    """A Qwen3-MoE whose weights are wide enough for routers and experts to matter, as in a trained model."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()


def load(folder: str | None) -> tuple[Any, list[list[int]], int]:
    """The model in bfloat16, the prompts' token ids, and the id to pad with."""
    if folder is None:
        generator = torch.Generator().manual_seed(1)
        lengths = range(10, 58, 3)
        return (
            small_model(),
            [torch.randint(3, 512, (length,), generator=generator).tolist() for length in lengths],
            0,
        )
    if not Path(folder, "config.json").is_file():
        raise DemoError(f"--model: expected a folder with config.json, got {folder}")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return model, [tokenizer(text)["input_ids"] for text in PROMPTS], pad or 0


def serve(model: Any, prompts: list[list[int]], pad: int) -> list[Request]:
    """One batch through generate(), recorded."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (width - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    torch.manual_seed(2)
    with record(model, version=VERSION) as recording:
        output = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=True,
        )
    logprobs = torch.stack(output.logits, dim=1).float().log_softmax(-1)
    sampled = output.sequences[:, width:]
    chosen = logprobs.gather(2, sampled[..., None])[..., 0]
    eos = model.generation_config.eos_token_id
    stops = set(eos) if isinstance(eos, list) else {eos}
    requests = []
    for index, prompt in enumerate(prompts):
        row = sampled[index].tolist()
        count = next((at + 1 for at, token in enumerate(row) if token in stops), len(row))
        request = Request(prompt + row[:count], len(prompt), chosen[index, :count], recording.routes[index])
        check_record(index, request)
        requests.append(request)
    return requests


def check_record(index: int, request: Request) -> None:
    routes, fed = request.routes, request.tokens[:-1]
    if (routes.start, routes.end) != (0, len(fed)):
        raise DemoError(
            f"request {index}: {len(fed)} tokens were fed, rows are [{routes.start}, {routes.end})"
        )
    if routes.tokens is None or routes.tokens.tolist() != fed:
        raise DemoError(f"request {index}: the recorded tokens are not those that were fed")


def ship(index: int, routes: mt.Routes) -> tuple[mt.Routes, dict[str, int]]:
    """The routes after a journey in each dialect, and the length of the texts."""
    sizes = {}
    received = routes
    for dialect in DIALECTS:
        text = mt.encode(received, dialect)
        sizes[dialect] = len(text)
        received = mt.decode(text, dialect, spec=routes.spec, start=0, rows=len(routes), version=VERSION)
        received = received.with_tokens(routes.tokens)  # the trainer has them beside the text
        if received != routes:
            raise DemoError(f"request {index}: came back from {dialect} as other routes")
    return received, sizes


def train(trainer: Any, requests: list[Request], replayed: list[mt.Routes] | None) -> tuple[list[Any], Any]:
    """What the trainer's routers chose for each request's rows, and its logprobs of the sampled tokens."""
    width = max(len(one.tokens) for one in requests)
    tokens = torch.tensor([one.tokens + [0] * (width - len(one.tokens)) for one in requests])
    mask = torch.tensor([[1] * len(one.tokens) + [0] * (width - len(one.tokens)) for one in requests])
    with torch.no_grad(), record(trainer) as recording:
        if replayed is None:
            logits = trainer(input_ids=tokens, attention_mask=mask).logits
        else:
            with attach(trainer).replay(replayed):
                logits = trainer(input_ids=tokens, attention_mask=mask).logits
    logprobs = logits.float().log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    chosen = [np.sort(routes.ids[:-1], axis=-1) for routes in recording.routes]
    return chosen, [
        logprobs[index, one.num_prompt - 1 : len(one.tokens) - 1] for index, one in enumerate(requests)
    ]


def compare(requests: list[Request], chosen: list[Any], logprobs: Any) -> tuple[float, float, float]:
    """Shares of layer x token pairs and of tokens whose experts differ, and mean |difference of logprob|."""
    differs = np.concatenate(
        [
            (np.sort(one.routes.ids, axis=-1) != ids).any(axis=-1)
            for one, ids in zip(requests, chosen, strict=True)
        ]
    )
    deltas = torch.cat([(one.logprobs - found).abs() for one, found in zip(requests, logprobs, strict=True)])
    return float(differs.mean()), float(differs.any(axis=1).mean()), float(deltas.mean())


def run(folder: str | None) -> None:
    model, prompts, pad = load(folder)
    spec = mt.models.spec_of(model)  # refuses, by name, what has no routes or cannot be recorded
    print(f"{spec.model}: {len(spec.layers)} MoE layers, top {spec.top_k} of {spec.num_experts} experts\n")
    requests = serve(model, prompts, pad)
    shipped, sizes = zip(*(ship(index, one.routes) for index, one in enumerate(requests)), strict=True)
    trainer = copy.deepcopy(model).float()
    plain = compare(requests, *train(trainer, requests, None))
    replayed = compare(requests, *train(trainer, requests, list(shipped)))

    tokens = sum(len(one.tokens) for one in requests)
    rows = sum(len(one.routes) for one in requests)
    missing = sum(sum(one.routes.missing.values()) for one in requests)
    line("requests", len(requests))
    line("tokens", tokens)
    line("rows (the last token of a request has none)", rows)
    line("missing rows", missing)
    line("bytes per token, moetape", f"{sum(one.routes.ids.nbytes for one in requests) / rows:.1f}")
    line("bytes per token, SGLang's int32 base64", f"{sum(one['sglang'] for one in sizes) / rows:.1f}")
    print()
    line("bfloat16 server against float32 trainer", "without", "with replay")
    line("routers that disagree (layer x token)", f"{plain[0]:.2%}", f"{replayed[0]:.2%}")
    line("tokens with a router that disagrees", f"{plain[1]:.2%}", f"{replayed[1]:.2%}")
    line("mean |difference of logprob| of sampled tokens", f"{plain[2]:.4f}", f"{replayed[2]:.4f}")
    print()
    if missing:
        raise DemoError(f"{missing} rows are missing, expected none")
    if replayed[0] or replayed[1]:
        raise DemoError("routers disagree under replay, expected none")


def line(label: str, *values: object) -> None:
    print(f"{label:48}" + "".join(f"{value:>13}" for value in values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", metavar="FOLDER", help="a checkpoint on disk instead of the small random model"
    )
    arguments = parser.parse_args()
    if arguments.model is None:
        torch.set_num_threads(1)  # small matrices: a second thread only waits
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        run(arguments.model)
    except Exception as error:
        if not isinstance(error, (DemoError, mt.Error)):
            traceback.print_exc()
        print(f"demo: failed: {error}")
        return 1
    print("demo: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
