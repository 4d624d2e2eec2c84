"""Recorded choices on their way back: of all ranks, by sequence, position and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import moetape as mt
from moetape.trainers.megatron._routers import spec_of_config
from moetape.trainers.verl._layers import moe_layers, routers_of
from moetape.trainers.verl._replay import check_replayable
from moetape.trainers.verl._rows import Layout


def merge_router_topk_indices(
    attention_mask: torch.Tensor | None,
    input_ids: torch.Tensor,
    mini_layer_topk_idx_list: list[torch.Tensor],
    tf_config: Any,
    vp_rank: int | None = None,
    local_cp_size: int | None = None,
    model: Any = None,
) -> None:
    """Append what the routers of this stage chose in a micro-batch, of all its ranks in CP and TP.

    int16 on the CPU: jagged [n, layers with experts, k] where input_ids is jagged, else [batch, length,
    layers with experts, k], -1 where attention_mask has no token.
    """
    check_replayable(tf_config)
    if input_ids.is_nested:
        lengths = input_ids.offsets().diff().tolist()
    elif attention_mask is None:
        raise mt.InvalidArgumentError("attention_mask: expected one beside padded input_ids, got None")
    else:
        lengths = attention_mask.sum(dim=1).tolist()
    stage = 0 if vp_rank is None else vp_rank
    recorded = _recorded(tf_config, stage, model)
    layout = Layout(tf_config, local_cp_size)
    if recorded is None:
        shape = (0, tf_config.moe_router_topk)
        parts = [torch.empty((length, *shape), dtype=torch.int16) for length in lengths]
    else:
        parts = _by_sequence(recorded, layout, lengths)
    if input_ids.is_nested:
        mini_layer_topk_idx_list.append(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
        return
    assert attention_mask is not None
    padded = torch.full((*attention_mask.shape, *parts[0].shape[1:]), -1, dtype=torch.int16)
    padded[attention_mask.to("cpu").bool()] = torch.cat(parts)
    mini_layer_topk_idx_list.append(padded)


def _recorded(config: Any, stage: int, model: Any) -> torch.Tensor | None:
    """What the stage's routers chose, int16 [rows, layers, k]; None of a stage of dense layers."""
    routers = sorted(routers_of(config, stage, model), key=lambda found: found[0])
    if not routers:
        if expected := moe_layers(config, stage):
            raise mt.NotCapturedError(
                f"router replay: expected routers in layers {expected} of virtual stage {stage}, got none"
            )
        return None
    chosen = [router.recorded_topk_idx for _, router in routers]
    silent = [layer for (layer, _), one in zip(routers, chosen, strict=True) if one is None]
    if silent:
        raise mt.NotCapturedError(f"router replay: expected a record of every router, got none in {silent}")
    if (num_experts := spec_of_config(config).num_experts) > 32768:
        raise mt.CapacityError(f"router replay: expected ids that int16 holds, got {num_experts} experts")
    return torch.stack([one.to(torch.int16) for one in chosen if one is not None], dim=1)


def _by_sequence(recorded: torch.Tensor, layout: Layout, lengths: Sequence[int]) -> list[torch.Tensor]:
    from megatron.core import parallel_state

    # NCCL has no int16.
    rows = recorded.detach().contiguous().view(torch.uint8)
    if layout.shared:
        rows = torch.cat(_gathered(rows, layout.tp_size, parallel_state.get_tensor_model_parallel_group()))
    ranks = [rows] if layout.cp_size == 1 else _gathered(rows, layout.cp_size, layout.cp_group())
    parts = [torch.empty((length, *recorded.shape[1:]), dtype=torch.int16) for length in lengths]
    for rank, of_rank in enumerate(ranks):
        row_ids = layout.of_context(lengths, rank).ids
        ids = of_rank.to("cpu").view(torch.int16)
        if len(ids) != len(row_ids):
            raise mt.WrongShapeError(
                f"router replay: expected a record of {len(row_ids)} rows as the tokens have, got {len(ids)}"
            )
        sequences, positions = (row_ids >> 32) - 1, row_ids & 0xFFFFFFFF
        for sequence, part in enumerate(parts):
            here = np.flatnonzero(sequences == sequence)
            part[torch.from_numpy(positions[here])] = ids[torch.from_numpy(here)]
    return parts


def _gathered(rows: torch.Tensor, size: int, group: Any) -> list[torch.Tensor]:
    everyone = [torch.empty_like(rows) for _ in range(size)]
    torch.distributed.all_gather(everyone, rows, group=group)
    return everyone


def merge_nested_router_maps(router_maps: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sequences of several jagged batches as one, int16."""
    parts = [one.to(torch.int16) for router_map in router_maps for one in router_map.unbind()]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def reorder_and_merge_vpp_layers(
    micro_batch_tensor_list: Sequence[torch.Tensor],
    num_microbatches: int,
    vpp_size: int,
    microbatch_group_size_per_vp_stage: int,
) -> torch.Tensor:
    """All sequences with all local layers, of records in the order of Megatron's interleaved schedule."""
    from megatron.core.pipeline_parallel.schedules import get_schedule_table

    table = get_schedule_table(num_microbatches, vpp_size, microbatch_group_size_per_vp_stage)
    if len(micro_batch_tensor_list) != len(table):
        raise mt.WrongShapeError(
            f"router replay: expected a record of {len(table)} micro-batches and virtual stages, "
            f"got {len(micro_batch_tensor_list)}"
        )
    stages: list[dict[int, torch.Tensor]] = [{} for _ in range(vpp_size)]
    for (micro_batch, stage), one in zip(table, micro_batch_tensor_list, strict=True):
        stages[stage][micro_batch] = one
    in_order = [[of_stage[at] for at in range(num_microbatches)] for of_stage in stages]
    if micro_batch_tensor_list[0].is_nested:
        return torch.cat([merge_nested_router_maps(one) for one in in_order], dim=2)
    return torch.cat([torch.cat(one) for one in in_order], dim=2)


def pp_gather(local_layers_router_map: torch.Tensor, tf_config: Any) -> torch.Tensor:
    """The layers of all pipeline ranks, ascending, on the CPU. Every rank of the pipeline calls it."""
    if tf_config.pipeline_model_parallel_size <= 1:
        return local_layers_router_map
    from megatron.core import parallel_state

    group = parallel_state.get_pipeline_model_parallel_group()
    maps: list[Any] = [None] * torch.distributed.get_world_size(group)
    if len(maps) != tf_config.pipeline_model_parallel_size:
        raise mt.WrongShapeError(
            f"pipeline: expected {tf_config.pipeline_model_parallel_size} ranks as configured, "
            f"got {len(maps)}"
        )
    nested = local_layers_router_map.is_nested
    here = local_layers_router_map.to("cpu")
    torch.distributed.all_gather_object(maps, list(here.unbind()) if nested else [here], group)
    stages = range(tf_config.virtual_pipeline_model_parallel_size or 1)
    layers = [
        [layer for stage in stages for layer in moe_layers(tf_config, stage, rank)]
        for rank in range(len(maps))
    ]
    for rank, (of_rank, owned) in enumerate(zip(maps, layers, strict=True)):
        if any(one.shape[-2] != len(owned) for one in of_rank):
            raise mt.WrongShapeError(
                f"pipeline: expected layers {owned} of rank {rank}, got {[one.shape[-2] for one in of_rank]}"
            )
    order = torch.from_numpy(np.argsort(np.concatenate([np.array(one, np.int64) for one in layers])))
    joined = [torch.cat(parts, dim=-2).index_select(-2, order) for parts in zip(*maps, strict=True)]
    return torch.nested.as_nested_tensor(joined, layout=torch.jagged) if nested else joined[0]
