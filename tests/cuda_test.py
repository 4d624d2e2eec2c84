"""The kernels, where there is nvcc: they compile for every architecture, and the compiler spills nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin:/opt/cuda/bin")
ARCHITECTURES = ("80", "90", "100")
NUM_KERNELS = 7  # commit for three kinds of lanes, capture and poison for two


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
def test_kernels_spill_nothing(tmp_path: Path) -> None:
    architectures = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    command = [NVCC, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xptxas=-v", *architectures]
    command += ["-Iinclude", "-Isrc", "-c", "src/record/cuda/kernels.cu", "-o", str(tmp_path / "kernels.o")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", result.stderr
    )
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", result.stderr)]
    assert len(spills) == len(registers) == NUM_KERNELS * len(ARCHITECTURES), result.stderr
    assert set(spills) == {("0", "0", "0")}, result.stderr
    assert max(registers) <= 80, result.stderr  # three blocks of 256 threads a multiprocessor
