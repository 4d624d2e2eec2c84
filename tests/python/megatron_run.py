"""Runs the tests of a module in processes of their own, one a rank, with one version of megatron-core.

    python megatron_run.py MODULES RENDEZVOUS RANK WORLD    # one rank; a line of JSON a test

On the pytest side: `names(MODULE)` are the test functions of a module, which is not imported for that, and
`check(VERSION, WORLD, MODULES, NAME)` raises what failed. The first check runs all tests of its modules.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / ".cache/peers"
VERSIONS = ["0.16.1", "0.19.2"]
TIME_LIMIT_S = 600 if "MOETAPE_TEST_FULL" not in os.environ else 3600


def names(module: str) -> list[str]:
    tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def check(version: str, world: int, modules: tuple[str, ...], name: str) -> None:
    failed = [
        f"rank {rank}: {outcome.get(name, 'never ended:' + outcome['log'])}"
        for rank, outcome in enumerate(outcomes(version, world, modules))
        if outcome.get(name, "missing") is not None
    ]
    assert not failed, "\n".join(failed)


@functools.cache
def outcomes(version: str, world: int, modules: tuple[str, ...]) -> list[dict[str, str | None]]:
    """For each rank {test: None or its traceback}, and the process's own output as "log"."""
    package = PEERS / f"megatron-core-{version}"
    if not package.is_dir():
        raise FileNotFoundError(f"{package} is missing; `make peers` fetches it")
    paths = [str(package), str(HERE), str(HERE.parents[1] / "python")]
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"
    )
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    __file__,
                    ",".join(modules),
                    f"{folder}/rendezvous",
                    str(rank),
                    str(world),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
            for rank in range(world)
        ]
        try:
            logs = [rank.communicate(timeout=TIME_LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    return [_read(log) for log in logs]


def _read(log: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {"log": log[-4000:]}
    for line in log.splitlines():
        if line.startswith('{"test": '):
            told = json.loads(line)
            found[told["test"]] = told["error"]
    return found


def _run(modules: list[str], rendezvous: str, rank: int, world: int) -> None:
    import torch

    import megatron_cpu

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    megatron_cpu.stand_in_for_cuda()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    for module, name in [(one, name) for one in modules for name in names(one)]:
        error = None
        try:
            getattr(importlib.import_module(module), name)()
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"test": name, "error": error}), flush=True)
    torch.distributed.barrier()


if __name__ == "__main__":
    _run(sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
