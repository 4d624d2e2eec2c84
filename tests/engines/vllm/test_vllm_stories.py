"""Random requests under mixed schedules: no row is missing and none is wrong."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_models import Reference, make_checkpoint
from vllm_stories import Story

TIMES = 10 if os.environ.get("MOETAPE_TEST_FULL") else 1


def check_ties(reference: Reference) -> None:
    assert reference.num_ties <= 0.001 * reference.num_rows


# case B15
# case C12
def test_preemption_chunks_and_hits_in_a_tiny_cache(plain_model: Path, plain_reference: Reference) -> None:
    story = Story(
        plain_model,
        plain_reference,
        seed=11,
        enforce_eager=True,
        block_size=32,
        num_gpu_blocks_override=13,
        max_num_batched_tokens=48,
        max_num_seqs=8,
    )
    story.run(100 * TIMES)
    assert story.seen["preempted"] > 0
    assert story.seen["cached"] > 0
    assert story.seen["abort"] > 0
    assert story.seen["without routes"] > 0
    check_ties(plain_reference)


def test_without_a_prefix_cache(wide_model: Path, wide_reference: Reference) -> None:
    story = Story(
        wide_model,
        wide_reference,
        seed=12,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_batched_tokens=64,
        max_num_seqs=16,
    )
    story.run(50 * TIMES, at_once=16)
    assert story.seen["cached"] == 0
    check_ties(wide_reference)


def test_in_compiled_forwards(plain_model: Path, plain_reference: Reference) -> None:
    story = Story(plain_model, plain_reference, seed=13, block_size=32, num_gpu_blocks_override=40)
    story.run(50 * TIMES)
    assert story.seen["rows"] > 0
    check_ties(plain_reference)


def test_layers_that_look_back_a_little_beside_those_that_see_all(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "sliding")
    reference = Reference(model)
    story = Story(
        model,
        reference,
        seed=15,
        enforce_eager=True,
        block_size=32,
        num_gpu_blocks_override=30,
        max_num_batched_tokens=64,
    )
    story.run(25 * TIMES)
    assert story.seen["cached"] > 0
    assert story.seen["preempted"] > 0
    check_ties(reference)


def test_drafts_that_are_rejected_leave_no_rows(plain_model: Path, plain_reference: Reference) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    story = Story(
        plain_model,
        plain_reference,
        seed=14,
        enforce_eager=True,
        speculative_config=drafts,
        block_size=32,
        num_gpu_blocks_override=40,
    )
    story.run(25 * TIMES)
    assert story.seen["rows"] > 0
    assert story.seen["rejected"] > 0
    check_ties(plain_reference)
