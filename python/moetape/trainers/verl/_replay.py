"""Recorded routes on their way to the routers: aligned, masked, and the rank's rows of them given out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.replay import REPLAYED, Plan
from moetape.trainers._microbatch import narrow
from moetape.trainers.megatron._routers import spec_of_config
from moetape.trainers.verl._layers import routers_of
from moetape.trainers.verl._rows import Layout

_SINKS = {"sinkhorn", "quantile_balancing"}


def build_r3_replay_mask(input_ids: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Which tokens take recorded experts, jagged bool as input_ids: all but the last of a sequence.

    The last was never fed. Of a sequence without a response no token does.
    """
    offsets = input_ids.offsets()
    position = torch.arange(int(offsets[-1]), device=offsets.device)
    sequence = torch.searchsorted(offsets, position, right=True) - 1
    answers = response_mask.sum(dim=-1).to(offsets.device) > 0
    mask = answers[sequence] & (position < offsets[1:][sequence] - 1)
    return torch.nested.nested_tensor_from_jagged(mask, offsets=offsets)


def align_r3_router_replay_data(layers_topk_idx: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Routes [n or n - 1, layers, k] of sequences of n tokens as [n, layers, k], jagged: a last row of -1.

    Unsigned ids become signed ones that hold them and -1.
    """
    if not layers_topk_idx.is_nested or not input_ids.is_nested:
        raise mt.WrongTypeError(
            "router replay: expected jagged routes and input_ids, got "
            f"{layers_topk_idx.is_nested=}, {input_ids.is_nested=}"
        )
    lengths = input_ids.offsets().diff().tolist()
    routes = _signed(list(layers_topk_idx.unbind()))
    if len(routes) != len(lengths):
        raise mt.WrongShapeError(
            f"router replay: expected routes of {len(lengths)} sequences as input_ids has, got {len(routes)}"
        )
    aligned = []
    for sample, (rows, length) in enumerate(zip(routes, lengths, strict=True)):
        if len(rows) not in (length, length - 1):
            raise mt.WrongShapeError(
                f"router replay: sample {sample}: expected {length} rows as tokens, or one less, "
                f"got {len(rows)}"
            )
        aligned.append(torch.cat([rows, rows.new_full((length - len(rows), *rows.shape[1:]), -1)]))
    return torch.nested.as_nested_tensor(aligned, layout=torch.jagged)


def _signed(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    wider = {torch.uint8: torch.int16, torch.uint16: torch.int32}
    return [part.to(wider.get(part.dtype, part.dtype)) for part in parts]


def set_router_replay_data(
    layers_topk_idx: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    tf_config: Any,
    vp_rank: int | None = None,
    replay_mask: torch.Tensor | None = None,
    local_cp_size: int | None = None,
    model: Any = None,
) -> None:
    """Give this rank's routers their rows of a micro-batch.

    layers_topk_idx: jagged [n, layers, k] of each sequence, or [batch, length, layers, k] with attention_mask
    [batch, length]; layers are the model's, or those with experts. replay_mask: the same without layers and
    k. Rows outside it, rows of -1, and padding are routed live. Checked on the CPU: give it ids that lie
    there, and nothing waits for a device.
    """
    if layers_topk_idx is None:
        raise mt.NotCapturedError("router replay: expected routed_experts to replay, got None")
    check_replayable(tf_config)
    stage = 0 if vp_rank is None else vp_rank
    routers = routers_of(tf_config, stage, model)
    if model is not None and not routers:
        raise mt.NotCapturedError("router replay: expected routers in the model that runs, got none")
    spec = spec_of_config(tf_config)
    arrays = _sequences(layers_topk_idx, attention_mask, "routed_experts")
    masks: list[Any] = [None] * len(arrays)
    if replay_mask is not None:
        masks = _sequences(replay_mask, attention_mask, "replay_mask")
    if len(masks) != len(arrays):
        raise mt.WrongShapeError(
            f"replay_mask: expected {len(arrays)} sequences as the routes have, got {len(masks)}"
        )
    sources = [
        _routes(spec, sample, array, mask)
        for sample, (array, mask) in enumerate(zip(arrays, masks, strict=True))
    ]
    rows = Layout(tf_config, local_cp_size).here([len(array) for array in arrays])
    plan = Plan.from_row_ids(rows.ids, layers=[layer for layer, _ in routers])
    ids, uses = plan.apply(sources, dtype=narrow(spec.num_experts))
    takes = None if (uses == REPLAYED).all() else _on_device(uses == REPLAYED)
    for (_, router), of_layer in zip(routers, _on_device(ids), strict=True):
        router.set_target_indices(of_layer, replay_mask=takes)


def _on_device(array: npt.NDArray[Any]) -> torch.Tensor:
    """The array where routers run, by one copy that nothing waits for."""
    tensor = torch.from_numpy(array)
    if not torch.cuda.is_available():
        return tensor
    return tensor.pin_memory().to(torch.device("cuda", torch.cuda.current_device()), non_blocking=True)


def check_replayable(config: Any) -> None:
    """Refuse routers that would not look at the ids."""
    if getattr(config, "moe_router_fusion", False):
        raise mt.UnsupportedError("router replay: expected moe_router_fusion off, got True: it ignores ids")
    kinds = config.moe_router_load_balancing_type
    for kind in _SINKS & set(kinds if isinstance(kinds, list) else [kinds]):
        raise mt.UnsupportedError(
            f"router replay: expected a top-k choice, got moe_router_load_balancing_type={kind!r}"
        )


def _sequences(given: torch.Tensor, attention_mask: torch.Tensor | None, what: str) -> list[npt.NDArray[Any]]:
    """The rows of each sequence, on the CPU."""
    if given.is_nested:
        return [one.numpy() for one in given.detach().to("cpu").unbind()]
    if attention_mask is None:
        raise mt.InvalidArgumentError(f"{what}: expected attention_mask beside a padded batch, got None")
    if given.shape[:2] != attention_mask.shape:
        raise mt.WrongShapeError(
            f"{what}: expected {list(attention_mask.shape)} as attention_mask has, got {list(given.shape)}"
        )
    kept = attention_mask.to("cpu").bool()
    return [one[mask].numpy() for one, mask in zip(given.detach().to("cpu"), kept, strict=True)]


def _routes(
    spec: mt.RouteSpec, sample: int, array: npt.NDArray[Any], mask: npt.NDArray[Any] | None
) -> mt.Routes:
    name = f"router replay: sample {sample}"
    if array.ndim != 3 or array.shape[2] != spec.top_k:
        raise mt.WrongShapeError(f"{name}: expected [rows, layers, {spec.top_k}], got {list(array.shape)}")
    if array.shape[1] == spec.num_layers:
        array = array[:, list(spec.layers)]
    elif array.shape[1] != spec.num_moe_layers:
        raise mt.WrongShapeError(
            f"{name}: expected {spec.num_layers} layers, or the {spec.num_moe_layers} with experts, "
            f"got {array.shape[1]}"
        )
    valid = ~(array == -1).all(axis=(1, 2)) if array.dtype.kind == "i" else np.ones(len(array), bool)
    if mask is not None:
        if mask.shape != valid.shape:
            raise mt.WrongShapeError(
                f"{name}: replay_mask: expected {len(array)} rows as routes, got {list(mask.shape)}"
            )
        valid &= mask.astype(bool)
    try:
        return mt.Routes.from_ids(spec, array, valid=valid)
    except mt.Error as error:
        raise type(error)(f"{name}: {error}; a row without a record is -1 in all ids") from None
