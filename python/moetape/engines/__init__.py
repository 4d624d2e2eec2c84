"""Inference engines: one sub-package per engine, loaded when it is first named."""

import importlib
from types import ModuleType

_ENGINES = ("transformers",)


def __getattr__(name: str) -> ModuleType:
    if name in _ENGINES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
