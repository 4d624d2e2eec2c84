"""The package as a whole: what importing it imports, its names, its stubs, its errors."""

from __future__ import annotations

import builtins
import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moetape as mt
from moetape import errors

ROOT = Path(__file__).resolve().parents[2]
KINDS = [getattr(errors, name) for name in errors.__all__ if name != "Error"]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_an_engine() -> None:
    # case J02
    code = (
        "import sys, moetape\n"
        "frameworks = {'torch', 'transformers', 'vllm', 'sglang', 'jax', 'megatron', 'verl', 'ray'}\n"
        "print(sorted(frameworks & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


def test_recording_numpy_arrays_imports_no_torch() -> None:
    code = (
        "import sys, numpy as np, moetape as mt\n"
        "store = mt.Store(mt.RouteSpec(layers=[0], top_k=1, num_experts=4), num_slots=4)\n"
        "rec = mt.Recorder(store, max_rows=4)\n"
        "rec.capture(0, np.array([[3]])); rec.commit([0])\n"
        "assert store.read([0]).ids.tolist() == [[[3]]]\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code) == "False"


def test_sub_packages_load_when_first_used() -> None:
    code = (
        "import sys, moetape\n"
        "assert 'moetape.models' not in sys.modules and 'models' in dir(moetape)\n"
        "print(moetape.models.__name__)"
    )
    assert run_python(code) == "moetape.models"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mt.nothing


def test_all_public_names_exist_and_are_sorted() -> None:
    for module in (mt, mt.layout, mt.replay, errors):
        assert all(hasattr(module, name) for name in module.__all__)
        assert len(set(module.__all__)) == len(module.__all__)
    assert set(errors.__all__) <= set(mt.__all__)


def test_committed_stubs_are_those_of_the_extension() -> None:
    script = ROOT / "python/bindings/make_stubs.py"
    module_spec = importlib.util.spec_from_file_location("make_stubs", script)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    committed = (ROOT / "python/moetape/_moetape.pyi").read_text(encoding="utf-8")
    assert module.stubs() == committed, f"write them anew: python {script.relative_to(ROOT)}"


def test_package_says_that_it_is_typed() -> None:
    assert (ROOT / "python/moetape/py.typed").is_file()


def test_there_is_one_exception_for_every_code_of_the_library() -> None:
    header = (ROOT / "include/moetape/error.h").read_text(encoding="utf-8")
    enum = re.search(r"enum class ErrorCode[^{]*{(.*?)};", header, re.DOTALL)
    assert enum is not None
    names = re.findall(r"^\s*k(\w+),", enum.group(1), re.MULTILINE)
    codes = ["_".join(re.findall("[A-Z][a-z]*", name)).lower() for name in names]
    assert sorted(kind.code for kind in KINDS) == sorted(codes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_exceptions_are_errors_of_moetape(kind: type[mt.Error]) -> None:
    assert issubclass(kind, mt.Error)
    assert kind.__module__ == "moetape"
    assert getattr(mt, kind.__name__) is kind
    again = pickle.loads(pickle.dumps(kind("slots: expected 3, got 4")))
    assert type(again) is kind
    assert str(again) == "slots: expected 3, got 4"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (mt.InvalidArgumentError, ValueError),
        (mt.WrongTypeError, TypeError),
        (mt.WrongShapeError, ValueError),
        (mt.OutOfRangeError, IndexError),
        (mt.MemoryLimitError, MemoryError),
        (mt.OutOfMemoryError, MemoryError),
        (mt.CorruptDataError, ValueError),
        (mt.TimeoutError, builtins.TimeoutError),
        (mt.ClosedError, ValueError),
        (mt.IoError, OSError),
        (mt.DeviceFailedError, RuntimeError),
    ],
)
def test_exceptions_are_what_python_calls_the_notion(kind: type[mt.Error], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_classes_have_public_names() -> None:
    assert mt.Store.__module__ == "moetape"
    assert mt.layout.Layout.__module__ == "moetape.layout"
    assert mt.replay.Plan.__module__ == "moetape.replay"
