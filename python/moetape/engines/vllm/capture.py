"""Between vLLM's routers and whoever records: what routers call, in eager and in compiled forwards.

A compiled forward bakes in what a router's capture function does while it is traced. So the function is an
opaque operator there, which looks up who records when it runs. One forward at a time runs in a worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsMonolithic
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

from moetape import UnsupportedError

__all__ = ["Sink", "bind_routers", "call_through", "recording_by_default", "recording_into", "routers_of"]


class Sink(Protocol):
    """Takes what routers choose during one forward. Must not raise."""

    def take(self, layer: int, ids: torch.Tensor) -> None:
        """The ids [n, k] of one layer."""


class _Current(threading.local):
    sink: Sink | None = None


_current = _Current()


@contextmanager
def recording_into(sink: Sink) -> Iterator[None]:
    """Within the block, routers that run in this thread give their ids to `sink`; else to nobody."""
    _current.sink = sink
    try:
        yield
    finally:
        _current.sink = None


_default: list[Sink] = []


def recording_by_default(sink: Sink) -> None:
    """From now on, compiled forwards outside any `recording_into` give their ids to `sink`."""
    _default[:] = [sink]


def _take(ids: torch.Tensor, layer: int) -> None:
    if _current.sink is not None:
        _current.sink.take(layer, ids)
    elif _default:
        _default[0].take(layer, ids)


def _take_nothing(ids: torch.Tensor, layer: int) -> None:
    del ids, layer


# It says that it changes the ids, which it does not, so that no compiler drops or moves it.
_library = torch.library.Library("moetape_vllm", "DEF")
_library.define("take(Tensor(a!) ids, int layer) -> ()")
_library.impl("take", _take, "CompositeExplicitAutograd")
_library._register_fake("take", _take_nothing)


def call_through(take: Callable[[int, torch.Tensor], None], layer: int, ids: torch.Tensor) -> None:
    """Call `take`; in a forward that is being compiled, leave a call to whoever records when it runs."""
    if torch.compiler.is_compiling():
        torch.ops.moetape_vllm.take(ids, layer)
    else:
        take(layer, ids)


def _take_eager(layer: int, ids: torch.Tensor) -> None:
    _take(ids, layer)


def routers_of(model: Any) -> dict[int, BaseRouter]:
    """The routers of a model's MoE layers, by global layer.

    Raises UnsupportedError, by name, for a router or kernel whose choice cannot be seen.
    """
    routers: dict[int, BaseRouter] = {}
    for name, module in model.named_modules():
        if not isinstance(module, MoERunner):
            continue
        if module._quant_method.is_monolithic:
            impl = getattr(getattr(module._quant_method, "moe_kernel", None), "impl", None)
            kernel = getattr(impl, "fused_experts", None)
            kind = "monolithic" if isinstance(kernel, FusedMoEExpertsMonolithic) else "unknown"
            raise UnsupportedError(
                f"{name}: expected a kernel behind a router, got {kind} {type(kernel).__name__}"
            )
        if not isinstance(module.router, BaseRouter):
            raise UnsupportedError(f"{name}: expected a BaseRouter, got {type(module.router).__name__}")
        if module.layer_id in routers:
            raise UnsupportedError(f"{name}: expected one MoE block in layer {module.layer_id}, got a second")
        routers[module.layer_id] = module.router
    return routers


def bind_routers(model: Any) -> list[int]:
    """Make the routers of a model give their ids to whoever records; the layers that have one, ascending."""
    routers = routers_of(model)
    for layer, router in routers.items():
        router.set_capture_fn(partial(call_through, _take_eager, layer))
    return sorted(routers)
