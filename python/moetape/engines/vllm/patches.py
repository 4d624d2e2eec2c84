"""What the plug-in changes in vLLM: one function for each patch.

To be imported once moetape.engines.vllm.sources has found the vLLM that they were written for.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import RSWASpec, is_full_attention_spec, iter_layer_specs
from vllm.v1.worker.gpu_worker import Worker

from moetape import UnsupportedError
from moetape.engines.vllm.specs import spec_of

__all__ = ["apply"]

_PATCHED = "_moetape_patched"


def apply() -> None:
    """Patch vLLM in this process, once."""
    if hasattr(VllmConfig, _PATCHED):
        return
    _patch_verification()
    _patch_scheduler()
    _patch_load_model()
    _patch_initialize()
    setattr(VllmConfig, _PATCHED, True)


def _is_ours(vllm_config: Any) -> bool:
    """Whether moetape gives the routes: they are asked for, and vLLM's own capture is not to be had."""
    return bool(
        vllm_config.aux_output_config.enabled
        and current_platform.is_cpu()
        and not vllm_config.use_v2_model_runner
    )


def _patch_verification() -> None:
    """vLLM refuses routes without Model Runner V2. Here only what moetape cannot do either is refused."""
    original = VllmConfig._verify_aux_output_compatibility

    @functools.wraps(original)
    def verify(self: Any) -> None:
        if _is_ours(self):
            _verify(self)
        else:
            original(self)

    VllmConfig._verify_aux_output_compatibility = verify


def _verify(config: Any) -> None:
    if config.model_config.runner_type == "draft":  # a draft's own configuration: it is not recorded
        return
    if config.model_config.runner_type != "generate":
        raise ValueError("moetape: --enable-return-routed-experts is for models that generate")
    if not config.model_config.is_moe:
        raise ValueError("moetape: --enable-return-routed-experts is for MoE models")
    parallel = config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError("moetape: --enable-return-routed-experts does not go with context parallelism")
    if parallel.data_parallel_size > 1:
        raise ValueError(
            "moetape: --enable-return-routed-experts on the CPU does not go with data parallelism"
        )
    spec_of(config)


def _patch_scheduler() -> None:
    """The scheduler gets the connector that never fails a request."""
    original = Scheduler.__init__

    @functools.wraps(original)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        if _is_ours(vllm_config):
            from moetape.engines.vllm.scheduler import SchedulerConnector

            sends_hashes = vllm_config.kv_transfer_config is not None
            self.aux_output_connector = SchedulerConnector(spec_of(vllm_config), sends_hashes)

    Scheduler.__init__ = init


def _patch_load_model() -> None:
    """Routers are bound as soon as the model is there: a compiled warm-up bakes in what it sees."""
    original = Worker.load_model

    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _is_ours(self.vllm_config):
            from moetape.engines.vllm.capture import bind_routers

            self._moetape_layers = bind_routers(self.model_runner.get_model())

    Worker.load_model = load_model


def _patch_initialize() -> None:
    """The store follows the KV cache, so it is made when that is."""
    original = Worker.initialize_from_config

    @functools.wraps(original)
    def initialize(self: Any, kv_cache_config: Any) -> None:
        original(self, kv_cache_config)
        if _is_ours(self.vllm_config):
            _start_recording(self, kv_cache_config)

    Worker.initialize_from_config = initialize


def _start_recording(worker: Any, kv_cache_config: Any) -> None:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    from moetape.engines.vllm.worker import RouteRecording

    config = worker.vllm_config
    spec = spec_of(config)
    layers = worker._moetape_layers
    first, end = config.model_config.get_layers_start_end_indices(config.parallel_config)
    expected = [layer for layer in spec.layers if first <= layer < end]
    if layers != expected:
        raise UnsupportedError(f"{spec.model}: expected routers in layers {expected}, got {layers}")
    is_last, answers = get_pp_group().is_last_rank, False
    if is_last:
        answers = get_tp_group().is_first_rank
        if not answers and get_pp_group().is_first_rank:
            return
    max_rows = config.scheduler_config.max_num_batched_tokens
    space = _kv_space(config, kv_cache_config) if answers else None
    num_before = sum(layer < first for layer in spec.layers)
    worker._moetape = RouteRecording(worker.model_runner, spec, layers, num_before, max_rows, space)


def _kv_space(config: Any, kv_cache_config: Any) -> Any:
    from moetape.engines.vllm.worker import KvSpace

    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        if _keeps_every_token(spec):
            hash_size = kv_cache_config.hash_block_size or spec.block_size
            return KvSpace(
                group=index,
                block_size=spec.block_size,
                num_blocks=kv_cache_config.num_blocks,
                hashes_per_block=max(spec.block_size // hash_size, 1),
                may_be_filled_from_outside=config.kv_transfer_config is not None,
            )
    raise UnsupportedError(
        "KV cache: expected a group of full attention, whose blocks keep every token, got none"
    )


def _keeps_every_token(spec: Any) -> bool:
    return is_full_attention_spec(spec) and not any(
        isinstance(layer, RSWASpec) for layer in iter_layer_specs(spec)
    )
