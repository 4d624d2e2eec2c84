"""Code that runs on several ranks of vLLM's own groups, over gloo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def run_ranks(what: str, num_ranks: int) -> None:
    """Run `module:function` once on each rank, in a process of its own; all must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, __file__, what, str(rank), str(num_ranks), f"file://{folder}/meet"]
            for rank in range(num_ranks)
        ]
        ranks = [
            subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in commands
        ]
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, output


def gathers_shards(rank: int) -> None:
    import pytest
    import torch

    from test_vllm_capturer import Both, dp_metadata, make_config

    with pytest.MonkeyPatch.context() as patch:
        both = Both(patch, make_config(tp_size=2))
        for num_tokens in (8, 7, 1):
            num_rows = (num_tokens + 1) // 2
            both.metadata = dp_metadata([num_tokens])
            # What this rank's router sees: its shard, where the last one is padded.
            both.forward(num_rows, seed=10 * num_tokens + rank)
            both.assert_same(num_tokens)
    assert torch.distributed.get_world_size() == 2


def _main() -> None:
    what, rank, num_ranks, meet = sys.argv[1:]
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    module, function = what.split(":")
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(int(num_ranks), int(rank), meet, int(rank), "gloo")
        initialize_model_parallel(tensor_model_parallel_size=int(num_ranks))
        getattr(__import__(module), function)(int(rank))


if __name__ == "__main__":
    _main()
