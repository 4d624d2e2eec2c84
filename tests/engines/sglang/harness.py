"""How the tests start SGLang: its environment, a tiny model, and drivers that run beside each other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from scenarios import ENGINE, SCENARIOS

HERE = Path(__file__).resolve().parent
MODES = ("own", "moetape")


def environment(mode: str) -> dict[str, str]:
    """What SGLang on a CPU runs under; without our plug-in where its own capturer is wanted."""
    import sglang

    models = Path(sglang.__path__[0]) / "srt/models"
    skipped = sorted(path.stem for path in models.glob("*.py") if path.stem not in ("registry", "qwen3_moe"))
    plugins = ["cpu_standin"] + (["moetape", "moetape_breaker"] if mode == "moetape" else [])
    return {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLUGINS": ",".join(plugins),
        "SGLANG_DISABLED_MODEL_ARCHS": ",".join(skipped),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def drive(model: Path, folder: Path, names: dict[str, list[str]]) -> dict[str, str]:
    """Run scenarios of each mode, modes beside each other, into folder/MODE/NAME.json; gives the logs."""
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda mode: _drive(model, folder, mode, names[mode]), names))
    return {mode: (folder / f"{mode}.log").read_text() for mode in names}


def _drive(model: Path, folder: Path, mode: str, names: list[str]) -> None:
    """One process for the scenarios of each environment."""
    (folder / mode).mkdir()
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(SCENARIOS[name].env.items()), []).append(name)
    with (folder / f"{mode}.log").open("w") as log:
        for env, group in groups.items():
            subprocess.run(
                [sys.executable, str(HERE / "drive.py"), mode, str(model), str(folder / mode), *group],
                env={**environment(mode), **dict(env)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def result(folder: Path, mode: str, name: str) -> dict[str, Any] | None:
    path = folder / mode / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


class Server:
    """SGLang's HTTP server, as users start it."""

    def __init__(self, mode: str, model: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        flags = [f"--{name.replace('_', '-')}" for name in ENGINE if ENGINE[name] is True]
        values = [f"--{name.replace('_', '-')}={ENGINE[name]}" for name in ENGINE if ENGINE[name] is not True]
        arguments = [
            f"--model-path={model}",
            "--served-model-name=tiny",
            f"--port={self.port}",
            *values,
            *flags,
        ]
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *arguments],
                env=environment(mode),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> Server:
        """Until it answers."""
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60)
            except OSError:
                time.sleep(1)
            else:
                return self
        raise RuntimeError(self.log.read_text()[-4000:])

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """(status, text)"""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def aborted(self, path: str, body: dict[str, Any]) -> str:
        """The text of a stream that is aborted behind its first event."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps({**body, "stream": True, "rid": "to be aborted"}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            first = answer.readline()
            status, text = self.post("/abort_request", {"rid": "to be aborted"})
            assert status == 200, text
            return (first + answer.read()).decode()

    def processes(self) -> list[psutil.Process]:
        """The server's own and those below it."""
        this = psutil.Process(self.process.pid)
        return [this, *this.children(recursive=True)]

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
