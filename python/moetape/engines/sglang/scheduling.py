"""The plug-in in SGLang's scheduler: moetape in place of its capturer, and the end of a request.

Nothing that fails here fails a request: its answer lacks the rows, and says why.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from moetape.engines.sglang.answers import Options, Shipment, shipped
from moetape.engines.sglang.capturer import RoutedExpertsCapturer, get_global_experts_capturer
from moetape.engines.sglang.staging import Copy, Deferred, Landed

logger = logging.getLogger(__name__)

NOTES = "moetape"  # the key under which notes travel to the tokenizer's process
_ATTRIBUTE = "_moetape_notes"  # of a request, while it is in the scheduler


class GuardedCapturer:
    """A capturer whose faults are remembered and never raised: rows that they touch are missing."""

    def __init__(self, capturer: RoutedExpertsCapturer) -> None:
        self.capturer = capturer
        self.fault: str | None = None

    def attempt(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a call; None if it failed, and the fault is kept for the answers."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if self.fault is None:
                logger.exception("moetape: routes of a step were lost")
            self.fault = f"{type(error).__name__}: {error}"
            return None

    def capture(self, layer_id: int, topk_indices: Any) -> None:
        self.attempt(self.capturer.capture, layer_id, topk_indices)

    def on_forward_end(self, forward_batch: Any, *args: Any, **kwargs: Any) -> Deferred | None:
        num_faults = self.fault
        output = self.attempt(self.capturer.on_forward_end, forward_batch, *args, **kwargs)
        if self.fault is not num_faults:
            self.attempt(self._forget, forward_batch)
        return None if output is None else GuardedOutput(self, output)

    def _forget(self, forward_batch: Any) -> None:
        """What a forward that was lost would have written: no older row may stand there."""
        slots = forward_batch.out_cache_loc_virtual
        slots = forward_batch.out_cache_loc if slots is None else slots
        self.capturer.hand_out(slots)

    def get_topk(self, *args: Any, **kwargs: Any) -> Any:
        return self.attempt(self.capturer.get_topk, *args, **kwargs)

    def destroy(self) -> None:
        self.attempt(self.capturer.destroy)


class GuardedOutput:
    """Rows on their way from a device, under the same promise."""

    def __init__(self, guard: GuardedCapturer, output: Deferred) -> None:
        self._guard, self._output = guard, output

    def map_device_tensors(self, copy: Copy) -> None:
        if not isinstance(self._output, Landed):
            self._guard.attempt(self._output.map_device_tensors, copy)

    def finalize(self) -> None:
        self._guard.attempt(self._output.finalize)


def create(own: Any, *args: Any, **kwargs: Any) -> GuardedCapturer | None:
    """In place of RoutedExpertsCapturer.create."""
    del own
    capturer = RoutedExpertsCapturer.create(*args, **kwargs)
    if capturer is None:
        return None
    Options.of(None)  # the server's default form is one that there is
    logger.info(
        "moetape records routed experts: %d layers, %d of %d experts, %d slots, %.1f MB of host memory",
        capturer.spec.num_moe_layers,
        capturer.spec.top_k,
        capturer.spec.num_experts,
        capturer.store.num_slots,
        capturer.get_buffer_size_bytes() / 2**20,
    )
    return GuardedCapturer(capturer)


def _guard() -> GuardedCapturer | None:
    capturer = get_global_experts_capturer()
    return capturer if isinstance(capturer, GuardedCapturer) else None


def init_routed_experts_capturer(own: Any, runner: Any) -> None:
    """After ModelRunner.init_routed_experts_capturer: slots that get a new owner lose their old row.

    An allocator that cannot be followed ends the start, as SGLang's own errors do there.
    """
    own(runner)
    guard = _guard()
    if guard is not None and not runner.is_draft_worker:
        follow_allocator(guard, runner.token_to_kv_pool_allocator)


# Of SGLang's allocators, all that give slots to a request or to KV that comes from elsewhere.
HANDING_OUT = (
    "alloc",
    "alloc_cyclic",
    "alloc_decode",
    "alloc_extend",
    "alloc_extend_swa_tail",
    "alloc_logical_only",
)
INNER = ("full_attn_allocator", "logical_attn_allocator")  # that HiCache and others ask directly


def follow_allocator(guard: GuardedCapturer, allocator: Any) -> None:
    """Let the recorder know which slots get a new owner, and which KV is moved."""
    _follow_slots(guard, allocator)
    for name in INNER:
        if (inner := getattr(allocator, name, None)) is not None:
            _follow_slots(guard, inner)
    pool = allocator.get_kvcache()
    if pool is not None:
        _behind(pool, "move_kv_cache", lambda _, *slots: guard.attempt(guard.capturer.move, *slots))


def _follow_slots(guard: GuardedCapturer, allocator: Any) -> None:
    def handed_out(slots: Any, *args: Any, **kwargs: Any) -> None:
        if slots is not None and len(slots) > 0:
            guard.attempt(guard.capturer.hand_out, slots)

    for name in HANDING_OUT:
        if hasattr(allocator, name):
            _behind(allocator, name, handed_out)
    _behind(allocator, "clear", lambda *_: guard.attempt(guard.capturer.clear))


def _behind(owner: Any, name: str, say: Callable[..., Any]) -> None:
    """Let a method of this one object also call say(its result, *its arguments)."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        say(result, *args, **kwargs)
        return result

    setattr(owner, name, call)


def forward(own: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ModelRunner.forward: rows that a forward without an end left are not this one's."""
    guard = None if runner.is_draft_worker else _guard()
    if guard is not None:
        guard.attempt(_begin, guard.capturer)
    return own(runner, *args, **kwargs)


def _begin(capturer: RoutedExpertsCapturer) -> None:
    from sglang.srt.runtime_context import get_serving

    name = str(get_serving().weight_version)
    capturer.version = int(name) if name.isdecimal() and int(name) < 0xFFFFFF else 0
    capturer.begin()


def collect(own: Any, processor: Any, request: Any) -> None:
    """In place of BatchResultProcessor._maybe_collect_routed_experts."""
    guard = _guard()
    if guard is None or not request.return_routed_experts:
        own(processor, request)
        return
    notes: dict[str, Any] = {}
    try:
        shipment = _shipment(guard.capturer, processor, request)
        notes = shipment.notes()
        request.routed_experts = shipped(shipment, _is_pickled())
        if "routed_experts_missing" in notes and guard.fault is not None:
            notes["routed_experts_error"] = guard.fault
    except Exception as error:
        logger.exception("moetape: routes of request %s were lost", request.rid)
        request.routed_experts = None
        notes["routed_experts_error"] = f"{type(error).__name__}: {error}"
    setattr(request, _ATTRIBUTE, notes)


def _shipment(capturer: RoutedExpertsCapturer, processor: Any, request: Any) -> Shipment:
    options = Options.of(request.sampling_params.custom_params)
    num_sampled = len(request.output_ids_through_stop)
    num_tokens = len(request.origin_input_ids) + num_sampled
    end = num_tokens if options.last_row and num_sampled == 0 else max(num_tokens - 1, 0)
    start = min(request.routed_experts_start_len, end)
    tokens = None
    if options.form == "tape":
        tokens = [*request.origin_input_ids, *request.output_ids_through_stop][start:end]
    routes = capturer.read(request.kv.req_pool_idx, start, end, processor.req_to_token_pool, tokens)
    return Shipment(routes, options.form)


def _is_pickled() -> bool:
    from sglang.srt.managers import io_struct

    return bool(io_struct._USE_PICKLE_IPC)


def to_payload(own: Any, accumulator: Any, *args: Any, **kwargs: Any) -> Any:
    """Before _GenerationStreamAccumulator.to_payload: the notes of requests that end ride along."""
    if accumulator.return_routed_experts and not accumulator.rust_server_mode:
        notes = [getattr(request, _ATTRIBUTE, None) for request in accumulator.output_reqs]
        ended = [
            note if note and request.finished() else None
            for note, request in zip(notes, accumulator.output_reqs, strict=True)
        ]
        if any(ended):
            accumulator.customized_info[NOTES] = ended
    return own(accumulator, *args, **kwargs)
