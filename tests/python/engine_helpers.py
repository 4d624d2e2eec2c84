"""What the tests of the transformers engine share: prompts, and plain references for what was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import moetape
from moetape import models
from replay_helpers import received

EOS = 2
LENGTHS = (3, 7, 5)


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> dict[str, torch.Tensor]:
    """Left-padded prompts; the padding holds tokens that a careless reader would take for real ones."""
    longest, generator = max(lengths), torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 97, (len(lengths), longest), generator=generator)
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
    return {"input_ids": ids, "attention_mask": mask}


def alone(model: Any, tokens: list[int]) -> np.ndarray:
    """What the experts receive when one sequence is fed by itself, without a cache: [rows, layers, k]."""
    with torch.no_grad(), received(model) as ids:
        model(torch.tensor([tokens]), use_cache=False)
    return np.stack([ids[layer] for layer in sorted(ids)], axis=1)


def fed_of(output: torch.Tensor, inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    """The tokens fed of each returned sequence: prompt and sampled ones before the first EOS or the last."""
    num_prompts, width = inputs["input_ids"].shape
    fed = []
    for index, row in enumerate(output.tolist()):
        prompt = index * num_prompts // len(output)
        sampled = row[width:]
        end = sampled.index(EOS) if EOS in sampled else len(sampled) - 1
        fed.append(row[width - int(inputs["attention_mask"][prompt].sum()) : width] + sampled[:end])
    return fed


def assert_same_experts(routes: moetape.Routes, expected: np.ndarray) -> None:
    assert routes.ids.shape == expected.shape
    assert np.array_equal(np.sort(routes.ids, axis=-1), np.sort(expected, axis=-1))


def assert_recorded(
    model: Any, recording: Any, output: torch.Tensor, inputs: dict[str, torch.Tensor]
) -> None:
    fed = fed_of(output, inputs)
    assert len(recording.routes) == len(fed)
    for routes, tokens in zip(recording.routes, fed, strict=True):
        assert routes.tokens.tolist() == tokens
        assert (routes.start, routes.end) == (0, len(tokens))
        assert routes.complete
        assert_same_experts(routes, alone(model, tokens))


def assert_untouched(model: Any) -> None:
    assert models.num_intercepted() == 0
    names = (
        "forward",
        "generate",
        "generate_batch",
        "prepare_inputs_for_generation",
        "_get_stopping_criteria",
    )
    for module in model.modules():
        assert not [name for name in names if name in module.__dict__]
