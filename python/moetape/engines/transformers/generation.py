"""What one call of generate() does: which kinds are refused, and where each returned sequence ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from moetape import ConflictError, UnsupportedError
from moetape.engines.transformers.rows import Batch, Flags, Tokens

_MODES = ("greedy_search", "sample")


class Generation:
    """One call of generate() under way: the batch that it feeds and when each sequence was done.

    num_returned: sequences per prompt.
    """

    def __init__(self, num_returned: int) -> None:
        self.num_returned = num_returned
        self.batch: Batch | None = None
        self.first_column = 0
        self._has_cache = False
        self._pads_finished = False
        self._done: list[tuple[torch.Tensor, int]] = []

    def fed(self, batch: Batch, num_columns_before: int, has_cache: bool) -> None:
        """Note that a forward of this call fed `batch`."""
        if self.batch is None:
            self.first_column = num_columns_before
        elif batch is not self.batch:
            raise UnsupportedError(
                "generate(): expected all its forwards to feed one cache, got a second one "
                "(a logits processor that runs the model?)"
            )
        self.batch, self._has_cache = batch, has_cache

    def fed_again(self, tokens: Tokens) -> Batch | None:
        """The batch whose columns a forward without a cache feeds once more, with new ones behind them."""
        batch = None if self._has_cache else self.batch
        if batch is not None and not np.array_equal(tokens[:, : batch.num_columns], batch.tokens):
            raise UnsupportedError(
                f"generate(): expected a forward without a cache to feed its {batch.num_sequences} sequences "
                f"of {batch.num_columns} tokens again, got {list(tokens.shape)} others"
            )
        return batch

    def observe(self, criteria: Any) -> Any:
        """Stand before the stopping criteria, which see every step and say which sequences are done."""
        self._pads_finished = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        return _Observed(criteria, self._stopped)

    def _stopped(self, done: torch.Tensor) -> None:
        if self.batch is None:
            raise UnsupportedError("generate(): expected a forward of the recorded model, got none")
        self._done.append((done, self.batch.num_columns))

    def ends(self) -> list[int]:
        """For each sequence, the columns that count: those fed when it was done; padding is fed behind them.

        Without an EOS token, generate() goes on sampling until all are done, and all of that is returned.
        """
        assert self.batch is not None
        ends = np.full(self.batch.num_sequences, self.batch.num_columns)
        done: Flags = np.zeros(len(ends), np.bool_)
        for newly, num_columns in self._done:
            running = ~done if self._pads_finished else np.full(len(ends), not done.all())
            ends[running] = num_columns
            done |= newly.cpu().numpy().astype(np.bool_)
        return [int(end) for end in ends]

    def check_tokens(self, sequences: torch.Tensor, ends: list[int]) -> None:
        """Hold the tokens fed against the tokens returned: what was followed must be what is returned."""
        assert self.batch is not None
        returned = sequences.cpu().numpy()
        if len(returned) != self.batch.num_sequences:
            raise ConflictError(
                f"generate(): expected the {self.batch.num_sequences} sequences fed, got {len(returned)}"
            )
        # A continued cache is given the whole sequences or only what is new; embeddings are not returned.
        offsets = {0, self.first_column, int((self.batch.tokens < 0).all(axis=0).sum())}
        for sequence, end in enumerate(ends):
            if not any(self._agrees(returned[sequence], sequence, end, offset) for offset in offsets):
                raise ConflictError(
                    f"generate(): expected sequence {sequence} to return what it was fed, got other tokens"
                )

    def _agrees(self, returned: Any, sequence: int, end: int, offset: int) -> bool:
        assert self.batch is not None
        fed = self.batch.tokens[sequence, offset:end]
        compared = self.batch.real[sequence, offset:end] & (fed >= 0)
        return len(fed) <= len(returned) and bool((fed == returned[: len(fed)])[compared].all())


class _Observed(transformers.StoppingCriteriaList):  # type: ignore[misc]
    def __init__(self, criteria: Any, stopped: Callable[[torch.Tensor], None]) -> None:
        super().__init__(criteria)
        self._stopped = stopped

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        done = super().__call__(input_ids, scores, **kwargs)
        self._stopped(done)
        return done


def refuse_unsupported(model: Any, generate: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> int:
    """Raise UnsupportedError, by name, for generation whose rows cannot be told. Nothing has run yet.

    Returns how many sequences each prompt gives.
    """
    given = inspect.signature(generate).bind_partial(*args, **kwargs).arguments
    options = given.pop("kwargs", {})
    if given.get("custom_generate") is not None:
        raise UnsupportedError("generate(): custom_generate cannot be recorded")
    if options.get("cache_implementation") == "paged":
        raise UnsupportedError(
            "generate(): continuous batching (cache_implementation='paged') cannot be recorded"
        )
    config, _ = model._prepare_generation_config(given.get("generation_config"), **options)
    mode = config.get_generation_mode(given.get("assistant_model"))
    if mode not in _MODES:
        raise UnsupportedError(
            f"generate(): {mode.value} cannot be recorded, only {' and '.join(_MODES)} can"
        )
    if config.guidance_scale is not None and config.guidance_scale != 1:
        raise UnsupportedError(
            "generate(): guidance_scale runs the model a second time and cannot be recorded"
        )
    if config.token_healing:
        raise UnsupportedError("generate(): token_healing generates within generate() and cannot be recorded")
    compiles = model.device.type != "cpu" or bool(
        config.compile_config is not None and config.compile_config._compile_all_devices
    )
    cache = options.get("past_key_values")
    static = str(config.cache_implementation or "").endswith("static") or isinstance(
        cache, transformers.StaticCache
    )
    if compiles and static and not config.disable_compile:
        raise UnsupportedError("generate(): a compiled forward cannot be recorded; pass disable_compile=True")
    return int(config.num_return_sequences or 1)
