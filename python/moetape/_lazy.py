"""Sub-packages that are loaded when they are first named."""

import importlib
from collections.abc import Callable, Collection
from types import ModuleType


def loader(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose sub-packages of these names are loaded when first named."""

    def load(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
