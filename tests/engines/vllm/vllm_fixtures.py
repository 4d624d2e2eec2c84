"""Checkpoints, references and engines that tests share; an engine of a module ends with it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_models import VOCABULARY, Reference, make_checkpoint

__all__ = ["in_process", "plain_model", "plain_reference", "random_tokens", "wide_model", "wide_reference"]


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain"), "plain")


@pytest.fixture(scope="session")
def plain_reference(plain_model: Path) -> Reference:
    return Reference(plain_model)


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("wide"), "wide")


@pytest.fixture(scope="session")
def wide_reference(wide_model: Path) -> Reference:
    return Reference(wide_model)


@pytest.fixture(scope="module")
def in_process() -> Iterator[Callable[..., Any]]:
    """Starts engines in this very process, one after the other."""
    from vllm import LLM
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

        def start(model: Path, **options: Any) -> Any:
            gc.collect()
            cleanup_dist_env_and_memory()
            settings = dict(
                dtype="float32", enforce_eager=True, max_model_len=256, enable_return_routed_experts=True
            )
            return LLM(str(model), **{**settings, **options})

        yield start
        gc.collect()
        cleanup_dist_env_and_memory()


def random_tokens(random: np.random.Generator, length: int) -> list[int]:
    """A prompt without special tokens."""
    return random.integers(3, VOCABULARY, length).tolist()
