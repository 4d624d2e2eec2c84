"""The list of a class's instances that trainers keep, without those that are gone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Instances(Sequence[T], Generic[T]):
    """The instances that are alive, in the order in which they were made. Holds none of them."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[T]] = []

    def _alive(self) -> list[T]:
        return [one for one in (known() for known in self._known) if one is not None]

    def append(self, instance: T) -> None:
        self._known = [known for known in self._known if known() is not None]
        self._known.append(weakref.ref(instance))

    def clear(self) -> None:
        self._known.clear()

    def __len__(self) -> int:
        return len(self._alive())

    def __iter__(self) -> Iterator[T]:
        return iter(self._alive())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._alive()[index]
