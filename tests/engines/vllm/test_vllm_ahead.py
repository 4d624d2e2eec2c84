"""Steps that are scheduled before the tokens of the step before are known (asynchronous scheduling).

vLLM's CPU platform switches that off; its scheduler, engine core and runner do it all the same when told to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.platforms.cpu import CpuPlatform

from vllm_models import Reference, make_checkpoint
from vllm_stories import Story


@pytest.fixture(autouse=True)
def _scheduled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an engine's configuration is made in this process, its processes do as they are told."""
    original = CpuPlatform.check_and_update_config

    def update(config: Any) -> None:
        original(config)
        config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(update))


def test_preemption_chunks_and_hits(plain_model: Path, plain_reference: Reference) -> None:
    story = Story(
        plain_model,
        plain_reference,
        seed=31,
        enforce_eager=True,
        block_size=32,
        num_gpu_blocks_override=13,
        max_num_batched_tokens=48,
        max_num_seqs=8,
    )
    story.run(50)
    assert story.seen["scheduled ahead"] > 0
    assert story.seen["preempted"] > 0
    assert story.seen["cached"] > 0
    assert story.seen["abort"] > 0


def test_drafts_of_another_model_that_has_experts_too(
    plain_model: Path, plain_reference: Reference, tmp_path: Path
) -> None:
    draft = make_checkpoint(tmp_path, "plain", num_hidden_layers=2, num_experts=8, num_experts_per_tok=2)
    story = Story(
        plain_model,
        plain_reference,
        seed=32,
        enforce_eager=True,
        speculative_config={"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3},
        block_size=32,
        num_gpu_blocks_override=40,
    )
    story.run(25)
    assert story.seen["scheduled ahead"] > 0
    assert story.seen["rejected"] > 0
