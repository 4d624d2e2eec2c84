"""A transformers model's checkpoint functions, wrapped so that the graph holds what a call belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Function = Callable[..., Any]
_NAME = (
    "_gradient_checkpointing_func"  # what transformers calls with (layer, *args) where checkpointing is on
)


class Checkpointed:
    """Stands for a module's checkpoint function; ties what that is to run to the caller's state by `bind`."""

    def __init__(self, original: Function, bind: Callable[[Function], Function]) -> None:
        self.original = original
        self.bind = bind

    def __call__(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        return self.original(self.bind(function), *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """Give a copied model its plain function."""
        return self.original


def wrap_all(model: torch.nn.Module, bind: Callable[[Function], Function]) -> Iterator[Callable[[], None]]:
    """Wrap every checkpoint function that `bind` does not yet stand for; yields how to undo each."""
    for module in model.modules():
        original = getattr(module, _NAME, None)
        if original is not None and not (isinstance(original, Checkpointed) and original.bind == bind):
            yield _wrap(module, original, bind)


def _wrap(
    module: torch.nn.Module, original: Function, bind: Callable[[Function], Function]
) -> Callable[[], None]:
    wrapped = Checkpointed(original, bind)
    was_own = _NAME in module.__dict__
    setattr(module, _NAME, wrapped)

    def undo() -> None:
        if module.__dict__.get(_NAME) is not wrapped:
            return  # checkpointing was switched since
        if was_own:
            setattr(module, _NAME, original)
        else:
            delattr(module, _NAME)

    return undo
