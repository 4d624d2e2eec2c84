"""Routes over HTTP: every endpoint that carries them, and clients that hang up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import moetape
from moetape.engines import vllm as engine
from vllm_fixtures import random_tokens
from vllm_models import Reference

GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def server(plain_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(plain_model)]
    command += ["--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "256"]
    command += ["--enforce-eager", "--enable-return-routed-experts", "--enable-scale-out"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            _wait_until_it_answers(client, process, log)
            yield client
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Killed, it leaves nothing of moetape behind.
    assert not [name for name in os.listdir("/dev/shm") if "moetape" in name]


def _wait_until_it_answers(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 400
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.5)
    pytest.fail(f"the server did not answer: {log.read_text()[-4000:]}")


def post(server: httpx.Client, path: str, **body: Any) -> Any:
    answer = server.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(reference: Reference, tokens: list[int], text: str, start: int = 0) -> None:
    spec = moetape.RouteSpec.from_config(reference.config)
    reference.check(tokens, engine.routes_of(text, spec, start=start).ids, start)


def test_every_choice_of_a_completion(server: httpx.Client, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(1), 30)
    body = post(server, "/v1/completions", prompt=prompt, n=3, max_tokens=9, return_token_ids=True)
    assert len(body["choices"]) == 3
    for choice in body["choices"]:
        check(plain_reference, prompt + choice["token_ids"], choice["routed_experts"])


# case E01
def test_the_whole_answer_is_read_by_moetape(server: httpx.Client, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(2), 12)
    answer = server.post(
        "/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    )
    spec = moetape.RouteSpec.from_config(plain_reference.config)
    [choice] = moetape.wire.read_answer(answer.text, spec=spec, hop="vllm")
    assert len(choice.routes) == 15
    assert choice.routes.complete


def test_a_chat(server: httpx.Client, plain_reference: Reference) -> None:
    messages = [{"role": "user", "content": "which experts?"}]
    body = post(server, "/v1/chat/completions", messages=messages, max_tokens=9, return_token_ids=True)
    [choice] = body["choices"]
    check(plain_reference, body["prompt_token_ids"] + choice["token_ids"], choice["routed_experts"])


# case E12
def test_a_start_means_the_same_on_every_endpoint(server: httpx.Client, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(3), 25)
    sampling = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, "routed_experts_prompt_start": 20}
    completion = post(server, "/v1/completions", prompt=prompt, return_token_ids=True, **sampling)["choices"][
        0
    ]
    generated = post(server, GENERATE, token_ids=prompt, sampling_params=sampling)["choices"][0]
    assert completion["token_ids"] == generated["token_ids"]
    assert completion["routed_experts"] == generated["routed_experts"]
    check(plain_reference, prompt + generated["token_ids"], generated["routed_experts"], start=20)


# case C20
def test_a_start_behind_the_prompt_is_refused(server: httpx.Client) -> None:
    answer = server.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "routed_experts_prompt_start": 4},
    )
    assert answer.status_code == 400
    assert "routed_experts_prompt_start" in answer.text


# case E10
def test_the_last_chunk_of_a_stream_has_all_rows(server: httpx.Client, plain_reference: Reference) -> None:
    prompt = random_tokens(np.random.default_rng(4), 20)
    request = {
        "token_ids": prompt,
        "sampling_params": {"max_tokens": 8, "ignore_eos": True},
        "stream": True,
        "model": "tiny",
    }
    tokens: list[int] = []
    texts = []
    with server.stream("POST", GENERATE, json=request) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                tokens += choice["token_ids"]
                texts += [choice["routed_experts"]] if choice.get("routed_experts") else []
    assert len(texts) == 1
    assert len(tokens) == 8
    check(plain_reference, prompt + tokens, texts[0])


# case J09
def test_a_request_can_go_without_routes(server: httpx.Client) -> None:
    switch = {"return_routed_experts": 0}
    body = post(server, "/v1/completions", prompt=[5, 6, 7], max_tokens=2, vllm_xargs=switch)
    assert body["choices"][0]["routed_experts"] is None


def test_clients_that_hang_up_leave_the_others_whole(
    server: httpx.Client, plain_reference: Reference
) -> None:
    prompt = random_tokens(np.random.default_rng(5), 60)
    for _ in range(3):
        request = {"model": "tiny", "prompt": prompt, "max_tokens": 150, "stream": True, "ignore_eos": True}
        with server.stream("POST", "/v1/completions", json=request) as answer:
            next(answer.iter_lines())
    body = post(server, "/v1/completions", prompt=prompt, max_tokens=9, return_token_ids=True)
    [choice] = body["choices"]
    check(plain_reference, prompt + choice["token_ids"], choice["routed_experts"])
