"""Holds every #include and every Python import against the table of levels in levels.toml."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = tomllib.loads((ROOT / "tests/levels.toml").read_text())

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
CXX_SUFFIXES = {".h", ".hpp", ".cc", ".cu", ".cuh"}
STD_HEADER = re.compile(r"[a-z_]+")  # no library that we use has a header without a dot and a slash


@dataclass(frozen=True)
class Room:
    name: str
    level: int


class CppRooms:
    """Knows the room of each of our files, and of each path that an #include may name."""

    def __init__(self, root: Path):
        self.root = root
        self.rooms = {name: Room(name, row["level"]) for name, row in TABLE["cpp"].items()}
        self.folders = {row["folder"]: self.rooms[name] for name, row in TABLE["cpp"].items()}
        self.headers = {
            header: self.rooms[name]
            for name, row in TABLE["cpp"].items()
            for header in row.get("headers", [])
        }

    def of_file(self, path: Path) -> Room | None:
        place = path.relative_to(self.root)
        if place.is_relative_to("include/moetape"):
            return self.headers.get(place.relative_to("include/moetape").as_posix())
        for parent in place.parents:
            if parent.as_posix() in self.folders:
                return self.folders[parent.as_posix()]
        return None

    def of_include(self, including: Path, target: str) -> Room | None:
        for folder in (self.root / "include", self.root / "src", including.parent):
            if (folder / target).is_file() and (folder / target).is_relative_to(self.root):
                return self.of_file(folder / target)
        return None

    def files(self) -> Iterator[Path]:
        for folder in ("include", "src", "engines", "python/bindings", "report", "cli"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in CXX_SUFFIXES:
                    yield path


def is_allowed(source: Room, target: Room) -> bool:
    return source == target or target.level < source.level


def arrow_fault(place: str, source: Room, target: Room, what: str) -> str:
    return (
        f"{place}: {source.name} (level {source.level}) reaches {what}, which is of {target.name} "
        f"(level {target.level})"
    )


def cpp_faults(root: Path) -> list[str]:
    rooms = CppRooms(root)
    faults = []
    for path in rooms.files():
        place = path.relative_to(root).as_posix()
        is_public = place.startswith("include/")
        source = rooms.of_file(path)
        if source is None:
            faults.append(f"{place}: belongs to no room of levels.toml")
            continue
        for match in INCLUDE.finditer(path.read_text()):
            quoted, angled = match.groups()
            name = quoted or angled
            target = rooms.of_include(path, name)
            if target is not None:
                if not is_allowed(source, target):
                    faults.append(arrow_fault(place, source, target, name))
                if is_public and not name.startswith("moetape/"):
                    faults.append(f"{place}: a public header includes {name}, which is not public")
            elif quoted and not is_outside(quoted):
                faults.append(f'{place}: "{quoted}" is no file of ours; libraries stand in <>')
            elif is_public and not STD_HEADER.fullmatch(name):
                faults.append(f"{place}: a public header includes {name}, not of the standard library")
    return faults


def is_outside(quoted: str) -> bool:
    """Highway's own examples and macros name its headers in quotes."""
    return quoted.startswith("hwy/")


def cmake_faults(root: Path) -> list[str]:
    """The build knows the same rooms in the same order, and links no room to one that is not below it."""
    faults = []
    rooms = CppRooms(root).rooms
    for path in sorted((root / "src").glob("*/CMakeLists.txt")):
        for call in re.finditer(r"moetape_room\(\s*(\w+)([^)]*)\)", path.read_text()):
            depends = re.search(r"\bDEPENDS\b((?:\s+[a-z_0-9]+)+)", call.group(2))
            source = rooms[call.group(1)]
            for name in depends.group(1).split() if depends else []:
                if rooms[name].level >= source.level:
                    place = path.relative_to(root).as_posix()
                    faults.append(arrow_fault(place, source, rooms[name], f"the target of {name}"))
    listed = re.search(r"set\(MOETAPE_ROOMS ([\w\s]+)\)", (root / "CMakeLists.txt").read_text())
    names = listed.group(1).split() if listed else []
    standing = {path.name for path in (root / "src").iterdir() if path.is_dir()}
    if set(names) != standing:
        faults.append(f"CMakeLists.txt: MOETAPE_ROOMS has {sorted(names)}, src has {sorted(standing)}")
    levels = [rooms[name].level for name in names if name in rooms]
    if levels != sorted(levels):
        faults.append(f"CMakeLists.txt: MOETAPE_ROOMS is not in the order of levels: {names}")
    return faults


def python_room(module: str) -> Room | None:
    names = [name for name in TABLE["python"] if module == name or module.startswith(name + ".")]
    return Room(max(names, key=len), TABLE["python"][max(names, key=len)]) if names else None


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of what is imported, wherever the statement stands; `from a import b` gives a.b."""
    yield from imports_of(ast.walk(tree), package)


def imported_when_loaded(tree: ast.AST, package: str) -> Iterator[str]:
    """The same without what stands in functions."""
    nodes = [tree]
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes.extend(ast.iter_child_nodes(node))
    yield from imports_of(nodes, package)


def imports_of(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def python_faults(root: Path) -> list[str]:
    faults = []
    outside = TABLE["python_outside"]
    for path in sorted((root / "python/moetape").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        parts = path.relative_to(root / "python").with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        package = ".".join(parts[:-1])
        source = python_room(module)
        assert source is not None, place
        tree = ast.parse(path.read_text())
        loaded = {name.split(".")[0] for name in imported_when_loaded(tree, package)}
        for name in imported_modules(tree, package):
            target = python_room(name)
            top = name.split(".")[0]
            if target is not None:
                if not is_allowed(source, target):
                    faults.append(arrow_fault(place, source, target, name))
            elif (
                source.level <= outside["max_level"]
                and top not in sys.stdlib_module_names
                and top not in outside["allowed"]
                and (top not in outside["optional"] or top in loaded)
            ):
                faults.append(f"{place}: {source.name} (level {source.level}) imports {top} from outside")
    return faults


def test_includes_point_downwards():
    assert cpp_faults(ROOT) == []


def test_build_targets_point_downwards():
    assert cmake_faults(ROOT) == []


def test_imports_point_downwards():
    assert python_faults(ROOT) == []


# The checker itself: one small tree for each kind of fault.


def plant(root: Path, files: dict[str, str]) -> Path:
    known = {
        "include/moetape/error.h": "#include <string>\n",
        "include/moetape/spec.h": '#include "moetape/error.h"\n',
        "src/simd/copy.h": '#include "moetape/error.h"\n',
        "src/store/plane.h": '#include "simd/copy.h"\n#include <hwy/highway.h>\n',
    }
    for name, text in (known | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_checker_accepts_arrows_downwards(tmp_path):
    root = plant(tmp_path, {"src/store/plane.cc": '#include "store/plane.h"\n#include "moetape/spec.h"\n'})
    assert cpp_faults(root) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("src/simd/bad.cc", '#include "store/plane.h"\n', "simd (level 1) reaches store/plane.h"),
        ("src/memory/bad.cc", '  #  include "simd/copy.h"\n', "memory (level 1) reaches simd/copy.h"),
        ("src/memory/bad_test.cc", "#include <moetape/spec.h>\n", "memory (level 1) reaches moetape/spec.h"),
        ("src/attic/bad.cc", "", "belongs to no room"),
        ("src/store/bad.cc", '#include "store/gone.h"\n', '"store/gone.h" is no file of ours'),
        ("include/moetape/unknown.h", "", "belongs to no room"),
        ("include/moetape/store.h", '#include "store/plane.h"\n', "which is not public"),
        ("include/moetape/store.h", "#include <fmt/format.h>\n", "not of the standard library"),
        ("include/moetape/spec.h", '#include "moetape/layout.h"\n', '"moetape/layout.h" is no file of ours'),
        ("python/bindings/bad.cc", '#include "cli/main.h"\n', '"cli/main.h" is no file of ours'),
    ],
)
def test_checker_refuses_includes(tmp_path, file, text, message):
    faults = cpp_faults(plant(tmp_path, {file: text}))
    assert len(faults) == 1
    assert message in faults[0]


@pytest.mark.parametrize(
    ("rooms", "depends", "message"),
    [
        ("simd store", "store", "simd (level 1) reaches the target of store"),
        ("store simd", "", "not in the order of levels"),
        ("simd", "", "MOETAPE_ROOMS has"),
    ],
)
def test_checker_refuses_build_targets(tmp_path, rooms, depends, message):
    call = f"moetape_room(simd SOURCES copy.cc{' DEPENDS ' + depends if depends else ''} PRIVATE hwy)\n"
    root = plant(
        tmp_path, {"src/simd/CMakeLists.txt": call, "CMakeLists.txt": f"set(MOETAPE_ROOMS {rooms})\n"}
    )
    faults = cmake_faults(root)
    assert len(faults) == 1
    assert message in faults[0]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("__init__.py", "import moetape.models", "moetape (level 5) reaches moetape.models"),
        ("__init__.py", "def f():\n    from . import engines", "moetape (level 5) reaches moetape.engines"),
        ("values.py", "from .trainers.verl import x", "moetape (level 5) reaches moetape.trainers.verl.x"),
        ("values.py", "import torch.nn", "imports torch from outside"),
        ("values.py", "def f():\n    import torch", "imports torch from outside"),
        ("values.py", "try:\n    import pyarrow\nexcept ImportError: pass", "imports pyarrow from outside"),
        (
            "models/routers.py",
            "from ..engines import x",
            "moetape.models (level 6) reaches moetape.engines",
        ),
        (
            "engines/vllm.py",
            "from moetape import trainers",
            "moetape.engines (level 7) reaches moetape.trainers",
        ),
    ],
)
def test_checker_refuses_imports(tmp_path, file, text, message):
    faults = python_faults(plant(tmp_path, {f"python/moetape/{file}": text}))
    assert len(faults) == 1
    assert message in faults[0]


def test_checker_accepts_imports_downwards(tmp_path):
    files = {
        "python/moetape/__init__.py": "import numpy as np\nfrom ._core import Store\nfrom . import values\n",
        "python/moetape/models/__init__.py": "import torch\nfrom moetape import Store\nfrom . import x\n",
        "python/moetape/values.py": "def f():\n    import pyarrow.parquet\n",
        "python/moetape/engines/transformers.py": "import transformers\nfrom ..models import routers\n",
    }
    assert python_faults(plant(tmp_path, files)) == []
