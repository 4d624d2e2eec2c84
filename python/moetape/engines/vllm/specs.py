"""The RouteSpec of a model that vLLM serves."""

from __future__ import annotations

from typing import Any

from moetape import InvalidArgumentError, RouteSpec, UnsupportedError

__all__ = ["spec_of"]


def spec_of(vllm_config: Any) -> RouteSpec:
    """What is recorded of the model of a VllmConfig: its own layers, which all stages of a pipeline agree on.

    Raises InvalidArgumentError for a model without experts; UnsupportedError where moetape and vLLM read
    another number of layers, experts or experts per token in its configuration.
    """
    model = vllm_config.model_config
    spec = RouteSpec.from_config(model.hf_text_config)
    read = (spec.num_layers, spec.top_k)
    told = (model.get_total_num_hidden_layers(), model.get_num_experts_per_tok())
    if read != told or spec.num_experts < model.get_num_experts():
        raise UnsupportedError(
            f"{spec.model}: expected {told[0]} layers and {told[1]} of {model.get_num_experts()} experts, as "
            f"vLLM has them, got {read[0]} and {read[1]} of {spec.num_experts}"
        )
    if spec.excluded:
        raise InvalidArgumentError(
            f"{spec.model}: expected a router in every MoE layer, got hash-routed ones {[*spec.excluded]}"
        )
    return spec
