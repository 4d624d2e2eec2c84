"""The entry point that SGLang loads in each of its processes: moetape in group sglang.srt.plugins."""

from __future__ import annotations

from moetape.engines.sglang import answering, patches, scheduling

_SRT = "sglang.srt"
_TOKENIZER = "managers.tokenizer_manager.TokenizerManager"
_COMPLETIONS = "entrypoints.openai.serving_completions.OpenAIServingCompletion"
_CHAT = "entrypoints.openai.serving_chat.OpenAIServingChat"
_RUNNER = "model_executor.model_runner.ModelRunner"
_COMPONENTS = "managers.scheduler_components"
_PROCESSOR = f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
_STREAMER = f"{_COMPONENTS}.output_streamer._GenerationStreamAccumulator"

_HOOKS: dict[str, patches.Hook] = {
    "state_capturer.routed_experts.RoutedExpertsCapturer.create": scheduling.create,
    f"{_RUNNER}.init_routed_experts_capturer": scheduling.init_routed_experts_capturer,
    f"{_RUNNER}.forward": scheduling.forward,
    f"{_PROCESSOR}._maybe_collect_routed_experts": scheduling.collect,
    f"{_STREAMER}.to_payload": scheduling.to_payload,
    "managers.detokenizer_manager.DetokenizerManager._b64_encode_per_request": answering.encode_per_request,
    f"{_TOKENIZER}._handle_batch_output": answering.handle_batch_output,
    f"{_TOKENIZER}.update_request_meta_info": answering.update_request_meta_info,
    f"{_TOKENIZER}.generate_request": answering.generate_request,
    f"{_COMPLETIONS}._build_completion_response": answering.build_response,
    f"{_COMPLETIONS}._generate_completion_stream": answering.stream_response,
    f"{_CHAT}._build_chat_response": answering.build_response,
    f"{_CHAT}._generate_chat_stream": answering.stream_response,
}
HOOKS = {f"{_SRT}.{name}": hook for name, hook in _HOOKS.items()}

# What the plug-in takes for granted: where routers call the capturer, that rows arrive before they are
# collected, which methods hand out slots, and how accepted drafts are moved.
_ALLOCATORS = "mem_cache.allocator"
_WATCHED = (
    "layers.moe.topk.capture_routed_experts_if_allowed",
    "managers.utils.GenerationBatchResult",
    f"{_PROCESSOR}.process_batch_result_prefill",
    f"{_PROCESSOR}.process_batch_result_decode",
    "speculative.spec_utils.move_accept_tokens_to_target_kvcache",
    f"{_ALLOCATORS}.base.BaseTokenToKVPoolAllocator",
    f"{_ALLOCATORS}.token.TokenToKVPoolAllocator",
    f"{_ALLOCATORS}.paged.PagedTokenToKVPoolAllocator",
    f"{_ALLOCATORS}.swa.SWATokenToKVPoolAllocator",
    f"{_ALLOCATORS}.swa.PureSWATokenToKVPoolAllocator",
    f"{_ALLOCATORS}.page_interleave.PageInterleavePoolAllocator",
    f"{_ALLOCATORS}.hisparse.HiSparseTokenToKVPoolAllocator",
    f"{_ALLOCATORS}.hisparse.DeepSeekV4HiSparseTokenToKVPoolAllocator",
    f"{_ALLOCATORS}.unified_mamba.UnifiedMambaTokenToKVPoolAllocator",
    f"{_ALLOCATORS}.unified_hybrid_swa.UnifiedSWAAllocatorBase",
    f"{_ALLOCATORS}.unified_hybrid_swa.UnifiedSWATokenToKVPoolAllocator",
    f"{_ALLOCATORS}.unified_hybrid_swa.UnifiedMambaSWATokenToKVPoolAllocator",
    f"{_ALLOCATORS}.unified_sub_pool.MultiEndedAllocator",
)
WATCHED = tuple(f"{_SRT}.{name}" for name in _WATCHED)


def activate() -> None:
    """Put moetape in place of SGLang's capturer, for when --enable-return-routed-experts is given.

    Raises UnsupportedError, with nothing changed, for a version of SGLang that was not tried; SGLang logs
    that and goes on with its own.
    """
    patches.apply(HOOKS, WATCHED)
    answering.extend_fields()
