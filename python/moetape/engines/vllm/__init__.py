"""Routes out of vLLM: a plug-in that vLLM loads by itself, and its capturer's names over moetape's core.

    llm = vllm.LLM(model, enable_return_routed_experts=True)        # moetape is installed: nothing else to do
    output = llm.generate(prompt)[0].outputs[0]
    output.routed_experts                                           # [rows, layers, k], as on GPUs
    routes = moetape.engines.vllm.routes_of(output.routed_experts, spec)

Importing this package imports neither torch nor vLLM; the drop-in names do when they are first used. See
docs/vllm.md.
"""

from typing import Any

from moetape.engines.vllm.answer import missing_rows, routes_of, versions_of

_DROP_IN = (
    "RoutedExpertsCaptureSource",
    "RoutedExpertsCapturer",
    "RoutedExpertsSink",
    "bind_routed_experts_capturer",
)

__all__ = ["missing_rows", "routes_of", "versions_of", *_DROP_IN]


def __getattr__(name: str) -> Any:
    if name in _DROP_IN:
        from moetape.engines.vllm import capturer

        return getattr(capturer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
