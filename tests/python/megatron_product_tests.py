"""The product of what changes a Megatron model's routing, on two ranks. Run by test_trainer_megatron.py.

Every pair of choices in `make test`, all combinations in `make nightly` (MOETAPE_TEST_FULL).
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from megatron_ranks import SetUp, prove

FACTORS: dict[str, list[dict[str, Any]]] = {
    "dispatcher": [
        {"moe_token_dispatcher_type": "alltoall"},
        {"moe_token_dispatcher_type": "allgather"},
    ],
    "recompute": [
        {},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
    ],
    "score": [
        {"moe_router_pre_softmax": False},
        {"moe_router_pre_softmax": True},
        {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
        {"moe_router_pre_softmax": True, "moe_router_num_groups": 4, "moe_router_group_topk": 1},
    ],
    "dense": [{}, {"num_layers": 3, "moe_layer_freq": [0, 1, 1]}],
    "ep": [{"ep": 1}, {"ep": 2}],
    "tp": [{"tp": 1}, {"tp": 2}],
    "batch": [{"batch": 1}, {"batch": 2}],
    "schedule": [{"schedule": "F0 F1 B0 B1"}, {"schedule": "F0 B0 F1 B1"}, {"schedule": "F0 F1 B1 B0"}],
}
_SHAPE = {"ep", "tp", "batch", "schedule"}
Choice = tuple[int, ...]


def everything() -> list[Choice]:
    return list(itertools.product(*(range(len(choices)) for choices in FACTORS.values())))


def pairwise() -> list[Choice]:
    """Few combinations in which every two choices of different factors meet."""
    pairs = {choice: _pairs(choice) for choice in everything()}
    left = set().union(*pairs.values())
    taken = []
    while left:
        best = max(pairs, key=lambda choice: len(left & pairs[choice]))
        left -= pairs[best]
        taken.append(best)
    return taken


def _pairs(choice: Choice) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(choice), 2))


def set_up(choice: Choice) -> SetUp:
    changes: dict[str, Any] = {}
    shape: dict[str, Any] = {}
    for (name, choices), at in zip(FACTORS.items(), choice, strict=True):
        (shape if name in _SHAPE else changes).update(choices[at])
    return SetUp(changes=changes, **shape)


def test_the_product() -> None:
    chosen = everything() if "MOETAPE_TEST_FULL" in os.environ else pairwise()
    assert len(chosen) <= 24 or "MOETAPE_TEST_FULL" in os.environ
    for choice in chosen:
        try:
            prove(set_up(choice))
        except Exception as error:
            raise AssertionError(f"{set_up(choice)}: {error}") from error
