"""SGLang's own names over moetape's core, for a fork that imports them instead of its state_capturer.

    from moetape.engines.sglang import RoutedExpertsCapturer, set_global_experts_capturer

Where they differ from SGLang's on purpose stands in docs/sglang.md. SGLang itself is imported when it is
needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from moetape import (
    InvalidArgumentError,
    OutOfRangeError,
    Routes,
    RouteSpec,
    Store,
    UnsupportedError,
    layout,
)
from moetape.engines.sglang.spec import spec_of
from moetape.engines.sglang.staging import Deferred, DeviceStaging, HostStaging, Share, Staging

MISSING_ID = -1  # what stands for a missing row in SGLang's own form, which has signed ids
PAD_SLOT = 0  # where SGLang puts the tokens that only pad a batch


class RoutedExpertsCapturer:
    """Takes the ids of SGLang's routers, keeps a row per KV slot, and gives the rows of a request.

    Used by one thread, the scheduler's. Rows are kept in uint8 or uint16 beside a stamp; a layer that no
    router captured, or an id that is no expert, makes its row missing instead of leaving zeros or an older
    row.
    """

    @staticmethod
    def create(
        enable: bool | None = None,
        model_config: Any = None,
        num_fused_shared_experts: int | None = None,
        num_tokens: int = 0,
        max_running_requests: int = 0,
        device: str = "cpu",
        *,
        model: Any = None,
    ) -> RoutedExpertsCapturer | None:
        """The capturer, or None where it is switched off.

        Takes the arguments of 0.5.23 (model=, ..., by name; SGLang's settings say whether it is on) and of
        older versions (enable, model_config, num_fused_shared_experts, ...). num_tokens: KV slots. Raises
        InvalidArgumentError for a dense model.
        """
        if enable is None:
            from sglang.srt.runtime_context import get_exec

            enable = get_exec().features.enable_return_routed_experts
        if not enable:
            return None
        if num_fused_shared_experts is None:
            num_fused_shared_experts = (
                0 if model is None else model.shared_experts_config.num_fused_shared_experts
            )
        spec = spec_of(model_config, model, num_fused_shared_experts)
        max_rows = _largest_batch(model_config, max_running_requests, num_tokens)
        return RoutedExpertsCapturer(spec, num_tokens, max_rows, device)

    def __init__(self, spec: RouteSpec, num_tokens: int, max_rows: int, device: str = "cpu") -> None:
        self.spec = spec
        self.num_layers = spec.num_layers
        self.topk_size = spec.top_k
        self.version = 0  # of the weights; rows captured from now on carry it
        self._layers = frozenset(spec.layers)
        self._outside: int | None = None  # a layer that captured and is not recorded
        self.store = Store(spec, num_slots=num_tokens, pad_slot=PAD_SLOT)
        self.staging: Staging = (
            HostStaging(self.store, max_rows)
            if torch.device(device).type == "cpu"
            else DeviceStaging(self.store, max_rows, device)
        )

    def begin(self) -> None:
        """A forward begins: what one that never ended left (a warm-up) is dropped. Calling it is optional."""
        self._outside = None
        self.staging.begin()

    def capture(self, layer_id: int, topk_indices: torch.Tensor) -> None:
        """One layer's ids [rows, top_k] or [rows, top_k + shared experts], before any load-balancing map.

        A layer that is not recorded raises OutOfRangeError, and so does the end of this forward: its rows
        would look whole without it.
        """
        if layer_id not in self._layers:
            self._outside = layer_id
            self.spec.column_of(layer_id)  # raises
        if _is_scattered():
            topk_indices = _gathered(topk_indices)
        self.staging.capture(layer_id, topk_indices)

    def on_forward_end(
        self,
        forward_batch: Any,
        can_run_graph: bool,
        cuda_graph_batch: int | None,
        no_copy_to_cpu: bool = False,
    ) -> Deferred | None:
        """Ends the forward; its rows go to the batch's KV slots.

        no_copy_to_cpu: give what copies and finalizes them later, for overlap scheduling. On a CPU the rows
        are in the store at once in both cases.
        """
        slots = forward_batch.out_cache_loc_virtual
        if slots is None:
            slots = forward_batch.out_cache_loc
        outside, self._outside = self._outside, None
        if outside is not None:
            self.staging.begin()
            self.hand_out(slots)
            raise OutOfRangeError(
                f"forward: layer {outside} captured, which is not one of {self.spec.layers}"
            )
        share = _share(forward_batch, can_run_graph, cuda_graph_batch)
        output = self.staging.take(slots, share, self.version)
        if no_copy_to_cpu:
            return output
        output.finalize()
        return None

    def hand_out(self, slots: torch.Tensor) -> None:
        """Slots get a new owner: their rows are missing until a forward that begins later writes them."""
        self.staging.hand_out(slots)

    def clear(self) -> None:
        """All slots are free."""
        self.staging.clear()

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """KV that the last forward wrote goes from slots `source` to `target`, and its rows with it."""
        self.staging.move(target, source)

    def read(
        self, req_pool_idx: int, start: int, end: int, req_to_token_pool: Any, tokens: Any = None
    ) -> Routes:
        """The routes of a request's tokens [start, end). tokens: the token fed at each."""
        slots = req_to_token_pool.req_to_token[req_pool_idx, start:end]
        self.staging.settle()
        return self.store.read(slots.cpu(), start=start, tokens=tokens)

    def get_topk(
        self, req_pool_idx: int, seqlen: int, req_to_token_pool: Any, start_len: int = 0
    ) -> torch.Tensor:
        """The ids of tokens [start_len, seqlen - 1), int32 [rows, num_layers, top_k].

        Dense layers are zero, as in SGLang; all ids of a missing row are MISSING_ID.
        """
        if start_len < 0:
            raise InvalidArgumentError(f"start_len: expected 0 or more, got {start_len}")
        end = max(seqlen - 1, 0)
        routes = self.read(req_pool_idx, min(start_len, end), end, req_to_token_pool)
        return torch.from_numpy(all_layers(routes))

    @property
    def counters(self) -> dict[str, int]:
        """Calls and rows since creation, by name; see moetape.Recorder."""
        return self.staging.counters

    def get_buffer_size_bytes(self) -> int:
        """Bytes of host memory for rows and stamps."""
        return self.store.memory_bytes

    def destroy(self) -> None:
        """Frees the memory. A second call does nothing."""
        self.store.close()


def all_layers(routes: Routes) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Ids as SGLang has them, int32 [rows, num_layers, top_k]; MISSING_ID in missing rows."""
    spec = routes.spec
    ids = np.zeros((len(routes), spec.num_layers, spec.top_k), np.int32)
    ids[:, list(spec.layers)] = routes.ids
    if not routes.complete:
        ids[~routes.valid] = MISSING_ID
    return ids


def get_global_experts_capturer() -> Any:
    """The process's capturer, or None."""
    return _resources().experts_capturer


def set_global_experts_capturer(capturer: Any) -> None:
    """Make `capturer` the one that SGLang's routers find."""
    _resources().experts_capturer = capturer


def destroy_global_experts_capturer() -> None:
    """Free the process's capturer, if there is one."""
    if (capturer := get_global_experts_capturer()) is not None:
        capturer.destroy()
    set_global_experts_capturer(None)


def disable_routed_experts_capture_for_draft(model: Any) -> None:
    """Take every router of a draft model out: only the target's choices are recorded."""
    from sglang.srt.layers.moe.topk import TopK

    for module in model.modules():
        if isinstance(module, TopK):
            module.topk_config.allow_routed_experts_capture = False


def _resources() -> Any:
    from sglang.srt.runtime_context import get_resources

    return get_resources()


def _largest_batch(model_config: Any, max_running_requests: int, num_tokens: int) -> int:
    """Router rows of the largest forward: all data-parallel ranks' tokens."""
    from sglang.srt.runtime_context import get_parallel, get_schedule

    schedule = get_schedule()
    prefill = schedule.chunked_prefill_size
    if prefill is None or prefill <= 0:  # not chunked: one prompt may be longer than the limit of a batch
        context = getattr(model_config, "context_len", num_tokens)
        prefill = min(num_tokens, max(schedule.max_prefill_tokens or 0, context))
    return int(max(prefill, max_running_requests, 1) * get_parallel().num_dp_ranks)


def _is_scattered() -> bool:
    """Whether each attention-TP rank sees only its own tokens' ids."""
    from sglang.srt.layers.moe import get_moe_a2a_backend

    backend = get_moe_a2a_backend()
    return bool(backend.is_deepep() or backend.is_deepep_v2())


def _gathered(ids: torch.Tensor) -> torch.Tensor:
    """The ids of all attention-TP ranks, one rank behind another, through SGLang's own group."""
    from sglang.srt.layers.dp_attention import attn_tp_all_gather_into_tensor
    from sglang.srt.runtime_context import get_parallel

    size = get_parallel().attn_tp_size
    gathered = torch.empty((ids.shape[0] * size, *ids.shape[1:]), dtype=ids.dtype, device=ids.device)
    attn_tp_all_gather_into_tensor(gathered, ids)
    return gathered


def _share(forward_batch: Any, can_run_graph: bool, cuda_graph_batch: int | None) -> Share:
    """Which rows of the batch are this rank's; those of a gathered batch are the first."""
    from sglang.srt.layers.dp_attention import dp_slot_in, is_dp_attention_enabled

    if not is_dp_attention_enabled() or _is_scattered():
        return Share()
    counts = forward_batch.global_num_tokens_cpu
    rank = dp_slot_in(counts)
    if not can_run_graph:
        return Share(sum(counts[:rank]), layout.dp_concat(counts, rank))
    if cuda_graph_batch is None:
        raise InvalidArgumentError(
            f"forward: expected the padded size of a graph's batch, got None for rank {rank}"
        )
    if (
        getattr(forward_batch, "spec_info", None) is not None
    ):  # the size counts requests, and not their drafts
        raise UnsupportedError(
            "forward: drafts verified in a graph under data-parallel attention: SGLang does not say where "
            f"rank {rank}'s rows are"
        )
    return Share(rank * cuda_graph_batch, layout.dp_padded(counts, cuda_graph_batch, rank))
