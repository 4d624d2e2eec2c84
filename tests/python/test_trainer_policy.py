"""ReplayPolicy is a value that is checked when it is made."""

from __future__ import annotations

from typing import Any

import pytest

import moetape as mt
from moetape.trainers.policy import ReplayPolicy


def test_a_policy_is_a_value() -> None:
    assert ReplayPolicy(passes=["train"]) == ReplayPolicy(passes={"train"})
    assert hash(ReplayPolicy()) == hash(ReplayPolicy(passes=("logprob", "train")))
    assert [ReplayPolicy().replays(one) for one in ("train", "logprob", "reference")] == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"passes": ["train", "eval"]}, "passes: expected some of 'train', 'logprob', 'reference'"),
        ({"passes": "train"}, "passes: expected some of"),
        ({"allow": ["fusion"]}, "allow: expected some of 'capacity', 'jitter'"),
        ({"missing": "skip"}, "missing: expected one of 'live', 'error', 'fill', got 'skip'"),
        ({"padding": "zero"}, "padding: expected one of"),
        ({"aux_loss": None}, "aux_loss: expected one of"),
        ({"expert_bias": "off"}, "expert_bias: expected one of"),
        ({"on_bad_data": "ignore"}, "on_bad_data: expected one of"),
        ({"max_missing": 1.5}, "max_missing: expected a share from 0 to 1 or None, got 1.5"),
        ({"max_missing_in_batch": "10%"}, "max_missing_in_batch: expected a share"),
        ({"min_version": -1}, "min_version: expected a version or None, got -1"),
        ({"min_version": True}, "min_version: expected a version"),
    ],
)
def test_fields_that_are_none_of_their_choices_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.InvalidArgumentError, match=message):
        ReplayPolicy(**fields)
