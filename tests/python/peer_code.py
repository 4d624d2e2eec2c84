"""Functions of other projects, run from their own files: what our results are held against.

The packages of tests/peers.txt lie in .cache/peers (`make peers`); none is imported. A function is compiled
alone, with the globals that it gets here: stand-ins for its imports, such as a rank of a parallel group.
"""

from __future__ import annotations
import __future__

import ast
import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PEERS = Path(__file__).resolve().parents[2] / ".cache/peers"


def peer_file(package: str, path: str) -> Path:
    """A file of a package, "verl-0.9.1"."""
    file = PEERS / package / path
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; `make peers` fetches it")
    return file


def peer_code(package: str, path: str, *names: str, **imports: Any) -> SimpleNamespace:
    """Define functions, classes, constants and methods ("Class.method") of a module, and nothing else of it.

    `imports` are the names that they find besides each other.
    """
    file = peer_file(package, path)
    found = [_find(_statements(file), name.split(".")) for name in names]
    missing = [name for name, node in zip(names, found, strict=True) if node is None]
    if missing:
        raise AttributeError(f"{file} has no {', '.join(missing)}")
    module = ast.Module([node for node in found if node is not None], [])
    space = dict(imports)
    flags = __future__.annotations.compiler_flag  # annotations name what is not imported
    exec(compile(module, str(file), "exec", flags, dont_inherit=True), space)
    return SimpleNamespace(**{name.split(".")[-1]: space[name.split(".")[-1]] for name in names})


@functools.cache
def _statements(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8"), str(file)).body


def _find(body: list[ast.stmt], path: list[str]) -> ast.stmt | None:
    for node in body:
        if path[0] not in _names(node):
            continue
        if len(path) > 1 and isinstance(node, ast.ClassDef):
            return _find(node.body, path[1:])
        return node
    return None


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def stub_modules(monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]) -> None:
    """Make `import a.b.c as x` and `from a.b.c import x` in a function find these."""
    for name, module in modules.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
        for depth in range(1, len(parts)):
            child = sys.modules[".".join(parts[: depth + 1])]
            monkeypatch.setattr(sys.modules[".".join(parts[:depth])], parts[depth], child, raising=False)


class Group:
    """One rank of a parallel group, as the projects ask for it."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


def megatron_ranks(*, cp: Group, tp: Group, pp: Group | None = None) -> SimpleNamespace:
    """megatron.core.parallel_state on one rank, as far as it is asked."""
    pp = pp or Group(1, 0)
    return SimpleNamespace(
        get_context_parallel_world_size=cp.size,
        get_context_parallel_rank=cp.rank,
        get_tensor_model_parallel_world_size=tp.size,
        get_tensor_model_parallel_rank=tp.rank,
        get_pipeline_model_parallel_rank=pp.rank,
        get_pipeline_model_parallel_world_size=pp.size,
    )
