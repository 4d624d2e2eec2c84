"""Reinforcement learning with TRL's GRPOTrainer, on the experts that the rollout chose.

A small Qwen3-MoE learns to answer in capital letters. A bfloat16 copy of it samples the answers, as a server
would, and moetape records the experts of every token. The float32 model is trained twice from the same
start: on the experts that it chooses itself, and on the recorded ones. A table shows how often its routers
differ from those of the server, and by how much its logprobs do.

    python examples/train_grpo.py [--steps 30] [--seed 0]

All that replay takes in TRL is the class ReplayTrainer. Needs trl, and no network.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # about rollout_func

import datasets
import numpy as np
import tokenizers
import torch
import transformers
import trl

import moetape as mt
from moetape.engines.transformers import record
from moetape.trainers.transformers import attach

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .?"
PROMPTS = ("say it", "louder", "what now", "who is there", "speak up", "once more", "and then", "why not")
ANSWERS_PER_PROMPT = 8
ANSWER_TOKENS = 16
SHOWN_EVERY = 10  # steps


@dataclass
class Answer:
    """A sampled answer behind its prompt: the experts of its tokens, and the server's logprobs of them."""

    routes: mt.Routes
    logprobs: torch.Tensor


@dataclass
class Measured:
    """What the trainer computes on answers that were just sampled, before it learns from them."""

    rewards: list[float] = field(default_factory=list)
    logprob_gaps: list[float] = field(default_factory=list)  # mean |trainer's - server's|
    rerouted: list[float] = field(default_factory=list)  # share of routers that took other experts

    def means(self, first: int, last: int) -> tuple[float, float, float]:
        parts = (self.rewards, self.rerouted, self.logprob_gaps)
        reward, rerouted, gap = (float(np.mean(part[first:last])) for part in parts)
        return reward, rerouted, gap


class ReplayTrainer(trl.GRPOTrainer):
    """GRPOTrainer that samples from a bfloat16 copy and computes logprobs on the experts chosen there."""

    def __init__(self, *args: Any, replays: bool, **options: Any) -> None:
        super().__init__(*args, rollout_func=sample, **options)
        self.replays = replays
        self.session = attach(self.model)
        self.server = transformers.Qwen3MoeForCausalLM(self.model.config).to(torch.bfloat16).eval()
        self.answers: dict[tuple[int, ...], Answer] = {}  # by the tokens of prompt and answer
        self.measured = Measured()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """TRL's own, of which all passes get their logprobs: each of its forwards in a block."""
        logprobs, entropies = [], []
        rows = batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(rows), attention_mask.split(rows), strict=True):
            answers = [self.answer_to(*row) for row in zip(ids, mask, strict=True)]
            routes = [answer.routes for answer in answers]
            replay = self.session.replay(routes) if self.replays else nullcontext()
            with self.session.record() as recording, replay:
                found, entropy, _ = super()._get_per_token_logps_and_entropies(
                    model, ids, mask, logits_to_keep, **rest
                )
            logprobs.append(found)
            entropies.append(entropy)
            if not torch.is_grad_enabled():
                self._measure(answers, recording.routes, found)
        return torch.cat(logprobs), None if entropies[0] is None else torch.cat(entropies), None

    def answer_to(self, ids: torch.Tensor, mask: torch.Tensor) -> Answer:
        return self.answers[tuple(ids[mask.bool()].tolist())]

    def _measure(self, answers: list[Answer], trained: list[mt.Routes], logprobs: torch.Tensor) -> None:
        served = [answer.routes for answer in answers]
        same_rows = [one.slice(0, other.end) for one, other in zip(trained, served, strict=True)]
        self.measured.rerouted.append(mt.compare(served, same_rows).total.rerouted_routers_rate)
        gaps = [
            (row[: len(answer.logprobs)] - answer.logprobs).abs()
            for row, answer in zip(logprobs, answers, strict=True)
        ]
        self.measured.logprob_gaps.append(float(torch.cat(gaps).mean()))


def share_of_capitals(completions: list[str], **_: Any) -> list[float]:
    """TRL's reward function."""
    return [sum(map(str.isupper, text)) / ANSWER_TOKENS for text in completions]


@torch.no_grad()
def sample(prompts: list[str], trainer: ReplayTrainer) -> dict[str, Any]:
    """TRL's rollout_func: one answer to each prompt, by a server that has the trainer's weights of now."""
    server = trainer.server
    server.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())  # rounds to bfloat16
    batch = trainer.processing_class(prompts, return_tensors="pt", padding=True, padding_side="left")
    with record(server, version=trainer.state.global_step) as recording:
        output = server.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=ANSWER_TOKENS,
            do_sample=True,
            top_k=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    answers = output.sequences[:, batch["input_ids"].shape[1] :]
    scores = torch.stack(output.logits, dim=1).float().log_softmax(-1)
    logprobs = scores.gather(2, answers[:, :, None])[:, :, 0]
    texts = trainer.processing_class.batch_decode(answers, skip_special_tokens=True)
    trainer.measured.rewards.append(float(np.mean(share_of_capitals(texts))))
    trainer.answers.clear()
    prompt_ids, answer_ids = [], []
    for at, routes in enumerate(recording.routes):
        prompt = batch["input_ids"][at][batch["attention_mask"][at].bool()].tolist()
        length = routes.end + 1 - len(prompt)  # the last token was sampled, and never fed
        answer = answers[at, :length].tolist()
        trainer.answers[(*prompt, *answer)] = Answer(routes, logprobs[at, :length])
        prompt_ids.append(prompt)
        answer_ids.append(answer)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": answer_ids,
        "logprobs": [logprobs[at, : len(one)].tolist() for at, one in enumerate(answer_ids)],
    }


def letter_tokenizer() -> Any:
    words = {word: number for number, word in enumerate(["<pad>", "<end>", *LETTERS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    )


def new_model(seed: int, tokenizer: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        initializer_range=0.2,  # routers that matter from the start
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        router_aux_loss_coef=0.0,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def new_trainer(folder: str, replays: bool, steps: int, seed: int, **options: Any) -> ReplayTrainer:
    """A trainer of a new model for as many steps of GRPO, two updates each on answers of one version."""
    tokenizer = letter_tokenizer()
    trainer = ReplayTrainer(
        new_model(seed, tokenizer),
        reward_funcs=[share_of_capitals],
        replays=replays,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"prompt": list(PROMPTS)}),
        args=trl.GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(PROMPTS) * ANSWERS_PER_PROMPT,
            num_generations=ANSWERS_PER_PROMPT,
            max_completion_length=ANSWER_TOKENS,
            num_iterations=2,
            max_steps=2 * steps,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            use_cpu=True,
            bf16=False,
            seed=seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        ),
        **options,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def train(replays: bool, steps: int, seed: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        trainer = new_trainer(folder, replays, steps, seed)
        trainer.train()
    return trainer.measured


HEADING = """\
                 reward     routers that differ   |logprob - server's|
step         live  replay        live    replay        live    replay"""


def run(steps: int, seed: int) -> dict[bool, Measured]:
    """Train without and with replay, and print a table; {replays: measured}."""
    started = time.monotonic()
    both = {replays: train(replays, steps, seed) for replays in (False, True)}
    print(HEADING)
    for first in range(0, steps, SHOWN_EVERY):
        last = min(first + SHOWN_EVERY, steps)
        (reward, rerouted, gap), replayed = both[False].means(first, last), both[True].means(first, last)
        print(
            f"{first:>3} to {last:<4}{reward:>6.2f}{replayed[0]:>8.2f}{rerouted:>12.2%}{replayed[1]:>10.2%}"
            f"{gap:>12.4f}{replayed[2]:>10.4f}"
        )
    print(f"\n{time.monotonic() - started:.0f} s")
    return both


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="of sampling, two updates each (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps: expected 1 or more, got {arguments.steps}")
    torch.set_num_threads(1)  # small matrices: a second thread only waits
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    run(arguments.steps, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
