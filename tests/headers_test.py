"""Each public header compiles alone, twice in one file, without a warning, with both compilers."""

import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parent.parent / "include"
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.h*"))
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]


@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
@pytest.mark.parametrize("header", HEADERS)
def test_header_compiles_alone(header, compiler):
    source = f'#include "{header}"\n#include "{header}"\n'
    command = [compiler, *FLAGS, f"-I{INCLUDE}", "-x", "c++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
