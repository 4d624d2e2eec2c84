"""vLLM's capturer by its own names and signatures, over moetape's core: for people who patch their fork.

    capturer = RoutedExpertsCapturer(max_num_batched_tokens, vllm_config)
    bind_routed_experts_capturer(model, capturer)
    ...                                             # a forward
    rows = capturer.snapshot_routing_data(num_tokens)

Where it differs from vLLM's, it is on purpose: what was not captured in this step is an error that names the
layers (vLLM gives the last step's rows, or zeros), and a row with an id that is no expert is missing (vLLM
keeps the low bits of it). On the CPU. See docs/vllm.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsMonolithic
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.platforms import current_platform

from moetape import (
    InvalidArgumentError,
    NotCapturedError,
    Recorder,
    Store,
    UnsupportedError,
    WrongShapeError,
    layout,
)
from moetape.engines.vllm.answer import answer_ids
from moetape.engines.vllm.capture import call_through, recording_by_default
from moetape.engines.vllm.specs import spec_of

__all__ = [
    "RoutedExpertsCaptureSource",
    "RoutedExpertsCapturer",
    "RoutedExpertsSink",
    "bind_routed_experts_capturer",
]

logger = logging.getLogger("vllm.moetape")


@runtime_checkable
class RoutedExpertsCaptureSource(Protocol):
    """A module outside vLLM's MoE runner that tells its choice itself."""

    layer_id: int
    capture_fn: Callable[[torch.Tensor], None] | None


class RoutedExpertsCapturer:
    """Takes the ids that routers choose in a forward; gives this rank's rows. One thread at a time.

    max_num_batched_tokens: rows of the largest step. Raises UnsupportedError anywhere but on the CPU, and
    what RouteSpec.from_config raises for a model that it does not understand.
    """

    def __init__(self, max_num_batched_tokens: int, vllm_config: Any) -> None:
        if not current_platform.is_cpu():
            raise UnsupportedError(
                f"RoutedExpertsCapturer: expected the CPU, got {current_platform.device_type}"
            )
        self.spec = spec_of(vllm_config)
        self.shape_per_token = (self.spec.num_layers, self.spec.top_k)
        self.output_dtype_name = "uint8" if self.spec.id_bytes == 1 else "uint16"
        self.output_dtype = getattr(torch, self.output_dtype_name)
        self.dp_rank = vllm_config.parallel_config.data_parallel_rank
        self.tp_size = vllm_config.parallel_config.tensor_parallel_size
        self._max_rows = max_num_batched_tokens
        self._store = Store(self.spec, max_num_batched_tokens)
        self._recorder = Recorder(self._store, max_num_batched_tokens)
        self._captured: dict[int, int] = {}  # rows by layer, of the step that is open
        self._num_rows: int | None = None  # of the step that was committed

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """The ids [n, k] of one layer, in any of the batch layouts of vLLM's data parallelism.

        A layer that comes again begins a new step. Raises OutOfRangeError for a layer that is none of the
        model's, WrongShapeError where no layout has n rows, or two that do disagree.
        """
        ids = self._own_rows(topk_ids)
        if not self._captured or layer_id in self._captured:
            self._recorder.begin()
            self._captured.clear()
        self._recorder.capture(layer_id, ids.detach())
        self._captured[layer_id] = len(ids)

    def snapshot_routing_data(self, num_tokens: int) -> torch.Tensor:
        """The first `num_tokens` rows [n, layers, k] of the forward, a tensor of its own, until the next one.

        uint8 or uint16; signed where rows are missing, as in moetape.engines.vllm.missing_rows. Raises
        NotCapturedError naming the layers, WrongShapeError where the forward had fewer rows.
        """
        if self._captured:
            self._commit()
        if self._num_rows is None:
            raise NotCapturedError("snapshot_routing_data(): expected a forward before it, got none")
        if not 0 <= num_tokens <= self._num_rows:
            raise WrongShapeError(
                f"snapshot_routing_data(): expected 0 to {self._num_rows} tokens, got {num_tokens}"
            )
        return torch.from_numpy(answer_ids(self._store.read(np.arange(num_tokens))).copy())

    def _commit(self) -> None:
        num_rows = next(iter(self._captured.values()))
        self._captured.clear()
        self._num_rows = None
        self._recorder.commit(np.arange(num_rows))
        self._num_rows = num_rows

    def _own_rows(self, topk_ids: torch.Tensor) -> torch.Tensor:
        """The tokens of this data-parallel rank; shards of sequence parallelism are gathered as by vLLM."""
        metadata = get_forward_context().dp_metadata
        if metadata is None:
            return topk_ids
        counts = metadata.num_tokens_across_dp_cpu.tolist()
        num_own, num_rows = counts[self.dp_rank], len(topk_ids)
        # One token is its own shard on the first rank, and padding on others, which do not answer.
        tp_size = 1 if num_rows == num_own else self.tp_size
        tp_rank = get_tp_group().rank_in_group if tp_size > 1 else 0
        shards = getattr(metadata, "local_sizes", None) or ()
        found = layout.infer(num_rows, counts, self.dp_rank, shards, tp_size, tp_rank)
        first, _, count = found.place(num_rows, num_own)
        if count < num_own:
            return get_tp_group().all_gather(topk_ids, dim=0)[:num_own]
        return topk_ids[first : first + count]

    def take(self, layer: int, ids: torch.Tensor) -> None:
        """What a router calls in a compiled forward."""
        self.capture(layer, ids)


class RoutedExpertsSink:
    """Where a monolithic kernel writes the ids that it chose: [rows, k] int16 of the largest batch.

    Before each forward it holds -1: rows that the kernel leaves out are missing, and never an older
    forward's.
    """

    def __init__(self, moe_config: Any, capture_fn: Callable[[torch.Tensor], None]) -> None:
        group_size = moe_config.ep_size if moe_config.use_ep else moe_config.dp_size
        self.buffer = torch.full(
            (moe_config.max_num_tokens * group_size, moe_config.experts_per_token),
            -1,
            dtype=torch.int16,
            device=moe_config.device,
        )
        self._capture_fn = capture_fn

    def capture_fn(self, topk_ids: torch.Tensor) -> None:
        """Hand over what the kernel wrote, and forget it."""
        self._capture_fn(topk_ids)
        topk_ids.fill_(-1)


def bind_routed_experts_capturer(model: torch.nn.Module, capturer: RoutedExpertsCapturer) -> None:
    """Make the routers of the model give their ids to the capturer.

    Raises UnsupportedError for a router or kernel that cannot; InvalidArgumentError where none is found, or
    where a layer that the model's configuration calls MoE has none. Stages of a pipeline have the layers that
    they have.
    """
    bound = []
    for name, module in model.named_modules():
        if isinstance(module, RoutedExpertsCaptureSource):
            module.capture_fn = _capture_fn(capturer, module.layer_id)
        elif isinstance(module, MoERunner):
            _bind_runner(name, module, capturer)
        else:
            continue
        bound.append(module.layer_id)
    foreign = sorted(set(bound) - set(capturer.spec.layers))
    if not bound or foreign:
        raise InvalidArgumentError(
            f"{type(model).__name__}: expected routers in layers {list(capturer.spec.layers)}, got {bound}"
        )
    recording_by_default(capturer)


def _bind_runner(name: str, module: Any, capturer: RoutedExpertsCapturer) -> None:
    capture_fn = _capture_fn(capturer, module.layer_id)
    if module._quant_method.is_monolithic:
        impl = getattr(getattr(module._quant_method, "moe_kernel", None), "impl", None)
        kernel = getattr(impl, "fused_experts", None)
        if not isinstance(kernel, FusedMoEExpertsMonolithic) or not kernel.supports_routing_replay_capture():
            raise UnsupportedError(
                f"{name}: expected a monolithic kernel that tells its choice, got {type(kernel).__name__}"
            )
        module.routed_experts.routing_sink = RoutedExpertsSink(kernel.moe_config, capture_fn)
    elif isinstance(module.router, BaseRouter):
        module.router.set_capture_fn(capture_fn)
    else:
        raise UnsupportedError(f"{name}: expected a BaseRouter, got {type(module.router).__name__}")


def _capture_fn(capturer: RoutedExpertsCapturer, layer: int) -> Callable[[torch.Tensor], None]:
    return partial(call_through, capturer.capture, layer)
