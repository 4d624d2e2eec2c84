"""Fixtures of the SGLang tests, which run in an environment of their own (make test-sglang)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small random Qwen3-MoE in float32, with a tokenizer of bytes."""
    from tiny_model import write

    folder = tmp_path_factory.mktemp("model")
    write(folder)
    return folder
