"""The RouteSpec of a model as SGLang runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moetape import InvalidArgumentError, RouteSpec, UnsupportedError


def spec_of(model_config: Any, model: Any = None, shared_columns: int = 0) -> RouteSpec:
    """What is recorded of a model.

    model_config: SGLang's, of which hf_text_config is read. model: the loaded module, whose routers add to
    the layers that the configuration names: one of these that never captures makes rows missing. Its
    hash-routed layers are left out. Raises InvalidArgumentError for a dense model.
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
    captured, hashed = ([], []) if model is None else (captured_layers(model), hash_layers(model))
    try:
        spec = RouteSpec.from_config(config, **fields)
    except UnsupportedError:  # SGLang knows kinds of models that from_config does not
        if not captured:
            raise
        spec = RouteSpec.from_config(config, layers=captured, **fields)
    layers = (set(spec.layers) | set(captured)) - set(hashed)
    excluded = {**spec.excluded, **dict.fromkeys(hashed, "hash-routed")}
    return RouteSpec.from_config(config, layers=sorted(layers), excluded=excluded, **fields)


def captured_layers(model: Any) -> list[int]:
    """Global indices of the layers whose router calls SGLang's hook, ascending; draft routers do not."""
    from sglang.srt.layers.moe.topk import TopK

    return _layers(
        model, lambda each: isinstance(each, TopK) and each.topk_config.allow_routed_experts_capture
    )


def hash_layers(model: Any) -> list[int]:
    """Global indices of the layers that choose by a table and call no hook, ascending."""
    return _layers(model, lambda each: type(each).__name__ == "HashTopK")


def _layers(model: Any, is_meant: Callable[[Any], bool]) -> list[int]:
    layers = {module.layer_id for module in model.modules() if is_meant(module)}
    return sorted(layer for layer in layers if layer is not None)
