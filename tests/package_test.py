"""The library as others get it: installed and found by CMake, and as a wheel in an empty environment."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"


def run(*command, **options) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_installed_library_is_found_and_runs(tmp_path):
    prefix, build = tmp_path / "prefix", tmp_path / "build"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    run(
        *["cmake", "-G", "Ninja", "-S", ROOT / "tests/package", "-B", build],
        *["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}"],
    )
    run("cmake", "--build", build)
    assert run(build / "consumer").splitlines()[-1] == "consumer: ok"
    assert run(prefix / "bin/moetape", "--version").startswith("moetape ")
    assert not list(prefix.rglob("*_test*")), "tests are installed"


def test_wheel_works_without_torch_and_cuda(tmp_path):
    wheels, environment = tmp_path / "wheels", tmp_path / "venv"
    # A build folder as deep as the other one, and the same compiler by the same name, share ccache's results.
    werror = "ON" if "CI" in os.environ else "OFF"
    settings = [
        f"--config-settings=build-dir={ROOT}/build/wheel",
        f"--config-settings=cmake.define.MOETAPE_WERROR={werror}",
    ]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, *settings, "-w", wheels, ROOT, env=os.environ | {"CC": "cc", "CXX": "c++"})
    (wheel,) = wheels.glob("moetape-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.endswith(".so")]) == 1, names
    assert "moetape/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"moetape"}, names

    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CUDA"))}
    run(python, "-m", "pip", "install", "--quiet", wheel, env=clean, cwd=tmp_path)
    installed = run(python, "-m", "pip", "list", "--format=freeze", env=clean, cwd=tmp_path)
    assert "torch" not in installed
    assert run(environment / "bin/moetape", "--version", env=clean).startswith("moetape ")
    script = ROOT / "tests/package/consumer.py"
    assert run(python, script, env=clean, cwd=tmp_path).splitlines()[-1] == "consumer: ok"


def test_extension_shows_nothing_but_its_entry():
    extensions = list((ROOT / "python/moetape").glob("*.so"))
    assert extensions, "python/moetape has no extension; run make python"
    for extension in extensions:
        symbols = run("nm", "--dynamic", "--defined-only", "--extern-only", extension).splitlines()
        names = {line.split()[-1] for line in symbols}
        assert {name for name in names if not name.startswith("PyInit_")} == set()
