"""Follow KV cache objects, so that a sequence is found again by the cache that holds it.

A followed cache carries its batch in its own __dict__: a deep copy of the cache is followed as well, from its
own copy of the batch. While anything is recorded, the three methods of `transformers.Cache` that reorder
sequences tell the batch; a cache that was cropped or reset is noticed by its length.
"""

from __future__ import annotations

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
        batches = getattr(cache, _NAME, None)
        batch: Batch | None = None if batches is None else batches.by_owner.get(self)
        if batch is None:
            return None
        length = crop(batch, cache)
        if length == 0:
            return None
        if length is not None and length > batch.num_columns:
            raise ConflictError(
                f"cache {type(cache).__name__}: expected the {batch.num_columns} columns that were recorded, "
                f"got {length}; it was fed where nobody recorded"
            )
        return batch

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


def crop(batch: Batch, cache: Any) -> int | None:
    """Forget what a cropped cache forgot, keep the rows of one that was reset; gives the cache's length."""
    length = length_of(cache)
    if length and length < batch.num_columns:
        batch.truncate(length)
    return length


def _watch() -> None:
    global _num_watchers
    with _lock:
        _num_watchers += 1
        if _num_watchers > 1:
            return
        for name, index_of in _REORDERS.items():
            original = _originals[name] = getattr(transformers.Cache, name)
            setattr(transformers.Cache, name, _reporting(original, index_of))


def _unwatch() -> None:
    global _num_watchers
    with _lock:
        _num_watchers -= 1
        if _num_watchers == 0:
            for name, original in _originals.items():
                setattr(transformers.Cache, name, original)
            _originals.clear()


def _reporting(original: Callable[..., Any], index_of: Callable[[Any, int], Any]) -> Callable[..., Any]:
    def reorder(cache: Any, argument: Any) -> Any:
        result = original(cache, argument)
        batches = getattr(cache, _NAME, None)
        for batch in [] if batches is None else list(batches.by_owner.values()):
            batch.select(index_of(argument, batch.num_sequences))
        return result

    return reorder


def _indices(argument: Any, num_sequences: int) -> Any:
    del num_sequences
    return np.asarray(argument.cpu() if hasattr(argument, "cpu") else argument, dtype=np.int64)


def _repeated(repeats: int, num_sequences: int) -> Any:
    return np.repeat(np.arange(num_sequences), repeats)


_REORDERS: dict[str, Callable[[Any, int], Any]] = {
    "reorder_cache": _indices,
    "batch_select_indices": _indices,
    "batch_repeat_interleave": _repeated,
}
