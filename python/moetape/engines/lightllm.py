"""LightLLM: its routing capture under its own names, over moetape's core.

    from moetape.engines import lightllm as routing_manager    # instead of LightLLM's module of that name

Layers are numbered as LightLLM does, by their place among the MoE layers. Where this differs from LightLLM's
own on purpose stands in docs/lightllm.md. Needs torch; LightLLM itself is imported by init_routing_capture
and get_routing_config_shm only.
"""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from moetape import (
    AlreadyCapturedError,
    ConflictError,
    InvalidArgumentError,
    OutOfRangeError,
    Recorder,
    Routes,
    RouteSpec,
    Store,
    Ticket,
    encode,
)

__all__ = [
    "MISSING_ID",
    "RoutingCaptureManager",
    "answer",
    "create_routing_capture_manager",
    "destroy_routing_capture_manager",
    "get_routing_config_shm",
    "init_routing_capture",
]

logger = logging.getLogger(__name__)

Ids = npt.NDArray[np.signedinteger[Any]]

MISSING_ID = -1  # in all ids of a missing row: LightLLM's arrays are signed

g_routing_capture_manager: RoutingCaptureManager | None = None


class RoutingCaptureManager:
    """Takes the routers' ids of a forward and keeps a row per KV index.

    enable_overlap: two micro-batches in flight, each with its own staging. device: where routers' ids are;
    default "cuda" where torch has one. spec: which layers of the model the MoE layers are, for records that
    leave the engine; default: layers 0 to num_moe_layers - 1. One thread captures and flushes a micro-batch;
    any thread extracts.
    """

    def __init__(
        self,
        num_moe_layers: int,
        topk: int,
        num_experts: int,
        batch_max_tokens: int,
        kv_cache_size: int,
        enable_overlap: bool = False,
        *,
        device: str | None = None,
        spec: RouteSpec | None = None,
    ) -> None:
        self.spec = spec or RouteSpec(range(num_moe_layers), topk, num_experts)
        described = (self.spec.num_moe_layers, self.spec.top_k, self.spec.num_experts)
        if described != (num_moe_layers, topk, num_experts):
            raise InvalidArgumentError(
                f"spec: expected {num_moe_layers} layers, {topk} of {num_experts} experts, got {self.spec}"
            )
        self.num_moe_layers, self.topk, self.num_experts = described
        self.batch_max_tokens = batch_max_tokens
        self.kv_cache_size = kv_cache_size
        self.num_slots = 2 if enable_overlap else 1
        self.dtype = torch.int8 if num_experts <= 127 else torch.int16
        self.store = Store(self.spec, num_slots=kv_cache_size)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._recorder = Recorder(self.store, max_rows=batch_max_tokens, lanes=self.num_slots, device=device)
        self._newest: dict[int, Ticket] = {}

    def capture(self, moe_layer_index: int, topk_ids: torch.Tensor, microbatch_index: int = 0) -> None:
        """One MoE layer's ids [rows, topk] of a micro-batch.

        A layer that comes again without a flush between begins another forward: what was captured of the one
        before (a warm-up) is dropped. Raises OutOfRangeError, WrongShapeError, CapacityError with both
        figures.
        """
        layer = self._layer(moe_layer_index)
        stream = torch.cuda.current_stream() if topk_ids.is_cuda else None
        try:
            self._recorder.capture(layer, topk_ids, lane=microbatch_index, stream=stream)
        except AlreadyCapturedError:
            self._recorder.begin(lane=microbatch_index, stream=stream)
            self._recorder.capture(layer, topk_ids, lane=microbatch_index, stream=stream)

    def _layer(self, moe_layer_index: int) -> int:
        if not 0 <= moe_layer_index < self.num_moe_layers:
            raise OutOfRangeError(
                f"moe_layer_index: expected 0 to {self.num_moe_layers - 1}, got {moe_layer_index}"
            )
        return self.spec.layers[moe_layer_index]

    def flush_to_cpu_async(self, mem_indexes: torch.Tensor, microbatch_index: int) -> None:
        """Put the rows of a micro-batch under its KV indexes; none of them: nothing is done.

        Raises NotCapturedError naming the layers that no router captured; these tokens' rows are missing
        then.
        """
        if mem_indexes.shape[0] == 0:
            return
        lane = microbatch_index % self.num_slots
        stream = torch.cuda.current_stream() if mem_indexes.is_cuda else None
        self._newest[lane] = self._recorder.commit(mem_indexes, lane=lane, stream=stream)

    def sync_events(self) -> None:
        """Wait until all that was flushed is there."""
        for ticket in list(self._newest.values()):
            ticket.wait()

    def read(self, mem_indexes: torch.Tensor) -> Routes:
        """The routes of a request's tokens, in their order."""
        return self.store.read(mem_indexes.cpu())

    def extract_for_request(self, mem_indexes: torch.Tensor) -> Ids:
        """Ids [num_moe_layers, tokens, topk]; int8 for up to 127 experts, else int16.

        All ids of a missing row are MISSING_ID.
        """
        self.sync_events()
        return self.extract_for_request_no_sync(mem_indexes)

    def extract_for_request_no_sync(self, mem_indexes: torch.Tensor) -> Ids:
        """The same of what has landed by now."""
        ids = _signed(self.read(mem_indexes), np.int8 if self.dtype == torch.int8 else np.int16)
        return np.ascontiguousarray(ids.swapaxes(0, 1))

    def destroy(self) -> None:
        """Free the memory."""
        self.store.close()


def answer(routes: Routes) -> dict[str, Any]:
    """What /generate answers as routed_experts: {"shape": [tokens, layers, k], "dtype": …, "data": base64}.

    uint8 for up to 256 experts, else int16. Where rows are missing, all their ids are MISSING_ID in int16,
    and "missing" has their count by reason.
    """
    if routes.complete:
        said: dict[str, Any] = json.loads(encode(routes, "lightllm"))
        return said
    ids = _signed(routes, np.int16)
    data = base64.b64encode(ids.tobytes()).decode()
    return {"shape": list(ids.shape), "dtype": "int16", "data": data, "missing": routes.missing}


def _signed(routes: Routes, dtype: type[np.signedinteger[Any]]) -> Ids:
    ids = routes.ids.astype(dtype)
    ids[~routes.valid] = MISSING_ID
    return ids


def create_routing_capture_manager(
    num_moe_layers: int,
    topk: int,
    num_experts: int,
    batch_max_tokens: int,
    kv_cache_size: int,
    enable_overlap: bool = False,
    **more: Any,
) -> None:
    """Make the process's manager, g_routing_capture_manager; ConflictError if there is one."""
    global g_routing_capture_manager
    if g_routing_capture_manager is not None:
        raise ConflictError(
            "RoutingCaptureManager: expected none in this process, got one that already exists"
        )
    g_routing_capture_manager = RoutingCaptureManager(
        num_moe_layers, topk, num_experts, batch_max_tokens, kv_cache_size, enable_overlap, **more
    )


def destroy_routing_capture_manager() -> None:
    """Free the process's manager, if there is one."""
    global g_routing_capture_manager
    if g_routing_capture_manager is not None:
        g_routing_capture_manager.destroy()
    g_routing_capture_manager = None


def init_routing_capture(model: Any, num_moe_layers: int) -> None:
    """Make the manager for a LightLLM model, in rank 0 of each data-parallel group; tell its shape to others.

    A dense model gets a warning and none. Raises InvalidArgumentError for a configuration without experts or
    top-k.
    """
    from lightllm.utils.dist_utils import get_current_rank_in_dp

    if get_current_rank_in_dp() != 0:
        return
    if num_moe_layers == 0:
        logger.warning(
            "enable_return_routed_experts is set, but the model has no MoE layers: nothing is captured"
        )
        return
    num_experts = model.config.get("n_routed_experts", model.config.get("num_experts", 0))
    topk = model.config.get("num_experts_per_tok", 0)
    if num_experts <= 0 or topk <= 0:
        raise InvalidArgumentError(
            f"model.config: expected n_routed_experts or num_experts, and num_experts_per_tok, "
            f"got {num_experts} and {topk}"
        )
    create_routing_capture_manager(
        num_moe_layers=num_moe_layers,
        topk=topk,
        num_experts=num_experts,
        batch_max_tokens=model.max_total_token_num,
        kv_cache_size=model.mem_manager.size + 1,
        enable_overlap=getattr(model.args, "enable_decode_microbatch_overlap", False),
    )
    shape = get_routing_config_shm().arr
    shape[0], shape[1] = num_moe_layers, topk


def get_routing_config_shm() -> Any:
    """LightLLM's SharedArray of this server: arr[0] = number of MoE layers, arr[1] = top-k."""
    from lightllm.server.router.dynamic_prompt.shared_arr import SharedArray
    from lightllm.utils.envs_utils import get_unique_server_name

    return SharedArray(f"{get_unique_server_name()}_routing_config", shape=(2,), dtype=np.int32)
