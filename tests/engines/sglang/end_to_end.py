"""The whole way of R3: SGLang serves in bfloat16, trainers compute the same tokens in float32.

    end_to_end.py serve MODEL ROLLOUT               # SGLang; a JSON file of what it answered
    end_to_end.py train TRAINER MODEL ROLLOUT OUT   # figures of transformers or megatron

Programs of their own, since SGLang takes a process down with it and two Megatrons never meet in one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import moetape as mt

NUM_REQUESTS, NEW_TOKENS = 24, 48


@dataclass
class Request:
    """What came back for one prompt."""

    tokens: list[int]
    num_prompt: int
    logprobs: list[float]  # of the sampled tokens, by the server
    text: str  # of the routes, as the server sent it


def serve(model: str, rollout: str) -> None:
    import sglang

    from scenarios import ENGINE

    draw = random.Random(3)
    prompts = [draw.choices(range(3, 259), k=draw.randint(8, 40)) for _ in range(NUM_REQUESTS)]
    engine = sglang.Engine(model_path=model, **{**ENGINE, "dtype": "bfloat16"})
    answers = engine.generate(
        input_ids=prompts,
        sampling_params={"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "sampling_seed": 5},
        return_logprob=True,
        return_routed_experts=True,
    )
    engine.shutdown()
    requests = [
        Request(
            prompt + answer["output_ids"],
            len(prompt),
            [logprob for logprob, *_ in answer["meta_info"]["output_token_logprobs"]],
            answer["meta_info"]["routed_experts"],
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    Path(rollout).write_text(json.dumps([vars(one) for one in requests]))


@dataclass
class Step:
    """What one training step computed."""

    experts: list[Any]  # of each request [rows, layers, k], ids of a row in ascending order
    logprobs: list[torch.Tensor]
    gradient: float  # norm of the routers' gradients


class Batch:
    """All requests as one batch, padded on the right."""

    def __init__(self, requests: list[Request], routes: list[mt.Routes]) -> None:
        self.requests, self.routes = requests, routes
        self.lengths = [len(one.tokens) for one in requests]
        self.width = max(self.lengths)
        self.tokens = torch.tensor([one.tokens + [0] * (self.width - len(one.tokens)) for one in requests])
        self.labels = self.tokens.roll(-1, 1)
        self.is_sampled = torch.zeros(self.tokens.shape, dtype=torch.bool)
        for index, one in enumerate(requests):
            self.is_sampled[index, one.num_prompt - 1 : len(one.tokens) - 1] = True

    def loss(self, logprobs: torch.Tensor) -> torch.Tensor:
        return -logprobs[self.is_sampled].mean()

    def split(self, logprobs: torch.Tensor) -> list[torch.Tensor]:
        """The sampled tokens' of each request, from [batch, width]."""
        flat = logprobs.detach()[self.is_sampled]
        return list(flat.split([len(one.logprobs) for one in self.requests]))


def transformers_trainer(model: Any, batch: Batch) -> Callable[[bool], Step]:
    from moetape.engines.transformers import record
    from moetape.trainers.transformers import attach

    replay = attach(model).replay
    mask = torch.arange(batch.width)[None] < torch.tensor(batch.lengths)[:, None]

    def logprobs() -> torch.Tensor:
        logits = model(input_ids=batch.tokens, attention_mask=mask.long()).logits
        return logits.log_softmax(-1).gather(2, batch.labels[..., None])[..., 0]

    def step(replayed: bool) -> Step:
        model.zero_grad()
        with record(model) as recording:
            if replayed:
                with replay(batch.routes):
                    found = logprobs()
                    batch.loss(found).backward()
            else:
                found = logprobs()
                batch.loss(found).backward()
        experts = [np.sort(routes.ids[:-1], axis=-1) for routes in recording.routes]
        routers = [layer.mlp.gate.weight.grad for layer in model.model.layers]
        return Step(experts, batch.split(found), _norm(routers))

    return step


def megatron_trainer(model: Any, batch: Batch) -> Callable[[bool], Step]:
    import megatron_cpu
    from moetape.trainers.megatron import attach
    from qwen3_in_megatron import build

    gpt = build(model)
    session = attach(gpt)
    count, width = batch.tokens.shape
    positions = torch.arange(width).expand(count, width)
    hidden = torch.ones(count, 1, width, width).tril() < 0.5

    def forward_step(data_iterator: Any, model: Any) -> Any:
        tokens, labels = next(data_iterator)
        losses = model(tokens, positions, hidden, labels=labels)
        return losses, lambda output: (batch.loss(-output), {})

    def step(replayed: bool) -> Step:
        gpt.zero_grad()
        given = session.padded(batch.routes, batch.lengths, width)
        data = iter([(batch.tokens, batch.labels)])
        with megatron_cpu.dispatched(gpt) as maps:
            if replayed:
                with session.forward_step(forward_step, [given], pass_="train") as call:
                    losses, loss = call(data, gpt)
                    loss(losses)[0].backward()
            else:
                losses, loss = forward_step(data, gpt)
                loss(losses)[0].backward()
        seen = [maps[layer][0].reshape(width, count, -1) for layer in sorted(maps)]
        top_k = model.config.num_experts_per_tok
        experts = [
            np.stack([_chosen(one[: length - 1, index], top_k) for one in seen], axis=1)
            for index, length in enumerate(batch.lengths)
        ]
        routers = [layer.mlp.router.weight.grad for layer in gpt.decoder.layers]
        return Step(experts, batch.split(-losses), _norm(routers))

    return step


def _chosen(routing_map: torch.Tensor, top_k: int) -> Any:
    """Ids [rows, k] in order of a map bool [rows, experts]."""
    return routing_map.nonzero()[:, 1].reshape(-1, top_k).numpy()


def _norm(gradients: list[Any]) -> float:
    return float(torch.stack([one.norm() for one in gradients]).norm())


def figures(batch: Batch, step: Step) -> dict[str, float]:
    """How a step differs from the rollout: routers, tokens, logprobs."""
    from moetape.trainers.meter import Meter

    spec = batch.routes[0].spec
    meter = Meter(spec, device="cpu")
    for one, routes, experts, found in zip(
        batch.requests, batch.routes, step.experts, step.logprobs, strict=True
    ):
        recorded = torch.from_numpy(routes.ids.astype(np.int64)).transpose(0, 1)
        meter.add_routes(recorded, torch.from_numpy(experts.astype(np.int64)).transpose(0, 1))
        meter.add_logprobs(torch.tensor(one.logprobs), found)
    names = (
        "r3/rerouted_routers",
        "r3/rerouted_tokens",
        "train_rollout_logprob_abs_diff",
        "rollout_train_k3_kl",
        "rollout_train_extreme_frac_tau2",
    )
    metrics = meter.read().metrics
    return {**{name: metrics[name] for name in names}, "router gradients": step.gradient}


def train(trainer: str, folder: str, rollout: str, out: str) -> None:
    import transformers

    requests = [Request(**one) for one in json.loads(Path(rollout).read_text())]
    spec = mt.RouteSpec.from_config(folder)
    routes = [mt.decode(one.text, "sglang", spec=spec, start=0, rows=len(one.tokens) - 1) for one in requests]
    missing = sum(sum(one.missing.values()) for one in routes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = Batch(requests, routes)
    step = {"transformers": transformers_trainer, "megatron": megatron_trainer}[trainer](model, batch)
    found = {
        "rows": sum(map(len, routes)),
        "missing": missing,
        "without": figures(batch, step(False)),
        "replay": figures(batch, step(True)),
    }
    Path(out).write_text(json.dumps(found))


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "serve":
        serve(*arguments)
    elif arguments[0] == "megatron":
        import megatron_cpu

        megatron_cpu.stand_in_for_cuda()
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        with megatron_cpu.parallel():
            train(*arguments)
    else:
        train(*arguments)


if __name__ == "__main__":
    main()
