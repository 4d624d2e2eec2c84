"""A step of verl's engine with router replay in a Megatron model: its own functions, or ours by its names."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from megatron_cpu import config, dispatched, forward, gpt, gradients, mean_loss, parallel, same_gradients
from megatron_ranks import SetUp, Together
from moetape.trainers import verl as ours
from peer_code import peer_code

LENGTHS = [7, 4]
UTILS = "verl/utils/megatron/router_replay_utils.py"


def jagged(parts: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def verl() -> SimpleNamespace:
    """verl's own functions with the Megatron of this process."""
    from megatron.core import parallel_state as mpu
    from megatron.core import tensor_parallel
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel.schedules import get_schedule_table
    from megatron.core.pipeline_parallel.utils import is_vp_first_stage, is_vp_last_stage
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    logger: Any = logging.getLogger("verl")
    logger.warning_once = logger.debug
    cut = peer_code(
        "verl-0.9.1",
        "verl/models/mcore/util.py",
        "preprocess_packed_seqs",
        "postprocess_packed_seqs",
        "preprocess_thd_engine",
        "postprocess_thd_engine",
        "preprocess_for_mindspeed",
        "_compute_fp8_thd_align_size",
        torch=torch,
        math=math,
        mpu=mpu,
        PackedSeqParams=PackedSeqParams,
        _packed_seq_params_supports=lambda name: name in inspect.signature(PackedSeqParams).parameters,
        _PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE=False,
        is_npu_available=False,
        logger=logger,
    )
    replay = peer_code(
        "verl-0.9.1",
        "verl/utils/megatron/router_replay_patch.py",
        "RouterReplayAction",
        "RouterReplay",
        torch=torch,
        Enum=Enum,
        __name__=__name__,
    )
    functions = peer_code(
        "verl-0.9.1",
        UTILS,
        "set_router_replay_data",
        "align_r3_router_replay_data",
        "build_r3_replay_mask",
        "merge_router_topk_indices",
        "merge_nested_router_maps",
        "reorder_and_merge_vpp_layers",
        "pp_gather",
        "iter_model_routers",
        "set_model_router_replay_action",
        "is_moe_layer",
        "get_num_layers_to_build",
        "get_moe_num_layers_to_build",
        "get_current_rank_layer_info",
        "RouterReplayHelper",
        "_context_parallel_layout",
        torch=torch,
        inspect=inspect,
        mpu=mpu,
        device_name="cpu",
        TopKRouter=TopKRouter,
        get_schedule_table=get_schedule_table,
        get_transformer_layer_offset=get_transformer_layer_offset,
        is_vp_first_stage=is_vp_first_stage,
        is_vp_last_stage=is_vp_last_stage,
        gather_from_sequence_parallel_region=tensor_parallel.gather_from_sequence_parallel_region,
        scatter_to_sequence_parallel_region=tensor_parallel.scatter_to_sequence_parallel_region,
        __name__=__name__,
        **vars(cut),
        **vars(replay),
    )
    return SimpleNamespace(**vars(functions), **vars(replay), preprocess_thd_engine=cut.preprocess_thd_engine)


class Engine:
    """As much of verl's Megatron engine as replay sees, by the functions of `api`."""

    def __init__(self, setup: SetUp, api: Any) -> None:
        from megatron.core.transformer.moe import router

        self.setup, self.api, self.cut = setup, api, verl().preprocess_thd_engine
        if api is ours:
            ours.apply_router_replay_patch()
        else:
            known: Any = router
            known.RouterReplay = api.RouterReplay
        setup.changes["moe_enable_routing_replay"] = True
        self.config = setup.config()
        stages: list[int | None] = list(range(setup.vp)) if setup.vp > 1 else [None]
        self.chunks = [gpt(self.config, seed=3 + (stage or 0), vp_stage=stage) for stage in stages]
        generator = torch.Generator().manual_seed(0)
        self.tokens = [
            jagged([torch.randint(1, 64, (length,), generator=generator) for length in LENGTHS])
            for _ in range(setup.num_micro_batches)
        ]
        self.packed = [self.cut(one)[0] for one in self.tokens]
        self.responses = torch.ones(len(LENGTHS), 2, dtype=torch.int64)

    def step(self, mode: str | None, routes: list[Any] | None = None, forward_only: bool = False) -> Any:
        """(losses, gradients, record) of a step without replay (None), under "record", "R2" or "R3"."""
        api, action = self.api, self.api.RouterReplayAction
        record: list[Any] = []
        if mode is not None:
            start = action.RECORD if mode == "record" else action.REPLAY_FORWARD
            api.RouterReplay.set_global_router_replay_action(start)
        calls = [0] * len(self.chunks)

        def forward_step(data_iterator: Any, model: Any) -> Any:
            stage = model.vp_stage or 0
            at = calls[stage]
            calls[stage] += 1
            helper = api.RouterReplayHelper
            if helper.is_replay_backward_action(self.config, stage, model=model):
                api.set_model_router_replay_action(model, action.REPLAY_FORWARD)
            if helper.is_replay_forward_action(self.config, stage, model=model):
                assert routes is not None
                given, mask = routes[at], None
                if mode == "R3":
                    given = api.align_r3_router_replay_data(given, self.tokens[at])
                    mask = api.build_r3_replay_mask(self.tokens[at], self.responses)
                api.set_router_replay_data(given, None, self.config, stage, replay_mask=mask, model=model)
            output = forward(model, next(data_iterator))
            if mode == "record":
                api.merge_router_topk_indices(None, self.tokens[at], record, self.config, stage, model=model)
            if helper.is_replay_forward_action(self.config, stage, model=model):
                api.set_model_router_replay_action(model, action.REPLAY_BACKWARD)
            return output, mean_loss

        # Megatron's interleaved schedule without a backward sends other activations here, over gloo.
        losses = self._run(forward_step, forward_only or (mode == "record" and self.setup.vp == 1))
        grads = {
            f"{at}.{name}": one
            for at, chunk in enumerate(self.chunks)
            for name, one in gradients(chunk).items()
        }
        api.RouterReplay.clear_global_indices()
        api.RouterReplay.clear_global_router_replay_action()
        return losses, grads, self._whole(record) if mode == "record" else None

    def _run(self, forward_step: Callable[..., Any], forward_only: bool) -> list[torch.Tensor]:
        from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

        several = len(self.chunks) > 1
        told = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(self.packed) for _ in self.chunks] if several else iter(self.packed),
            model=self.chunks if several else self.chunks[0],
            num_microbatches=len(self.packed),
            seq_length=self.packed[0].shape[1] * (self.setup.tp if self.config.sequence_parallel else 1)
            if self.setup.pp == 1
            else self.packed[0].shape[1],
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return [one["loss"] for one in told]

    def _whole(self, record: list[Any]) -> list[Any]:
        """The routes of each micro-batch, jagged [n, layers with experts, k], as verl puts them together."""
        if self.setup.vp > 1:
            size = self.config.microbatch_group_size_per_vp_stage
            local = self.api.reorder_and_merge_vpp_layers(record, len(self.packed), self.setup.vp, size)
        else:
            local = self.api.merge_nested_router_maps(record)
        parts = list(self.api.pp_gather(local, self.config).unbind())
        width = len(LENGTHS)
        return [jagged(parts[at * width : (at + 1) * width]) for at in range(len(self.packed))]


def shifted(routes: list[Any], surplus: int) -> list[Any]:
    """Other experts for every row, without the last `surplus` rows of a sequence."""
    return [
        jagged([(one[: len(one) - surplus] + 1) % 8 for one in micro_batch.unbind()])
        for micro_batch in routes
    ]


def same(left: Any, right: Any) -> bool:
    return all(map(torch.equal, left[0], right[0])) and same_gradients(left[1], right[1])


def prove(setup: SetUp) -> None:
    """What verl records we record; what it replays we replay, to the bit; own routes change nothing."""
    found = []
    with parallel(**setup.groups):
        for api in (verl(), ours):
            engine = Engine(setup, api)
            plain = engine.step(None)
            _, _, record = engine.step("record")
            if api is ours:  # verl's replays padding as expert 0, k times
                assert same(plain, engine.step("R2", record)), "own routes changed something"
            other = shifted(record, surplus=1)
            with Together(dispatched(chunk) for chunk in engine.chunks) as maps:
                foreign = engine.step("R3", other)
            found.append((record, foreign, maps))
            if api is ours:
                routers = [name for name in foreign[1] if name.endswith("router.weight")]
                assert routers
                assert all(foreign[1][name].abs().sum() > 0 for name in routers)
                assert not same(plain, foreign), "foreign routes changed nothing"
                held = ours.RouterReplay.router_instances
                assert all(not one.replay_backward_list for one in held)
            del engine
    (their_record, their_foreign, their_maps), (record, foreign, maps) = found
    layers = sum(setup.changes.get("moe_layer_freq", [1] * setup.changes.get("num_layers", 2)))
    for theirs, one in zip(their_record, record, strict=True):
        assert one.unbind()[0].shape == (LENGTHS[0], layers, 2)
        assert torch.equal(theirs.values(), one.values()), "another record than verl's"
        assert theirs.dtype == one.dtype
    assert same(their_foreign, foreign), "another step than verl's"
    for theirs, here in zip(their_maps, maps, strict=True):
        for layer, each in theirs.items():
            assert all(map(torch.equal, each, here[layer])), f"layer {layer}: other experts than verl's"


__all__ = ["Engine", "config", "jagged", "ours", "prove", "verl"]
