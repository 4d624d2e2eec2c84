"""Several workers: tensor-parallel ranks see the same routes, stages of a pipeline each their own layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_models import Reference
from vllm_stories import Story


@pytest.fixture(autouse=True)
def _one_core_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")


def test_two_tensor_parallel_ranks(plain_model: Path, plain_reference: Reference) -> None:
    story = Story(
        plain_model,
        plain_reference,
        seed=21,
        enforce_eager=True,
        tensor_parallel_size=2,
        block_size=32,
        num_gpu_blocks_override=20,
        max_num_batched_tokens=64,
    )
    story.run(25)
    assert story.seen["rows"] > 0


def test_two_stages_of_a_pipeline(wide_model: Path, wide_reference: Reference) -> None:
    """Layers 1 and 2 are the first stage's, 4 and 5 the second's; 0 and 3 are dense."""
    story = Story(
        wide_model,
        wide_reference,
        seed=22,
        pipeline_parallel_size=2,
        block_size=32,
        num_gpu_blocks_override=20,
        max_num_batched_tokens=64,
    )
    story.run(25)
    assert story.seen["rows"] > 0
