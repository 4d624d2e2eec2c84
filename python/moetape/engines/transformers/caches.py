"""Follow KV cache objects, so that a sequence is found again by the cache that holds it.

A followed cache carries its batch in its own __dict__: a deep copy of the cache is followed as well, from its
own copy of the batch. While anything is recorded, the methods of `transformers.Cache` that reorder or forget
sequences tell the batch; a cache that was cropped is noticed by its length.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
import transformers

from moetape import ConflictError, UnsupportedError
from moetape.engines.transformers.rows import Batch

_NAME = "_moetape_batches"
_lock = RLock()
_num_watchers = 0
_originals: dict[str, Callable[..., Any]] = {}


class _Batches:
    """The batches of one cache, by who records; recorders are not kept alive."""

    def __init__(self) -> None:
        self.by_owner: weakref.WeakKeyDictionary[Any, Batch] = weakref.WeakKeyDictionary()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Batches:
        copied = _Batches()
        for owner, batch in self.by_owner.items():
            copied.by_owner[owner] = batch.fork()
        return copied

    def __reduce__(self) -> tuple[type[_Batches], tuple[()]]:
        return _Batches, ()


class Caches:
    """The caches that one recording follows."""

    def __init__(self) -> None:
        self._caches: weakref.WeakSet[Any] = weakref.WeakSet()
        _watch()

    def close(self) -> None:
        """Let all caches go."""
        for cache in list(self._caches):
            batches = cache.__dict__.get(_NAME)
            if batches is not None:
                batches.by_owner.pop(self, None)
                if not batches.by_owner:
                    del cache.__dict__[_NAME]
        self._caches.clear()
        _unwatch()

    def find(self, cache: Any) -> Batch | None:
        """The batch of a cache, as long as the cache is; None for a cache that is empty or not followed."""
        batch = self._held_by(cache)
        if batch is None:
            return None
        length = length_of(cache)
        if length == 0:
            del cache.__dict__[_NAME].by_owner[self]
            return None
        self.crop(batch, cache)
        if length is not None and length > batch.num_columns:
            raise ConflictError(
                f"cache {type(cache).__name__}: expected the {batch.num_columns} columns that were recorded, "
                f"got {length}; it was fed where nobody recorded"
            )
        return batch

    def crop(self, batch: Batch, cache: Any) -> None:
        """Forget what a cropped cache forgot, if `batch` is what it holds; keep all rows when it is empty."""
        length = length_of(cache)
        if length and length < batch.num_columns and self.holds(cache, batch):
            batch.truncate(length)

    def holds(self, cache: Any, batch: Batch) -> bool:
        """Whether `batch` is what the cache holds; once it is not, it never is again."""
        return self._held_by(cache) is batch

    def _held_by(self, cache: Any) -> Batch | None:
        batches = getattr(cache, _NAME, None)
        return None if batches is None else batches.by_owner.get(self)

    def follow(self, cache: Any, batch: Batch) -> None:
        """From now on, `batch` is what the cache holds."""
        try:
            batches = cache.__dict__.get(_NAME)
            if batches is None:
                batches = cache.__dict__[_NAME] = _Batches()
            self._caches.add(cache)
        except (AttributeError, TypeError) as error:
            raise UnsupportedError(
                f"cache: expected an object of transformers.Cache, got a {type(cache).__name__}"
            ) from error
        batches.by_owner[self] = batch


def length_of(cache: Any) -> int | None:
    """How many columns a cache has seen, or None where it does not know (linear attention only)."""
    try:
        return int(cache.get_seq_length())
    except (ValueError, AttributeError):
        return None


def _watch() -> None:
    global _num_watchers
    with _lock:
        _num_watchers += 1
        if _num_watchers > 1:
            return
        for name, report in _REPORTS.items():
            original = _originals[name] = getattr(transformers.Cache, name)
            setattr(transformers.Cache, name, _reporting(original, report))


def _unwatch() -> None:
    global _num_watchers
    with _lock:
        _num_watchers -= 1
        if _num_watchers == 0:
            for name, original in _originals.items():
                setattr(transformers.Cache, name, original)
            _originals.clear()


def _reporting(original: Callable[..., Any], report: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reporting(cache: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cache, *args, **kwargs)
        batches = getattr(cache, _NAME, None)
        if batches is not None:
            report(batches, *args, *kwargs.values())  # each has one argument or none
        return result

    return reporting


def _selected(batches: _Batches, indices: Any) -> None:
    index = np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices, dtype=np.int64)
    for batch in list(batches.by_owner.values()):
        batch.select(index)


def _repeated(batches: _Batches, repeats: int) -> None:
    for batch in list(batches.by_owner.values()):
        batch.select(np.repeat(np.arange(batch.num_sequences), repeats))


def _reset(batches: _Batches) -> None:
    batches.by_owner.clear()


_REPORTS: dict[str, Callable[..., None]] = {
    "reorder_cache": _selected,
    "batch_select_indices": _selected,
    "batch_repeat_interleave": _repeated,
    "reset": _reset,
}
