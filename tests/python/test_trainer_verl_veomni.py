"""verl's replay in VeOmni's models; VeOmni changes transformers, so it runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer_code import PEERS

pytest.importorskip("torch")
pytest.importorskip("transformers")
HERE = Path(__file__).resolve().parent


def test_verls_replay_in_veomnis_qwen() -> None:
    # case I01, I02, I04, I07, I16, I17, I22
    peer = PEERS / "veomni-0.1.12"
    if not peer.is_dir():
        raise FileNotFoundError(f"{peer} is missing; `make peers` fetches it")
    paths = [str(peer), str(HERE), str(HERE.parents[1] / "python")]
    run = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"),
            str(HERE / "veomni_tests.py"),
        ],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
