"""Train a small Mixture-of-Experts model on Python's own sources and record how it routes: real data.

A Qwen3-MoE of 5 million weights learns the bytes of the standard library. At some checkpoints, the policy
versions, it is recorded twice over the same tokens, as in reinforcement learning: a bfloat16 copy serves (it
reads held-out text, and continues it), and the float32 model itself is the trainer, which computes the same
tokens again. The two disagree about some experts; a table says how often, beside loss and balance.

    python examples/train_small_moe.py [--steps 1500] [--seed 0] [--out FOLDER]

Both records are written as tapes, FOLDER/run.tape (the server's) and FOLDER/other.tape (the trainer's).

Equal steps and seed give equal routes on one machine, with one version of Python, torch and transformers.
"""

from __future__ import annotations

import argparse
import copy
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

import moetape as mt
from moetape.engines.transformers import record

Bytes = npt.NDArray[np.uint8]

NUM_VERSIONS = 4
BATCH, CONTEXT = 5, 192  # of training, in sequences and bytes
NUM_READ, LENGTH_READ = 24, 192  # held-out text, the same at every version
NUM_PROMPTS, LENGTH_PROMPT, NEW_TOKENS = 8, 64, 128


@dataclass
class Record:
    """The same tokens as the server and as the trainer routed them."""

    sequence_ids: list[str] = field(default_factory=list)
    served: list[mt.Routes] = field(default_factory=list)
    trained: list[mt.Routes] = field(default_factory=list)


@dataclass
class Corpus:
    """The bytes to learn, and what is held out: the whole of some files, by name."""

    learned: Bytes
    held_out: dict[str, Bytes]

    @classmethod
    def of_python(cls) -> Corpus:
        """The top-level modules of the standard library; every tenth long one is held out."""
        folder = Path(sysconfig.get_path("stdlib"))
        files = sorted(folder.glob("*.py"))
        texts = {file.name: np.frombuffer(file.read_bytes(), np.uint8) for file in files}
        long = [name for name, text in texts.items() if len(text) > 4 * LENGTH_READ]
        held_out = {name: texts.pop(name) for name in long[5::10]}
        if not held_out:
            raise SystemExit(
                f"train_small_moe: expected Python's sources in {folder}, got {len(files)} files"
            )
        return cls(np.concatenate([*texts.values()]), held_out)

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        random = np.random.default_rng(seed)
        while True:
            starts = random.integers(0, len(self.learned) - CONTEXT, BATCH)
            yield as_tokens([self.learned[start : start + CONTEXT] for start in starts])

    def passages(self, count: int, length: int, seed: int) -> dict[str, Bytes]:
        """Pieces of held-out files, by `file:offset`."""
        random = np.random.default_rng(seed)
        names = sorted(self.held_out)
        chosen: dict[str, Bytes] = {}
        while len(chosen) < count:
            name = names[random.integers(len(names))]
            start = int(random.integers(0, len(self.held_out[name]) - length))
            chosen[f"{name}:{start}"] = self.held_out[name][start : start + length]
        return chosen


def as_tokens(texts: list[Bytes]) -> torch.Tensor:
    return torch.from_numpy(np.stack(texts).astype(np.int64))


def new_model(seed: int) -> Any:
    """A byte is a token; byte 0, which no text has, is the padding."""
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        output_router_logits=True,
        router_aux_loss_coef=0.01,  # of the balancing loss: enough that few experts are forgotten
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.Qwen3MoeForCausalLM(config).train()


def train(model: Any, corpus: Corpus, steps: int, seed: int) -> Iterator[tuple[int, float]]:
    """Trains, and stops at each version: (version, mean training loss since the last one)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm_up, 1.05 - step / steps)
    )
    losses: list[float] = []
    batches = corpus.batches(seed)
    for step in range(1, steps + 1):
        tokens = next(batches)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        version, past = divmod(step * NUM_VERSIONS, steps)
        if past < NUM_VERSIONS:
            model.eval()
            yield version, float(np.mean(losses))
            model.train()
            losses.clear()


@torch.no_grad()
def record_version(model: Any, corpus: Corpus, version: int, seed: int) -> Record:
    """What one version does with held-out text and with its own continuations of it."""
    server = copy.deepcopy(model).to(torch.bfloat16)
    read = corpus.passages(NUM_READ, LENGTH_READ, seed)
    prompts = corpus.passages(NUM_PROMPTS, LENGTH_PROMPT, seed + 1)
    torch.manual_seed(seed + version)
    with record(server, version) as recording:
        server(input_ids=as_tokens([*read.values()]))
        server.generate(
            input_ids=as_tokens([*prompts.values()]),
            attention_mask=torch.ones(NUM_PROMPTS, LENGTH_PROMPT, dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            temperature=0.8,
            top_k=0,
        )
    served = recording.routes
    with record(model, version) as recording:
        for some in (served[:NUM_READ], served[NUM_READ:]):
            model(input_ids=as_tokens([routes.tokens for routes in some]))
    names = [f"read/{name}" for name in read] + [f"continued/{name}" for name in prompts]
    return Record([f"v{version}/{name}" for name in names], served, recording.routes)


@torch.no_grad()
def loss_of_held_out(model: Any, corpus: Corpus, seed: int) -> float:
    tokens = as_tokens([*corpus.passages(NUM_READ, LENGTH_READ, seed).values()])
    logits = model(input_ids=tokens, output_router_logits=False).logits
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


@dataclass
class Summary:
    """A version in numbers."""

    version: int
    train_loss: float
    held_out_loss: float
    stats: mt.Stats  # of the server's routes
    comparison: mt.Comparison  # of both

    def line(self) -> str:
        loads = [balance.max_over_mean for balance in self.stats.balance.values()]
        reuse = np.mean([agreement.overlap for agreement in self.stats.reuse.values()])
        total = self.comparison.total
        return (
            f"{self.version:<7}{self.train_loss:>8.3f}{self.held_out_loss:>10.3f} "
            + "".join(f"{load:>5.1f}" for load in loads)
            + f"{reuse:>12.1%}{total.rerouted_routers_rate:>17.1%}{total.rerouted_rows_rate:>11.1%}"
        )


HEADING = """\
                     loss  fullest expert / mean load    ids of the     server and trainer differ
version   train  held out  layers 0 to 5               token before       in routers  in tokens"""


def run(steps: int, seed: int) -> tuple[Record, list[Summary]]:
    """Trains and prints a table; gives the record of all versions and their summaries."""
    started = time.monotonic()
    corpus = Corpus.of_python()
    model = new_model(seed)
    num_weights = sum(weight.numel() for weight in model.parameters())
    print(f"{num_weights / 1e6:.1f} million weights, {len(corpus.learned) / 1e6:.1f} MB of text\n\n{HEADING}")
    everything, summaries = Record(), []
    for version, loss in train(model, corpus, steps, seed):
        one = record_version(model, corpus, version, seed)
        held_out = loss_of_held_out(model, corpus, seed)
        comparison = mt.compare(one.served, one.trained)
        summaries.append(Summary(version, loss, held_out, mt.stats(one.served), comparison))
        print(summaries[-1].line(), flush=True)
        everything.sequence_ids += one.sequence_ids
        everything.served += one.served
        everything.trained += one.trained
    rows = sum(map(len, everything.served))
    print(f"\n{rows} rows of {len(everything.served)} sequences, {time.monotonic() - started:.0f} s")
    return everything, summaries


def save(record: Record, folder: Path) -> None:
    for name, routes in (("run.tape", record.served), ("other.tape", record.trained)):
        mt.save(folder / name, routes, sequence_ids=record.sequence_ids, overwrite=True)
        print(f"{folder / name}: {(folder / name).stat().st_size / 1e6:.2f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="of training, at least 4 (default: 1500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("build/routes"), help="folder of the tapes (default: build/routes)"
    )
    arguments = parser.parse_args()
    if arguments.steps < NUM_VERSIONS:
        parser.error(f"--steps: expected {NUM_VERSIONS} or more, got {arguments.steps}")
    torch.set_num_threads(1)  # small matrices: a second thread only waits
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    arguments.out.mkdir(parents=True, exist_ok=True)
    record, _ = run(arguments.steps, arguments.seed)
    save(record, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
