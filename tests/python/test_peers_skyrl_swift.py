"""Row ids go through the code by which skyrl and ms-swift cut; RowIds says the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from moetape.replay import RowIds
from peer_code import peer_code, stub_modules
from peer_ranks import SEEDS, Array, Rank
from peer_skyrl import PACKAGE, ROOM, align_code, layout_code, packed_code


@pytest.fixture(params=SEEDS)
def rank(request: pytest.FixtureRequest) -> Rank:
    return Rank.random(request.param)


SKYRL = ROOM + "distributed/megatron/"


@pytest.fixture
def skyrl(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    stub_modules(monkeypatch, {"megatron.core.parallel_state": rank.ranks})
    align = align_code()
    packed = packed_code()
    layout = layout_code(align)
    batch = peer_code(
        PACKAGE,
        SKYRL + "megatron_utils.py",
        "preprocess_packed_seqs",
        torch=torch,
        mpu=rank.ranks,
        PackedSeqParams=SimpleNamespace,
        **vars(align),
    )
    return SimpleNamespace(**vars(packed), **vars(layout), **vars(batch))


@pytest.mark.parametrize("recipe", [None, "blockwise", "mxfp8"])
def test_skyrl_packed_batches(rank: Rank, skyrl: SimpleNamespace, recipe: str | None) -> None:
    ids, mask = rank.left_padded()
    fp8 = {"fp8_enabled": recipe is not None, "fp8_recipe": recipe}
    tokens, params = skyrl.preprocess_packed_seqs(ids, mask, **fp8)
    padded = np.diff(params.cu_seqlens_q)
    rows = rank.zigzag(rank.rows.pad_each_to(padded))
    assert np.array_equal(rows.ids, np.asarray(tokens[0]))
    if recipe is None:
        assert np.array_equal(padded, np.diff(rank.rows.pad_each(rank.multiple).offsets))
    layout = skyrl.build_token_metadata_layout(mask, "cpu", packed=True, **fp8)
    routes = skyrl.PackedTensor.from_segments(rank.ids)
    theirs = skyrl.align_packed_token_metadata(routes, layout, 0)
    assert np.array_equal(rows.ids, np.asarray(theirs[0]))


def test_skyrl_flattens_padded_batches_batch_first(rank: Rank, skyrl: SimpleNamespace) -> None:
    # megatron-core's routers see row s * B + b: right for one sequence a micro-batch only.
    split = peer_code(
        PACKAGE,
        "skyrl/backends/skyrl_train/utils/replay_utils.py",
        "_split_replay_indices",
        torch=torch,
    )
    _, mask = rank.left_padded()
    layout = skyrl.build_token_metadata_layout(mask, "cpu", packed=False, fp8_enabled=False)
    # Its replay keeps ids in int32: positions will do, 1 + sequence * 1000 + position.
    small = [(ids >> 32) * 1000 + (ids & 0xFFFFFFFF) for ids in rank.ids]
    routes = skyrl.PackedTensor.from_segments([ids[:, None, None] for ids in small])
    aligned = skyrl.align_packed_token_metadata(routes, layout, 0)
    tp, length = rank.tp.size(), aligned.shape[1]
    part = aligned[:, length // tp * rank.tp.rank() : length // tp * (rank.tp.rank() + 1)]
    theirs = np.asarray(split._split_replay_indices(part)[0].reshape(-1))

    def numbers(rows: RowIds) -> Array:
        return (rows.ids >> 32) * 1000 + (rows.ids & 0xFFFFFFFF)

    rows = rank.rows.pad_each_to(rank.padded_length(tp))
    assert np.array_equal(numbers(rows.split_each(tp, rank.tp.rank())), theirs)
    right = numbers(rank.sequence_parallel(rows.sequence_major()))
    assert np.array_equal(right, theirs) == (len(rank.lengths) == 1)


def test_swift_cp(rank: Rank) -> None:
    split = peer_code(
        "mcore-bridge-1.6.5",
        "mcore_bridge/utils/megatron_utils.py",
        "split_cp_inputs",
        torch=torch,
        mpu=rank.ranks,
    ).split_cp_inputs
    rows = rank.rows.pad_each(2 * rank.cp.size())
    cu_seqlens, tokens = torch.from_numpy(rows.offsets), torch.from_numpy(rows.ids)[None]
    assert np.array_equal(rank.zigzag(rows).ids, np.asarray(split(tokens, cu_seqlens, 1)[0]))
    whole = split(tokens, cu_seqlens, 1, cp_partition_mode="contiguous")
    assert np.array_equal(rank.contiguous(rows).ids, np.asarray(whole[0]))
    batch = {"input_ids": tokens, "packed_seq_params": SimpleNamespace(cu_seqlens_q=cu_seqlens)}
    swift = peer_code(
        "ms-swift-4.6.0",
        "swift/megatron/utils/megatron_lm_utils.py",
        "get_batch_on_this_cp_rank",
        mpu=rank.ranks,
        split_cp_inputs=split,
        is_torch_npu_available=lambda: False,
    )
    args = SimpleNamespace(is_multimodal=False, task_type="causal_lm")
    theirs = swift.get_batch_on_this_cp_rank(args, batch)["input_ids"][0]
    assert np.array_equal(rank.zigzag(rows).ids, np.asarray(theirs))


def test_swift_flattens_padded_batches_batch_first(rank: Rank) -> None:
    # megatron-core's routers see row s * B + b: right for one sequence a micro-batch only.
    given: list[torch.Tensor] = []
    router = SimpleNamespace(set_target_indices=given.append)
    swift = peer_code(
        "ms-swift-4.6.0",
        "swift/megatron/utils/router_replay_utils.py",
        "set_router_replay_data",
        torch=torch,
        device_name="cpu",
        get_local_layer_range=lambda config, vp_rank: (0, 1),
        RouterReplay=SimpleNamespace(global_router_replay_instances=[router]),
    )
    rows = rank.rows.pad_each_to(max(rank.lengths) + 1)
    swift.set_router_replay_data(torch.from_numpy(rows.ids).reshape(len(rank.lengths), -1, 1, 1), None)
    assert np.array_equal(rows.ids, np.asarray(given[0].reshape(-1)))
    assert np.array_equal(rows.sequence_major().ids, rows.ids) == (len(rank.lengths) == 1)
