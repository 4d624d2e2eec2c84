"""What a trainer does with recorded routes: one value, the same on all ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import moetape as mt

__all__ = ["Pass", "ReplayPolicy"]

Pass = Literal["train", "logprob", "reference"]
_CHOICES = {
    "missing": ("live", "error", "fill"),
    "padding": ("live", "fill"),
    "aux_loss": ("live", "replayed", "none"),
    "expert_bias": ("replayed", "live", "frozen"),
    "on_bad_data": ("raise", "drop", "live"),
}
_ALLOWABLE = ("capacity", "jitter")


@dataclass(frozen=True)
class ReplayPolicy:
    """What is replayed and how. A value; raises InvalidArgumentError for a field that is none of its choices.

    passes: which of "train", "logprob" (of the old policy) and "reference" replay; the others are live.
    missing: tokens of a sequence without a valid recorded row: "live" (the router decides), "error" (bad
    data, see on_bad_data) or "fill" (rotating distinct ids). A last token, never fed, is live, or filled.
    padding: "live" or "fill", the same for padding.
    max_missing: the largest share of a sequence's tokens on this rank that may miss, and max_missing_in_batch
    of all tokens of the step on this rank: more is bad data of the sequence, and an error of the batch.
    min_version: rows of older policy versions count as missing; rows of no version stay.
    aux_loss: whose ids give the load of the load-balancing losses; "none" leaves these losses out.
    expert_bias: whose ids count for the update of a router's expert bias; "frozen" counts nothing. Padding is
    never counted.
    The z-loss is made of the live logits.
    allow: "capacity" (expert capacity, which drops replayed tokens) and "jitter" (noise on the router's
    input) are refused unless named here.
    on_bad_data: of a sequence whose data is bad on some rank: "raise" on all ranks; "drop" the sequence on
    all ranks that hold a part of it (it is routed live, and the caller leaves it out of the loss); or go
    "live" with the whole step on all ranks.
    """

    passes: Collection[str] = ("train", "logprob")
    missing: Literal["live", "error", "fill"] = "live"
    padding: Literal["live", "fill"] = "live"
    max_missing: float | None = None
    max_missing_in_batch: float | None = None
    min_version: int | None = None
    aux_loss: Literal["live", "replayed", "none"] = "live"
    expert_bias: Literal["replayed", "live", "frozen"] = "replayed"
    allow: Collection[str] = ()
    on_bad_data: Literal["raise", "drop", "live"] = "raise"

    def __post_init__(self) -> None:
        _take_names(self, "passes", get_args(Pass))
        _take_names(self, "allow", _ALLOWABLE)
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise mt.InvalidArgumentError(
                    f"{field}: expected one of {', '.join(map(repr, choices))}, got {getattr(self, field)!r}"
                )
        for field in ("max_missing", "max_missing_in_batch"):
            share = getattr(self, field)
            if share is not None and not (isinstance(share, int | float) and 0 <= share <= 1):
                raise mt.InvalidArgumentError(f"{field}: expected a share from 0 to 1 or None, got {share!r}")
        version = self.min_version
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise mt.InvalidArgumentError(f"min_version: expected a version or None, got {version!r}")

    def __str__(self) -> str:
        """The same text for equal policies, in every process."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        texts = (f"{name}={sorted(one) if isinstance(one, frozenset) else one!r}" for name, one in values)
        return f"ReplayPolicy({', '.join(texts)})"

    def replays(self, pass_: str) -> bool:
        if pass_ not in get_args(Pass):
            raise mt.InvalidArgumentError(
                f"pass_: expected one of {', '.join(map(repr, get_args(Pass)))}, got {pass_!r}"
            )
        return pass_ in self.passes


def _take_names(policy: Any, field: str, choices: Collection[str]) -> None:
    names = getattr(policy, field)
    if isinstance(names, str) or not set(names) <= set(choices):
        raise mt.InvalidArgumentError(
            f"{field}: expected some of {', '.join(map(repr, choices))}, got {names!r}"
        )
    object.__setattr__(policy, field, frozenset(names))
