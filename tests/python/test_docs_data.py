"""The examples of docs/data.md run as they stand, one after another."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_docs import code_blocks

pytest.importorskip("pyarrow")


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, example in enumerate(code_blocks("docs/data.md", "python")):
        exec(compile(example, f"docs/data.md, example {number}", "exec"), names)
    assert "one" in names
