"""Row ids go through the code by which megatron-core cuts; RowIds and pipeline stages say the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.replay import RowIds, pipeline_chunks, pipeline_layers
from peer_code import peer_code, stub_modules
from peer_ranks import SEEDS, Rank


@pytest.fixture(params=SEEDS)
def rank(request: pytest.FixtureRequest) -> Rank:
    return Rank.random(request.param)


def test_megatron_zigzag(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    # case I10
    multiple = 2 * rank.cp.size()
    rows = rank.rows.pad_each_to(rank.padded_length(multiple))
    tokens = torch.from_numpy(rows.ids).reshape(len(rank.lengths), -1)
    older = peer_code(
        "megatron-core-0.16.1",
        "megatron/core/utils.py",
        "get_batch_on_this_cp_rank",
        torch=torch,
        parallel_state=rank.ranks,
    )
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group.size())
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank())
    newer = peer_code(
        "megatron-core-0.19.2",
        "megatron/core/utils.py",
        "get_batch_on_this_cp_rank",
        "_get_batch_on_this_cp_rank_per_sequence_balancing",
        torch=torch,
    )
    for batch in (
        older.get_batch_on_this_cp_rank({"tokens": tokens}),
        newer.get_batch_on_this_cp_rank({"tokens": tokens}, is_hybrid_cp=False, cp_group=rank.cp),
    ):
        assert np.array_equal(rank.zigzag(rows).ids, np.asarray(batch["tokens"].reshape(-1)))


def test_megatron_positions_of_a_rank(rank: Rank) -> None:
    build = peer_code(
        "megatron-core-0.19.2",
        "megatron/core/transformer/experimental_attention_variant/dsa_layout.py",
        "build_zigzag_cp_local_positions",
        torch=torch,
    ).build_zigzag_cp_local_positions
    multiple = 2 * rank.cp.size()
    length = -(-rank.lengths[0] // multiple) * multiple
    index = np.asarray(build(length, rank.cp.size(), rank.cp.rank(), torch.device("cpu")))
    rows = RowIds.from_lengths([length])
    assert rank.zigzag(rows).ids.tolist() == rows.gather(index).ids.tolist()


def pipelines() -> Iterator[dict[str, Any]]:
    """Splits that come out even, of up to 48 layers."""
    for seed in range(60):
        draw = random.Random(seed)
        size, virtual = draw.choice([2, 3, 4]), draw.choice([1, 1, 2, 3])
        each = draw.randint(1, 4) * virtual
        first = draw.choice([None, draw.randint(1, 4) * virtual])
        last = draw.choice([None, draw.randint(1, 4) * virtual])
        if size == 2 and virtual > 1 and first is not None:
            last = None  # megatron-core divides by its zero stages between the two
        num_layers = sum([first or each, each * (size - 2), last or each])
        embedding = loss = False
        if first is None and last is None:
            embedding, loss = draw.random() < 0.5, draw.random() < 0.5
            num_layers -= embedding + loss
        yield {
            "num_layers": num_layers,
            "size": size,
            "virtual_size": virtual,
            "first": first,
            "last": last,
            "embedding": embedding,
            "loss": loss,
        }


@pytest.mark.parametrize("package", ["megatron-core-0.16.1", "megatron-core-0.19.2"])
def test_megatron_pipeline_stages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # case G01, G10
    stages = peer_code(
        package, "megatron/core/pipeline_parallel/utils.py", "is_vp_first_stage", "is_vp_last_stage"
    )
    stub_modules(monkeypatch, {"megatron.core.pipeline_parallel.utils": stages})
    count = peer_code(
        package, "megatron/core/transformer/transformer_block.py", "get_num_layers_to_build", **vars(stages)
    ).get_num_layers_to_build
    offset = peer_code(
        package, "megatron/core/transformer/transformer_layer.py", "get_transformer_layer_offset"
    ).get_transformer_layer_offset
    for split in pipelines():
        check_stages(split, count, offset)


def check_stages(split: dict[str, Any], count: Callable[..., int], offset: Callable[..., int]) -> None:
    virtual = split["virtual_size"]
    config = SimpleNamespace(
        num_layers=split["num_layers"],
        pipeline_model_parallel_size=split["size"],
        pipeline_model_parallel_layout=None,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        num_layers_in_first_pipeline_stage=split["first"],
        num_layers_in_last_pipeline_stage=split["last"],
        account_for_embedding_in_pipeline_split=split["embedding"],
        account_for_loss_in_pipeline_split=split["loss"],
    )
    # Every third layer is dense.
    moe_layers = [layer for layer in range(split["num_layers"]) if layer % 3 or layer == 0]
    spec = mt.RouteSpec(layers=moe_layers, top_k=1, num_experts=2)
    arguments = {key: value for key, value in split.items() if key not in ("num_layers", "size")}
    chunks = pipeline_chunks(split["num_layers"], split["size"], **arguments)
    for rank in range(split["size"]):
        of_rank: list[int] = []
        for stage in range(virtual):
            vp_stage = stage if virtual > 1 else None
            begin = offset(config, vp_stage=vp_stage, pp_rank=rank)
            theirs = range(begin, begin + count(config, vp_stage=vp_stage, pp_rank=rank))
            expected = [layer for layer in theirs if layer in moe_layers]
            assert pipeline_layers(spec, chunks, split["size"], rank, stage) == expected
            of_rank += expected
        assert pipeline_layers(spec, chunks, split["size"], rank) == of_rank
