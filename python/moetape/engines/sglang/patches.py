"""Which functions of SGLang the plug-in replaces or relies on, and in which versions.

versions.json has, for each version that was tried, functions and classes by their dotted names with the first
16 hexadecimal digits of the SHA-256 of their source. A version that is not in the table, or a source that
differs from it (a fork), is refused before anything is changed. tools/sglang_sources adds a version.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from moetape import UnsupportedError

Hook = Callable[..., Any]

TABLE = Path(__file__).with_name("versions.json")


def sources() -> Mapping[str, Mapping[str, str]]:
    """The table: version, then function, then hash."""
    table: Mapping[str, Mapping[str, str]] = json.loads(TABLE.read_text())
    return table


def installed_version() -> str:
    """SGLang's."""
    return importlib.metadata.version("sglang")


def source_hash(function: Any) -> str:
    """What the table holds of a function."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]


def apply(hooks: Mapping[str, Hook], watched: Iterable[str] = (), version: str | None = None) -> None:
    """Replace each named function f by one that calls hook(f, *args, **kwargs); all of them or none.

    watched: names of what is left as it is and has to be what was tried.

    Raises UnsupportedError naming the version, or the functions whose source is another one.
    """
    version = version or installed_version()
    table = sources()
    known = table.get(version)
    if known is None:
        raise UnsupportedError(
            f"SGLang {version}: moetape's plug-in was tried with {', '.join(table)} and changes nothing; "
            "SGLang's own capturer serves"
        )
    places = {name: place(name) for name in (*hooks, *watched)}
    changed = [name for name, (_, _, f) in places.items() if f is None or source_hash(f) != known.get(name)]
    if changed:
        raise UnsupportedError(
            f"SGLang {version}: expected the source that moetape's plug-in was tried with, got another "
            f"one of {', '.join(changed)}; the plug-in changes nothing and SGLang's own capturer serves"
        )
    for name, hook in hooks.items():
        owner, attribute, function = places[name]
        is_static = isinstance(vars(owner)[attribute], staticmethod)
        wrapped = _wrapped(function, hook)
        setattr(owner, attribute, staticmethod(wrapped) if is_static else wrapped)


def place(name: str) -> tuple[Any, str, Any]:
    """Where a function stands: its class or module, its name there, the function itself (None: not there)."""
    owner_name, _, attribute = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
    except (ImportError, AttributeError):
        return None, attribute, None
    found = vars(owner).get(attribute)
    return owner, attribute, getattr(found, "__func__", found)


def _wrapped(function: Any, hook: Hook) -> Any:
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def generator(*args: Any, **kwargs: Any) -> Any:
            async with contextlib.aclosing(hook(function, *args, **kwargs)) as items:
                async for item in items:
                    yield item

        return generator

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return hook(function, *args, **kwargs)

    return call
