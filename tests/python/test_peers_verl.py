"""Row ids go through the code by which verl cuts its tokens and routes; RowIds says the same."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from peer_code import peer_code
from peer_ranks import SEEDS, Rank


@pytest.fixture(params=SEEDS)
def rank(request: pytest.FixtureRequest) -> Rank:
    return Rank.random(request.param)


def verl(rank: Rank) -> SimpleNamespace:
    logger: Any = logging.getLogger("verl")
    logger.warning_once = logger.debug
    return peer_code(
        "verl-0.9.1",
        "verl/models/mcore/util.py",
        "preprocess_packed_seqs",
        "preprocess_thd_engine",
        "preprocess_bshd",
        "preprocess_bshd_engine",
        "preprocess_for_mindspeed",
        "_compute_fp8_thd_align_size",
        torch=torch,
        math=math,
        mpu=rank.ranks,
        PackedSeqParams=SimpleNamespace,
        _packed_seq_params_supports=lambda name: True,
        _PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE=True,
        is_npu_available=False,
        logger=logger,
    )


def jagged(rank: Rank) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rank.ids, layout=torch.jagged)


@pytest.mark.parametrize("fp8", [False, True])
def test_verl_zigzag(rank: Rank, fp8: bool) -> None:
    # case I10, I05
    cut = verl(rank)
    theirs, _, _ = cut.preprocess_thd_engine(jagged(rank), use_fp8_padding=fp8)
    multiple = rank.multiple
    rows = rank.rows.pad_each(math.lcm(16, multiple) if fp8 else multiple)
    rows = rank.zigzag(rows.pad(multiple * 128) if fp8 else rows)
    assert np.array_equal(rows.ids, np.asarray(theirs[0]))
    packed, _ = cut.preprocess_packed_seqs(*rank.left_padded(), use_fp8_padding=fp8)
    assert np.array_equal(rows.ids, np.asarray(packed[0]))
    mine = rank.sequence_parallel(rows)
    assert np.array_equal(mine.ids, rank.sequence_parallel_of_megatron(theirs[0]))


@pytest.mark.parametrize(("min_local_rows", "bucket"), [(None, None), (96, None), (None, 100)])
def test_verl_contiguous_on_the_whole_batch(
    rank: Rank, min_local_rows: int | None, bucket: int | None
) -> None:
    theirs, _, _ = verl(rank).preprocess_thd_engine(
        jagged(rank), cp_layout="contiguous", min_local_rows=min_local_rows, pad_to_length_bucket=bucket
    )
    rows = rank.rows.pad_each(rank.tp.size() * rank.cp.size())
    if min_local_rows is not None:
        rows = rows.pad_to(max(rows.num_rows, rank.cp.size() * min_local_rows))
    if bucket is not None:
        rows = rows.pad(math.lcm(bucket, rank.cp.size()))
    assert np.array_equal(rank.contiguous(rows).ids, np.asarray(theirs[0]))


def test_verl_padded_batches(rank: Rank) -> None:
    cut = verl(rank)
    theirs, _, _ = cut.preprocess_bshd_engine(jagged(rank))
    multiple = rank.multiple
    rows = rank.zigzag(rank.rows.pad_each_to(rank.padded_length(multiple)))
    assert np.array_equal(rows.ids, np.asarray(theirs.reshape(-1)))
    # megatron-core's hidden states are [sequence, batch, hidden].
    mine = rank.sequence_parallel(rows.sequence_major())
    hidden = theirs.transpose(0, 1).contiguous()
    assert np.array_equal(mine.ids, rank.sequence_parallel_of_megatron(hidden).reshape(-1))
    if rank.cp.size() == 1:
        ids, mask = rank.left_padded()
        theirs, _, _ = cut.preprocess_bshd(ids, mask, torch.zeros_like(ids), sequence_parallel=True)
        assert np.array_equal(rows.ids, np.asarray(theirs.reshape(-1)))


def test_verl_ulysses(rank: Rank) -> None:
    # case I20
    cut = peer_code(
        "verl-0.9.1",
        "verl/utils/ulysses.py",
        "ulysses_pad",
        "ulysses_pad_and_slice_inputs",
        "slice_input_tensor",
        torch=torch,
        dist=SimpleNamespace(get_world_size=lambda group: group.size()),
        get_ulysses_sequence_parallel_group=lambda: rank.cp,
        get_ulysses_sequence_parallel_rank=rank.cp.rank,
    )
    theirs, _, _ = cut.ulysses_pad_and_slice_inputs(torch.cat(rank.ids)[None], sp_size=rank.cp.size())
    assert np.array_equal(rank.contiguous(rank.rows.pad(rank.cp.size())).ids, np.asarray(theirs[0]))
