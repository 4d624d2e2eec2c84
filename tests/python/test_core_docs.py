"""The example of docs/python.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"


def test_the_examples_of_the_page_run() -> None:
    examples = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(examples) == 1
    names: dict[str, object] = {}
    exec(compile(examples[0], str(PAGE), "exec"), names)
    assert "plan" in names
