"""Bind a recorder to a model's routers by walking it, and unbind again.

Two kinds of sources are bound: modules that offer themselves by two attributes, `layer_id` (global layer
index) and `capture_fn` (None until bound; the module calls it with its ids [n, K] in every forward), and the
routers that `find_routers` understands. Every layer of the recorder's spec is bound by exactly one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn

from moetape import (
    AlreadyCapturedError,
    ConflictError,
    NotCapturedError,
    OutOfRangeError,
    Recorder,
    SpecMismatchError,
)
from moetape.models.arguments import check, check_model
from moetape.models.device import capture_ids
from moetape.models.intercept import interceptor
from moetape.models.routers import find_routers

Lane = int | Callable[[], int]
"""A lane, or a function that names the lane of the forward under way (overlapped micro-batches)."""


class Binding:
    """Keeps a recorder bound to a model until `unbind()`, or as a context manager."""

    def __init__(self, undo: ExitStack, layers: list[int]) -> None:
        self._undo = undo
        self.layers = layers

    def unbind(self) -> None:
        """Take every hook off and every capture_fn back; twice does nothing."""
        self._undo.close()

    def __enter__(self) -> Binding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unbind()


def bind(model: nn.Module, recorder: Recorder, *, stack: str = "target", lane: Lane = 0) -> Binding:
    """Let every router of `model` hand its ids to `recorder` in each forward.

    The engine calls recorder.begin() before a forward and recorder.commit() after it. Nothing is bound unless
    everything can be: UnsupportedError names a router that cannot be captured, SpecMismatchError a model of
    another stack (a draft model is not bound to the target's recorder), OutOfRangeError a layer outside the
    spec, NotCapturedError the layers of the spec that no module captures, AlreadyCapturedError a layer with
    two sources, ConflictError a source that is bound already.
    """
    check_model(model)
    check("recorder", recorder, Recorder, "a Recorder")
    spec = recorder.spec
    if stack != spec.stack:
        raise SpecMismatchError(
            f"model of stack {stack!r}: expected a recorder of that stack, got {spec.stack!r}"
        )
    sources = dict(_sources_of(model))
    routers = find_routers(model, stack, excluded=spec.excluded, without=set(sources.values()))
    names = [(int(source.layer_id), name) for name, source in sources.items()]
    names += [(router.layer, router.name) for router in routers]
    _check_layers(names, list(spec.layers))
    for name, source in sources.items():
        if source.capture_fn is not None:
            raise ConflictError(f"module {name}: expected capture_fn None, got one that is bound already")
    with ExitStack() as undo:  # of everything, should one fail
        for source in sources.values():
            undo.callback(setattr, source, "capture_fn", None)
            source.capture_fn = partial(_capture, recorder, lane, int(source.layer_id))
        for router in routers:
            undo.callback(interceptor(router).add_tap(partial(_capture, recorder, lane)).remove)
        return Binding(undo.pop_all(), sorted(layer for layer, _ in names))


def _sources_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if hasattr(module, "layer_id") and hasattr(module, "capture_fn"):
            yield name, module


def _check_layers(names: list[tuple[int, str]], layers: list[int]) -> None:
    bound: dict[int, str] = {}
    for layer, name in names:
        if layer not in layers:
            raise OutOfRangeError(f"router {name}: expected a layer of the spec {layers}, got {layer}")
        if layer in bound:
            raise AlreadyCapturedError(f"layer {layer}: expected one router, got {bound[layer]} and {name}")
        bound[layer] = name
    missing = [layer for layer in layers if layer not in bound]
    if missing:
        raise NotCapturedError(
            f"layers {missing}: expected a router for each, found routers of {sorted(bound)}"
        )


def _capture(recorder: Recorder, lane: Lane, layer: int, ids: torch.Tensor) -> None:
    capture_ids(recorder, layer, ids, lane() if callable(lane) else lane)
