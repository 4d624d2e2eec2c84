"""Trainer adapters. Importing this package imports no trainer and no torch; naming one loads it."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["transformers"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
