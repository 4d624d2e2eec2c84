"""Stand before a method of one object, and step aside again without a trace."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar, cast

import torch

from moetape import InvalidArgumentError

_lock = RLock()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_of_graphs(function: _Function) -> _Function:
    """Keep torch.compile away from a function: it runs between two graphs, and fullgraph=True is an error."""
    disabled = torch.compiler.disable(function, reason="moetape works outside of compiled graphs")
    return cast(_Function, disabled)


class Override:
    """Replaces `owner.name` for one object by `around(original, *args, **kwargs)` until `remove()`.

    Only the object's own __dict__ is changed; the class and other objects are not. Overrides of one method
    may be stacked and removed in any order. If somebody wraps an override and it is removed, it stays below
    theirs and only passes through. The owner is not kept alive. A deep copy of the owner gets the plain
    method. `inspect.signature` sees the original's.

    Threads: any; a call under way when `remove()` comes ends as it began.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        self._owner = weakref.ref(owner)
        self._around: Callable[..., Any] | None = around
        self.__name__ = name
        with _lock:
            self._before = owner.__dict__.get(name)
            owner.__dict__[name] = self

    def remove(self) -> None:
        """Take the override off; twice does nothing."""
        with _lock:
            self._around = None
            owner = self._owner()
            if owner is None:
                return
            name = self.__name__
            top = owner.__dict__.get(name)
            while isinstance(top, Override) and top._around is None:
                top = top._before
            if top is None:
                owner.__dict__.pop(name, None)
            else:
                owner.__dict__[name] = top

    @property
    def __wrapped__(self) -> Any:
        if self._before is not None:
            return self._before
        owner = self._owner()
        if owner is None:
            raise InvalidArgumentError(f"{self.__name__}: expected a living owner, got one that is gone")
        return types.MethodType(getattr(type(owner), self.__name__), owner)

    @outside_of_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original, around = self.__wrapped__, self._around
        return original(*args, **kwargs) if around is None else around(original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = self._owner()
        copied = None if owner is None else memo.get(id(owner))
        if copied is None:
            raise InvalidArgumentError(f"{self.__name__}: expected to be copied together with its owner")
        return types.MethodType(getattr(type(owner), self.__name__), copied)
