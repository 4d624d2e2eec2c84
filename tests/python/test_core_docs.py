"""The examples of docs/python.md and docs/wire.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("page", "made"), [("python.md", "plan"), ("wire.md", "choice")])
def test_the_examples_of_the_page_run(page: str, made: str) -> None:
    examples = re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(examples) == 1
    names: dict[str, object] = {}
    exec(compile(examples[0], page, "exec"), names)
    assert made in names
