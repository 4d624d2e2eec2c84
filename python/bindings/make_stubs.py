"""Writes python/moetape/_moetape.pyi from the built extension: make_stubs.py [FILE]."""

import re
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

import moetape
from moetape import _moetape

DEFAULT = Path(moetape.__file__).parent / "_moetape.pyi"

# What the generator cannot know.
_REPLACEMENTS = {
    "class TimeoutError(Error, TimeoutError):": "class TimeoutError(Error, builtins.TimeoutError):",
    "from collections.abc import ": "import builtins\nfrom collections.abc import ",
    "__hash__: None = None": "__hash__: ClassVar[None]  # type: ignore[assignment]",
    "from typing import Any": "from typing import Any, ClassVar",
    "REASONS: tuple = ...": "REASONS: tuple[str, ...]",
    "DIALECTS: tuple = ...": "DIALECTS: tuple[str, ...]",
}


def stubs() -> str:
    """The text of the stubs, with everything where the extension defines it."""
    public_modules = {kind: kind.__module__ for kind in vars(_moetape).values() if isinstance(kind, type)}
    try:
        for kind in public_modules:
            kind.__module__ = _moetape.__name__
        generator = StubGen(_moetape, quiet=True)
        generator.put(_moetape)
        text = generator.get()
    finally:
        for kind, module in public_modules.items():
            kind.__module__ = module
    for old, new in _REPLACEMENTS.items():
        if old not in text:
            raise RuntimeError(f"expected {old!r} in the stubs")
        text = text.replace(old, new)
    return re.sub(r"(?<=def )\w+\(.*\)(?= ->)", lambda match: _without_none(match.group()), text)


def _without_none(signature: str) -> str:
    """Arguments without the None that all accept, in order to refuse it with an error that names them."""
    return re.sub(r" \| None(?= \| None|, | = (?!None)|\)$)", "", signature)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT).write_text(stubs(), encoding="utf-8")
