"""Which layers and routers are whose, by Megatron's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import moetape as mt
from moetape.trainers.megatron._routers import find_routers, spec_of_config, unwrapped
from moetape.trainers.verl._router_replay import RouterReplay, RouterReplayAction


def get_num_layers_to_build(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    """How many transformer layers a (virtual) pipeline stage has."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build as count

    return int(count(config, vp_stage=vp_stage, pp_rank=pp_rank))


def _layers(config: Any, vp_stage: int | None, pp_rank: int | None) -> range:
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset as offset

    start = int(offset(config, vp_stage=vp_stage, pp_rank=pp_rank))
    return range(start, start + get_num_layers_to_build(config, vp_stage, pp_rank))


def is_moe_layer(tf_config: Any, layer_idx: int) -> bool:
    """Whether the layer, counted from 0 over the whole model, has experts."""
    if not 0 <= layer_idx < tf_config.num_layers:
        raise mt.OutOfRangeError(f"layer: expected 0 to {tf_config.num_layers - 1}, got {layer_idx}")
    return layer_idx in spec_of_config(tf_config).layers


def moe_layers(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> list[int]:
    """The layers with experts of a (virtual) pipeline stage, counted from 0 over the whole model."""
    with_experts = set(spec_of_config(config).layers)
    return [layer for layer in _layers(config, vp_stage, pp_rank) if layer in with_experts]


def get_moe_num_layers_to_build(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    """How many layers with experts a (virtual) pipeline stage has."""
    return len(moe_layers(config, vp_stage, pp_rank))


def get_current_rank_layer_info(tf_config: Any, vp_rank: int | None = None) -> dict[str, int]:
    """{start, end, count} of this rank's layers at a virtual stage (default: the first)."""
    layers = _layers(tf_config, 0 if vp_rank is None else vp_rank, None)
    return {"start": layers.start, "end": layers.stop, "count": len(layers)}


def iter_model_routers(model: Any) -> Iterator[tuple[int, RouterReplay]]:
    """(layer_number from 1, RouterReplay) of each router of the model or its chunks; not those of MTP."""
    for chunk in model if isinstance(model, list | tuple) else [model]:
        for router in find_routers(unwrapped(chunk), {}):
            module: Any = router.module
            if module.router_replay is not None:
                yield router.layer + 1, module.router_replay


def set_model_router_replay_action(model: Any, router_replay_action: RouterReplayAction) -> None:
    """Set the action of the model's own routers."""
    for _, router in iter_model_routers(model):
        router.set_router_replay_action(router_replay_action)


def routers_of(tf_config: Any, vp_rank: int, model: Any) -> list[tuple[int, RouterReplay]]:
    """(layer from 0, RouterReplay) of this rank at a virtual stage: the model's own, or those of the list."""
    if model is not None:
        return [(number - 1, router) for number, router in iter_model_routers(model)]
    routers = RouterReplayHelper.get_micro_batch_router_list(tf_config, vp_rank)
    return list(zip(moe_layers(tf_config, vp_rank), routers, strict=True)) if routers else []


class RouterReplayHelper:
    """What a rank's routers are about to do."""

    @staticmethod
    def get_micro_batch_router_list(tf_config: Any, vp_rank: int | None = None) -> list[RouterReplay]:
        """The RouterReplay of this rank's layers at a virtual stage, out of the list of all.

        The list must be that of one model on this rank, stage by stage, or of one whole model. Give the
        functions of this package `model=` and no list is asked.
        """
        instances: list[Any] = list(RouterReplay.router_instances)
        if not instances:
            return []
        num_stages = tf_config.virtual_pipeline_model_parallel_size or 1
        stage = 0 if vp_rank is None else vp_rank
        if not 0 <= stage < num_stages:
            raise mt.OutOfRangeError(f"vp_rank: expected 0 to {num_stages - 1}, got {stage}")
        stages = [moe_layers(tf_config, at) for at in range(num_stages)]
        everywhere = spec_of_config(tf_config).layers
        if len(instances) == sum(map(len, stages)):
            first = sum(map(len, stages[:stage]))
        elif len(instances) == len(everywhere):
            first = list(everywhere).index(stages[stage][0]) if stages[stage] else 0
        else:
            raise mt.WrongShapeError(
                f"routers: expected {sum(map(len, stages))} as this rank's layers have, or "
                f"{len(everywhere)} as the model's, got {len(instances)}; give model="
            )
        return instances[first : first + len(stages[stage])]

    @staticmethod
    def _about_to(action: str, tf_config: Any, vp_rank: int | None, model: Any) -> bool:
        for _, router in routers_of(tf_config, 0 if vp_rank is None else vp_rank, model):
            return getattr(router.router_replay_action, "value", None) == action
        return False

    @staticmethod
    def is_r2_record_action(tf_config: Any, vp_rank: int | None = None, model: Any = None) -> bool:
        """Whether the routers record."""
        return RouterReplayHelper._about_to("record", tf_config, vp_rank, model)

    @staticmethod
    def is_replay_forward_action(tf_config: Any, vp_rank: int | None = None, model: Any = None) -> bool:
        """Whether the routers take ids in their forward."""
        return RouterReplayHelper._about_to("replay_forward", tf_config, vp_rank, model)

    @staticmethod
    def is_replay_backward_action(tf_config: Any, vp_rank: int | None = None, model: Any = None) -> bool:
        """Whether the routers take ids in recomputation."""
        return RouterReplayHelper._about_to("replay_backward", tf_config, vp_rank, model)
