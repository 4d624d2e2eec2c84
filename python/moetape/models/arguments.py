"""Refuse arguments of another kind by name, before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from moetape import WrongTypeError


def check_model(model: object) -> None:
    """Raise WrongTypeError for what is no torch model."""
    check("model", model, nn.Module, "a torch.nn.Module")


def check_excluded(excluded: object) -> None:
    """Raise WrongTypeError for what are no {layer: reason}; None is none."""
    check("excluded", excluded, Mapping | None, "a mapping {layer: reason}")


def check(name: str, value: object, kind: object, expected: str) -> None:
    """Raise WrongTypeError for an argument that is not of this kind."""
    if not isinstance(value, kind):  # type: ignore[arg-type]
        found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise WrongTypeError(f"{name}: expected {expected}, got {found}")
