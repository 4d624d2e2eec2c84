"""What of vLLM the plug-in was written for: versions, and in each the sources that it replaces or leans on.

Nothing of vLLM is imported before its version is known: another one may have none of these modules.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from functools import reduce
from typing import Any

from moetape import UnsupportedError

__all__ = ["TRIED", "check_sources", "source_hash"]

_AUX = "vllm.distributed.aux_output_connector.connector:"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."
_WORKER = "vllm.v1.worker.gpu_worker:Worker."
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
_TABLE = "vllm.v1.worker.block_table:BlockTable."
_ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter."

TRIED: dict[str, dict[str, str]] = {
    "0.32.0": {
        "vllm.config.vllm:VllmConfig._verify_aux_output_compatibility": "df40783516c7a745",
        _AUX + "AuxOutputSchedulerConnector": "c12cf1762b5ed9d8",
        _AUX + "AuxOutputConnectorMetadata": "8b03c9ded64589e7",
        _AUX + "AuxRequestOutput": "7586a7b05d72fef6",
        _AUX + "PackedBlockHashes": "fe47720bfb7d6c78",
        _SCHEDULER + "__init__": "c026802456720b43",
        _SCHEDULER + "schedule": "da4f2cf2fc39c39e",
        _SCHEDULER + "update_from_output": "85b29db96051135c",
        _SCHEDULER + "_preempt_request": "4113f5de8a84ec25",
        _SCHEDULER + "_free_request": "1b386dca84e6bb73",
        _SCHEDULER + "_handle_stopped_request": "9a77c9522634358e",
        _SCHEDULER + "_update_request_as_session": "82a6f2d15293af6e",
        _SCHEDULER + "_make_cached_request_data": "8aeb1dc3ba937dd2",
        _SCHEDULER + "reset_prefix_cache": "8e03dcc540a25a8f",
        "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy": "894ae7161814c1fb",
        "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes": "b3833fa6b3549968",
        "vllm.v1.kv_cache_interface:is_full_attention_spec": "a4c4c77966c99f8f",
        _WORKER + "load_model": "350a4fb01458c532",
        _WORKER + "initialize_from_config": "71b1fbd048077170",
        _WORKER + "execute_model": "782126ba48e7e116",
        _WORKER + "sample_tokens": "461564027b612c60",
        _RUNNER + "execute_model": "e058bf791a298e98",
        _RUNNER + "sample_tokens": "047e6a4738dead56",
        _RUNNER + "_prepare_inputs": "c31a77c123a09a04",
        _RUNNER + "_update_states": "326599f31b273b94",
        "vllm.v1.worker.cpu_model_runner:CPUModelRunner": "a308f1f428e77390",
        _TABLE + "__init__": "cd2baf66a86a18a4",
        _TABLE + "compute_slot_mapping": "1090515a52c58b28",
        _ROUTER + "set_capture_fn": "7f7dd737a0814fb0",
        _ROUTER + "_select_experts": "72be73a361f8d723",
    },
}


def source_hash(what: Any) -> str:
    """16 hexadecimal digits of a function's or class's source."""
    return hashlib.sha256(inspect.getsource(what).encode()).hexdigest()[:16]


def check_sources(version: str) -> None:
    """Raises UnsupportedError for a vLLM not tried, or that is not what its version says (a fork)."""
    tried = TRIED.get(version.partition("+")[0])
    if tried is None:
        raise UnsupportedError(f"vLLM: expected one of {', '.join(TRIED)}, got {version}")
    for name, expected in tried.items():
        try:
            found = source_hash(_find(name))
        except (ImportError, AttributeError, OSError, TypeError) as error:
            raise UnsupportedError(f"vLLM {version}: expected its own {name}, got {error}") from error
        if found != expected:
            raise UnsupportedError(f"vLLM {version}: expected its own {name}, got another source")


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))
