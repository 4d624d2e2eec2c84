"""Record what a transformers model routes while it generates or runs forwards."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from moetape import (
    InvalidArgumentError,
    Recorder,
    Routes,
    RouteSpec,
    UnsupportedError,
    WrongTypeError,
    models,
)
from moetape.engines.transformers.caches import Caches, length_of
from moetape.engines.transformers.generation import Generation, refuse_unsupported
from moetape.engines.transformers.inputs import NO_MASK_KNOWN, real_of, tokens_of
from moetape.engines.transformers.rows import Batch, Flags, Pool, Tokens
from moetape.models.arguments import check_model
from moetape.models.forward import CACHE_NAMES, ForwardInputs


def record(
    model: nn.Module,
    version: int = 0,
    *,
    wanted: Sequence[bool] | None = None,
    excluded: Mapping[int, str] | None = None,
    num_slots: int = 4096,
) -> Recording:
    """Record the routes of `model` within a `with` block.

    version: the policy version of the weights; set `recording.version` when they change within the block.
    wanted: one flag per prompt, for batches where only some requests want their routes; set
        `recording.wanted` to change it. Default: all.
    excluded: {layer: reason} for MoE layers left out on purpose.
    num_slots: rows of the first store; more are added as needed.

    Raises UnsupportedError, by name, for a model with a router that cannot be captured. For a dense model it
    warns, and the recording's routes are None.
    """
    return Recording(model, version, wanted=wanted, excluded=excluded, num_slots=num_slots)


class Recording:
    """What `record` gives. Nothing is hooked before `with` nor after it, however the block ends.

    One thread at a time may run the model. Several recordings, of one or of several models, may be open.
    """

    def __init__(
        self,
        model: nn.Module,
        version: int = 0,
        *,
        wanted: Sequence[bool] | None = None,
        excluded: Mapping[int, str] | None = None,
        num_slots: int = 4096,
    ) -> None:
        self.version = version
        self.wanted = wanted
        self._model: Any = _plain(model)
        self._routers = models.find_routers(self._model, excluded=excluded)
        self._pool: Pool | None = None
        self.spec: RouteSpec | None = None
        if self._routers:
            name = models.model_name(self._model)
            self.spec = models.spec_of_routers(self._routers, model=name, excluded=excluded)
            self._pool = Pool(self.spec, num_slots, models.device_of(self._routers))
        self._results: list[_Result] = []
        self._undo = ExitStack()
        self._caches: Caches | None = None
        self._recorder: Recorder | None = None  # of the forward under way
        self._busy = threading.Lock()
        self._generation: Generation | None = None
        self._prepared_mask: Any = NO_MASK_KNOWN

    @property
    def version(self) -> int:
        """The policy version of the weights; set it when they change within the block."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        if isinstance(version, bool) or not isinstance(version, int | np.integer):
            raise WrongTypeError(f"version: expected an integer, got {version!r}")
        self._version = int(version)

    @property
    def wanted(self) -> Flags | None:
        """One flag per prompt; None: all are wanted."""
        return self._flags

    @wanted.setter
    def wanted(self, flags: Sequence[bool] | None) -> None:
        self._flags = None if flags is None else _checked_flags(flags)

    @property
    def routes(self) -> list[Routes | None] | None:
        """One Routes per returned sequence, in output order; None for those not wanted.

        A call of generate() adds its sequences when it returns. A plain forward adds those that it begins,
        and extends those whose cache it continues. A generate() that continues a cache fed by plain forwards
        takes their place. None (not a list) for a dense model.
        """
        if self._pool is None:
            return None
        return [routes for result in self._results for routes in result.routes(self._pool)]

    @property
    def memory_bytes(self) -> int:
        """Bytes that the stores hold now."""
        return 0 if self._pool is None else self._pool.memory_bytes

    def __enter__(self) -> Recording:
        if self._pool is None:
            warnings.warn(
                f"{type(self._model).__name__} is a dense model: there are no routes to record", stacklevel=2
            )
            return self
        if self._caches is not None:
            raise InvalidArgumentError("recording: expected one with block at a time, got a second")
        with ExitStack() as undo:  # of everything, should a hook fail
            self._caches = Caches()
            undo.callback(self._close_caches)
            undo.callback(self._freeze)
            for router in self._routers:
                undo.callback(models.interceptor(router).add_tap(self._tap).remove)
            for name, around in self._overrides().items():
                if hasattr(self._model, name):
                    undo.callback(models.Override(self._model, name, around).remove)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _overrides(self) -> dict[str, Callable[..., Any]]:
        return {
            "forward": self._forward,
            "generate": self._generate,
            "_get_stopping_criteria": self._stopping_criteria,
            "prepare_inputs_for_generation": self._prepare_inputs,
            "generate_batch": _refuse_generate_batch,
        }

    def _freeze(self) -> None:
        assert self._pool is not None
        for result in self._results:
            result.freeze(self._pool)

    def _close_caches(self) -> None:
        assert self._caches is not None
        self._caches.close()
        self._caches = None

    def _tap(self, layer: int, ids: torch.Tensor) -> None:
        if self._recorder is not None:
            models.capture_ids(self._recorder, layer, ids)
        elif torch._C._current_graph_task_id() == -1:  # in a backward pass, it is a recomputation
            raise UnsupportedError(
                f"layer {layer}: expected its router to run in a forward of the recorded "
                f"{type(self._model).__name__}, ran outside of a forward; record the module that is called"
            )

    def _forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise UnsupportedError(
                "recording: expected one forward at a time, got a second within or beside it"
            )
        try:
            return self._recorded(forward, args, kwargs)
        finally:
            self._recorder = None
            self._prepared_mask = NO_MASK_KNOWN
            self._busy.release()

    def _recorded(self, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        assert self._pool is not None
        assert self._caches is not None
        inputs = ForwardInputs.of(forward, args, kwargs)
        tokens = tokens_of(inputs)
        batch, num_again = self._batch_of(inputs, tokens)
        num_before = batch.num_columns
        real = real_of(inputs, num_before - num_again, self._prepared_mask)
        kept = real[:, -tokens.shape[1] :] & batch.wanted[:, None]
        kept[:, :num_again] = False
        lease = self._pool.lease(kept.size, int(kept.sum()))
        stream = models.current_stream(lease.recorder)
        lease.recorder.begin(stream=stream)
        self._recorder = lease.recorder
        output = forward(*args, **kwargs)
        self._recorder = None

        slots = np.full(kept.shape, -1, np.int64)
        slots[kept] = np.arange(lease.first, lease.first + kept.sum())
        local = np.where(slots < 0, -1, slots - lease.base)
        lease.landed_with(lease.recorder.commit(local.reshape(-1), version=self.version, stream=stream))
        batch.append(tokens[:, num_again:], slots[:, num_again:], real, lease)
        cache = inputs.cache if inputs.cache is not None else _cache_of(output)
        if cache is not None:
            self._caches.follow(cache, batch)
        if self._generation is not None:
            self._generation.fed(batch, num_before, cache is not None)
        elif not any(result.batch is batch for result in self._results):
            self._results.append(_Result(batch, cache, self._caches))
        for result in self._results:
            result.freeze_if_done(self._pool)
        return output

    def _batch_of(self, inputs: ForwardInputs, tokens: Tokens) -> tuple[Batch, int]:
        """The sequences that a forward feeds: those of its cache, or new ones; and how many columns again."""
        assert self._caches is not None
        num_sequences = len(tokens)
        if inputs.cache is None:
            again = None if self._generation is None else self._generation.fed_again(tokens)
            return (again, again.num_columns) if again else (Batch(self._wanted(num_sequences)), 0)
        batch = self._caches.find(inputs.cache)
        if batch is None:
            return Batch(self._wanted(num_sequences), length_of(inputs.cache) or 0), 0
        if batch.num_sequences != num_sequences:
            raise UnsupportedError(
                f"forward: expected the {batch.num_sequences} sequences of its cache, got {num_sequences}"
            )
        return batch, 0

    def _wanted(self, num_sequences: int) -> Flags:
        wanted = self._flags
        if wanted is None:
            return np.ones(num_sequences, np.bool_)
        repeats = 1 if self._generation is None else self._generation.num_returned
        if repeats * wanted.size != num_sequences:
            raise InvalidArgumentError(
                f"wanted: expected {num_sequences // repeats} flags, one per prompt, got {wanted.size}"
            )
        return np.repeat(wanted, repeats)

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._pool is not None
        if self._generation is not None:
            raise UnsupportedError("generate(): called within generate(), which cannot be recorded")
        num_returned = refuse_unsupported(self._model, generate, args, kwargs)
        generation = self._generation = Generation(num_returned)
        try:
            output = generate(*args, **kwargs)
        finally:
            self._generation = None
        if generation.batch is None:
            raise UnsupportedError("generate(): expected a forward of the recorded model, got none")
        ends = generation.ends()
        generation.check_tokens(output if isinstance(output, torch.Tensor) else output.sequences, ends)
        self._results = [result for result in self._results if result.batch is not generation.batch]
        self._results.append(_Result.of(generation.batch, ends, self._pool))
        return output

    def _stopping_criteria(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        criteria = original(*args, **kwargs)
        return criteria if self._generation is None else self._generation.observe(criteria)

    def _prepare_inputs(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._prepared_mask = kwargs.get("attention_mask")
        return original(*args, **kwargs)


class _Result:
    """Some sequences of `recording.routes`: of a batch that may still grow, or frozen."""

    def __init__(self, batch: Batch | None = None, cache: Any = None, caches: Caches | None = None) -> None:
        self.batch = batch
        self._cache: Callable[[], Any] = _nothing if cache is None else weakref.ref(cache)
        self._caches = caches
        self._frozen: list[Routes | None] = []

    @classmethod
    def of(cls, batch: Batch, ends: list[int], pool: Pool) -> _Result:
        """Freeze the first `ends[i]` columns of each sequence i."""
        result = cls()
        result._frozen = [batch.routes(pool, sequence, end) for sequence, end in enumerate(ends)]
        return result

    def routes(self, pool: Pool) -> list[Routes | None]:
        if self.batch is None:
            return self._frozen
        batch = self.batch
        if self._caches is not None:
            self._caches.crop(batch, self._cache())
        return [batch.routes(pool, sequence, batch.num_columns) for sequence in range(batch.num_sequences)]

    def freeze(self, pool: Pool) -> None:
        self._frozen = self.routes(pool)
        self.batch = None

    def freeze_if_done(self, pool: Pool) -> None:
        """Once no cache holds it, a batch cannot grow: keep its routes and let its slots go."""
        if self.batch is not None and not (self._caches and self._caches.holds(self._cache(), self.batch)):
            self.freeze(pool)


def _checked_flags(wanted: Any) -> Flags:
    given = wanted.cpu() if isinstance(wanted, torch.Tensor) else wanted
    try:
        flags = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # ragged, or numbers that numpy lacks
        flags = np.array(None)
    if flags.ndim != 1 or (flags.size and flags.dtype.kind not in "biu"):
        raise WrongTypeError(f"wanted: expected one flag per prompt, True or False, got {wanted!r}")
    if ((flags != 0) & (flags != 1)).any():
        raise InvalidArgumentError(f"wanted: expected flags True or False (1 or 0), got {wanted!r}")
    return flags.astype(np.bool_)


def _nothing() -> None:
    return None


def _plain(model: Any) -> Any:
    """The module whose forward generate() calls, below an adapter's wrapper."""
    check_model(model)
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    if getattr(model, "_compiled_call_impl", None) is not None or type(model).__name__ == "OptimizedModule":
        raise UnsupportedError(f"{type(model).__name__}: a compiled model cannot be recorded")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(f"{type(model).__name__}: an encoder-decoder model cannot be recorded")
    return model


def _cache_of(output: Any) -> Any:
    return next((cache for name in CACHE_NAMES if (cache := getattr(output, name, None)) is not None), None)


def _refuse_generate_batch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    del original, args, kwargs
    raise UnsupportedError("generate_batch(): continuous batching cannot be recorded")
