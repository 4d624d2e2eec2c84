"""The recipes of docs/trainers.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs/trainers.md"


def recipe(trainer: str) -> SimpleNamespace:
    """What the block of a trainer defines; what it imports must be there."""
    space: dict[str, Any] = {}
    exec(compile(source(trainer), f"{PAGE}: {trainer}", "exec"), space)
    return SimpleNamespace(**space)


def source(trainer: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(trainer)}\n.*?^```python\n(.*?)^```", text, re.M | re.S)
    assert found, f"no recipe for {trainer}"
    return found[1]


def shares(row: str) -> list[str]:
    """The cells of a row of the table of rows that get another token's routes."""
    [line] = [one for one in PAGE.read_text(encoding="utf-8").splitlines() if one.startswith(f"| {row}")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]
