"""Routers of Megatron models: which there are, what they choose from, which cannot be replayed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import moetape as mt
from moetape.trainers.megatron._plan import Shard

_ROUTER_MODULE = "megatron.core.transformer.moe.router"


@dataclass(frozen=True)
class MegatronRouter:
    """A router of the target stack. layer: its 0-based global index (Megatron's layer_number - 1)."""

    layer: int
    name: str
    module: torch.nn.Module


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model below wrappers that keep it as `.module` (DistributedDataParallel, Float16Module, FSDP)."""
    while isinstance(inner := getattr(model, "module", None), torch.nn.Module):
        model = inner
    return model


def find_routers(chunk: torch.nn.Module, excluded: Mapping[int, str]) -> list[MegatronRouter]:
    """The routers of a model chunk, ascending by layer, without those of excluded layers and of MTP."""
    routers = []
    prediction: list[str] = []
    for name, module in chunk.named_modules():
        if type(module).__name__ == "MultiTokenPredictionBlock":
            prediction.append(f"{name}.")
        if (
            not _is_router(module)
            or name.startswith(tuple(prediction))
            or getattr(module, "is_mtp_layer", False)
        ):
            continue
        number = getattr(module, "layer_number", None)
        if not isinstance(number, int) or number < 1:
            raise mt.UnsupportedError(f"router {name}: expected a layer_number of 1 or more, got {number!r}")
        routers.append(MegatronRouter(number - 1, name, module))
    routers.sort(key=lambda router: router.layer)
    for one, next_one in itertools.pairwise(routers):
        if one.layer == next_one.layer:
            raise mt.UnsupportedError(
                f"router {next_one.name}: expected one router in layer {one.layer}, got {one.name} there too"
            )
    return [router for router in routers if router.layer not in excluded]


def _is_router(module: torch.nn.Module) -> bool:
    return any(
        kind.__name__ == "Router" and kind.__module__ == _ROUTER_MODULE for kind in type(module).__mro__
    )


def spec_of_config(config: Any, excluded: Mapping[int, str] | None = None) -> mt.RouteSpec:
    """The spec of the whole stack that a TransformerConfig describes."""
    if not config.num_moe_experts:
        raise mt.InvalidArgumentError("model: expected one with experts (num_moe_experts), got a dense one")
    excluded = dict(excluded or {})
    layers = [layer for layer in _moe_layers(config) if layer not in excluded]
    return mt.RouteSpec(
        layers,
        top_k=config.moe_router_topk,
        num_experts=config.num_moe_experts,
        num_layers=config.num_layers,
        excluded=excluded,
    )


def _moe_layers(config: Any) -> list[int]:
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return [layer for layer in range(config.num_layers) if layer % frequency == 0]
    if len(frequency) != config.num_layers:
        raise mt.InvalidArgumentError(
            f"moe_layer_freq: expected {config.num_layers} entries as layers, got {len(frequency)}"
        )
    return [layer for layer, is_moe in enumerate(frequency) if is_moe]


def check_against_spec(routers: Sequence[MegatronRouter], spec: mt.RouteSpec, config: Any) -> None:
    """Hold this rank's routers against the spec of the stack."""
    if not spec.distinct:
        raise mt.SpecMismatchError(
            "spec: expected distinct ids, as Megatron's routers pick, got distinct=False"
        )
    for router in routers:
        module: Any = router.module
        sizes = (module.topk, module.config.num_moe_experts)
        if sizes != (spec.top_k, spec.num_experts):
            raise mt.SpecMismatchError(
                f"router {router.name}: expected {spec.top_k} of {spec.num_experts} experts as the spec has, "
                f"got {sizes[0]} of {sizes[1]}"
            )
        if router.layer not in spec.layers:
            raise mt.SpecMismatchError(
                f"router {router.name}: expected layer {router.layer} in the spec, got "
                f"layers {list(spec.layers)}"
            )
    here = {router.layer for router in routers}
    if config.pipeline_model_parallel_size == 1 and here != set(spec.layers):
        raise mt.SpecMismatchError(
            f"model: expected routers in layers {list(spec.layers)} as the spec has, got {sorted(here)}"
        )


def check_replayable(router: MegatronRouter, allow: Collection[str]) -> None:
    """Refuse, by name, a router that would ignore replayed ids in silence, or not do what they say."""
    module: Any = router.module
    config = module.config
    kind = type(module)
    routing = getattr(kind, "routing", None)
    if getattr(routing, "__module__", None) != _ROUTER_MODULE or not hasattr(module, "router_replay"):
        raise _refusal(
            router,
            "routing by megatron-core's TopKRouter",
            f"{kind.__name__}.routing of {getattr(routing, '__module__', 'nowhere')}",
        )
    types = module.routing_type if isinstance(module.routing_type, list) else [module.routing_type]
    for unsupported in {"sinkhorn", "quantile_balancing"} & set(types):
        raise _refusal(router, "a top-k choice", f"moe_router_load_balancing_type={unsupported!r}")
    for setting, harmless, why in _SETTINGS:
        value = getattr(config, setting, None)
        if value not in harmless and why not in allow:
            raise _refusal(router, f"{setting} off", f"{value!r}", why)
    if (config.fp8 or getattr(config, "fp4", None)) and config.recompute_granularity:
        raise _refusal(
            router,
            "no recomputing in fp8 or fp4 (its checkpoints are Transformer Engine's)",
            f"recompute_granularity={config.recompute_granularity!r}",
        )
    if (action := getattr(module.router_replay, "router_replay_action", None)) is not None:
        raise mt.ConflictError(
            f"router {router.name}: expected megatron's own RouterReplay at rest, got {action}"
        )


# (setting, values that do no harm, the name by which a policy allows others)
_SETTINGS = [
    ("moe_router_fusion", (None, False), ""),
    ("moe_router_force_load_balancing", (None, False), ""),
    ("moe_router_force_biased", (None,), ""),
    ("overlap_moe_expert_parallel_comm", (None, False), ""),
    ("cuda_graph_impl", (None, "none"), ""),
    ("enable_cuda_graph", (None, False), ""),
    ("external_cuda_graph", (None, False), ""),
    ("moe_expert_capacity_factor", (None,), "capacity"),
    ("moe_token_dropping", (None, False), "capacity"),
    ("moe_input_jitter_eps", (None,), "jitter"),
]


def _refusal(router: MegatronRouter, expected: str, got: str, allowed_as: str = "") -> mt.UnsupportedError:
    hint = f'; ReplayPolicy(allow=["{allowed_as}"]) takes it' if allowed_as else ""
    return mt.UnsupportedError(
        f"router {router.name} (layer {router.layer}): expected {expected} for replay, got {got}{hint}"
    )


def shard_of(config: Any, routers: Sequence[MegatronRouter]) -> Shard:
    """The rank's place in sequence parallelism, which cuts the rows that routers see."""
    if not config.sequence_parallel:
        return Shard()
    return Shard(*_place(routers, "tp_group", "tensor_model"))


def context_of(routers: Sequence[MegatronRouter]) -> tuple[int, int]:
    """(size, rank) in context parallelism."""
    return _place(routers, "cp_group", "context")


def _place(routers: Sequence[MegatronRouter], group: str, kind: str) -> tuple[int, int]:
    """(size, rank) by a router's own group; a chunk of dense layers asks Megatron's global groups."""
    for router in routers:
        found: Any = getattr(router.module, group, None)
        if found is not None:
            return found.size(), found.rank()
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return 1, 0
    return (
        getattr(parallel_state, f"get_{kind}_parallel_world_size")(),
        getattr(parallel_state, f"get_{kind}_parallel_rank")(),
    )


def pipeline_group() -> Any:
    """The ranks that have the stages of this rank's model; None without pipeline stages."""
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return None
    return parallel_state.get_pipeline_model_parallel_group()
