"""The RouteSpec of a model as SGLang runs it: the layers that SGLang's own router hook names."""

from __future__ import annotations

from typing import Any

from moetape import InvalidArgumentError, RouteSpec


def spec_of(model_config: Any, model: Any = None, shared_columns: int = 0) -> RouteSpec:
    """What is recorded of a model.

    model_config: SGLang's, of which hf_text_config is read. model: the loaded module; its routers say which
    layers are captured, where without it the configuration does. Raises InvalidArgumentError for a dense
    model.
    """
    config = model_config.hf_text_config
    top_k = getattr(config, "num_experts_per_tok", None)
    num_layers = getattr(config, "num_hidden_layers", None)
    if not top_k or not num_layers:
        raise InvalidArgumentError(
            "enable_return_routed_experts: expected a model with MoE layers, got a configuration with "
            f"num_experts_per_tok {top_k} and num_hidden_layers {num_layers}"
        )
    fields: dict[str, Any] = {"top_k": top_k, "num_layers": num_layers, "shared_columns": shared_columns}
    layers = captured_layers(model) if model is not None else []
    if layers:
        fields["layers"] = layers
    return RouteSpec.from_config(config, **fields)


def captured_layers(model: Any) -> list[int]:
    """Global indices of the layers whose router calls SGLang's hook, ascending; draft routers do not."""
    from sglang.srt.layers.moe.topk import TopK

    return sorted(
        {
            module.layer_id
            for module in model.modules()
            if isinstance(module, TopK) and module.topk_config.allow_routed_experts_capture
        }
    )
