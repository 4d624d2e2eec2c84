"""SGLang's HTTP server with moetape in it, against the same server without."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import moetape as mt
from harness import Server

PROMPT = "the quick brown fox jumps over"
SAMPLING = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, "return_routed_experts": True}
COMPLETION = {"model": "tiny", "prompt": PROMPT, **SAMPLING}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], **SAMPLING}
GENERATE = {
    "text": PROMPT,
    "sampling_params": {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True},
    "return_routed_experts": True,
}
LONG = {**GENERATE, "sampling_params": {**GENERATE["sampling_params"], "max_new_tokens": 900}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/generate", GENERATE),
    "generate two": ("/generate", {**GENERATE, "text": [PROMPT, "slow"]}),
    "generate stream": ("/generate", {**GENERATE, "stream": True}),
    "completion": ("/v1/completions", COMPLETION),
    "completion from 5": ("/v1/completions", {**COMPLETION, "routed_experts_start_len": 5}),
    "completion stream": ("/v1/completions", {**COMPLETION, "stream": True}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat from 5": ("/v1/chat/completions", {**CHAT, "routed_experts_start_len": 5}),
    "chat stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "not asked": ("/v1/completions", {**COMPLETION, "return_routed_experts": False}),
}
WARM = {"n": 3, "temperature": 1.0, "seed": 4}
TAPE = {"custom_params": {"moetape": {"form": "tape"}}}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion n": ("/v1/completions", {**COMPLETION, **WARM}),
    "completion n stream": ("/v1/completions", {**COMPLETION, **WARM, "stream": True}),
    "completion prompts": ("/v1/completions", {**COMPLETION, "prompt": [PROMPT, "slow"]}),
    "chat n": ("/v1/chat/completions", {**CHAT, **WARM}),
    "chat n stream": ("/v1/chat/completions", {**CHAT, **WARM, "stream": True}),
    "completion tape": ("/v1/completions", {**COMPLETION, **TAPE}),
    "chat tape stream": ("/v1/chat/completions", {**CHAT, **TAPE, "stream": True}),
    "wrong option": ("/v1/completions", {**COMPLETION, "custom_params": {"moetape": {"form": "int8"}}}),
}
UPDATES = {7: False, 8: True}  # new weights by their version: whether the cache of the older ones is flushed
VOLATILE = {"id", "created", "e2e_latency", "response_sent_to_client_ts", "metadata", "cached_tokens"}


@pytest.fixture(scope="module")
def answers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Mode, then request: (status, text)."""
    folder = tmp_path_factory.mktemp("servers")
    servers = {mode: Server(mode, model, folder / f"{mode}.log") for mode in ("own", "moetape")}
    try:
        answers = {}
        for mode, server in servers.items():
            server.wait()
            requests = REQUESTS if mode == "own" else {**REQUESTS, **OURS}
            answers[mode] = {name: server.post(*request) for name, request in requests.items()}
        server = servers["moetape"]
        answers["moetape"]["aborted"] = (200, server.aborted("/generate", LONG))
        for version, flush in UPDATES.items():
            update = {"model_path": str(model), "weight_version": str(version), "flush_cache": flush}
            status, text = server.post("/update_weights_from_disk", update)
            assert status == 200, text
            answers["moetape"][f"version {version}"] = server.post("/v1/completions", {**COMPLETION, **TAPE})
        yield answers
    finally:
        for server in servers.values():
            server.stop()


def events(text: str) -> list[Any]:
    """What a stream of server-sent events holds, or the one answer."""
    if not text.startswith("data: "):
        return [json.loads(text)]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in VOLATILE}
    return [stable(item) for item in value] if isinstance(value, list) else value


def routed(text: str) -> dict[str, Any]:
    """Where the answer has its routes: meta_info or sglext, of a stream its last one."""
    found = [
        place
        for event in events(text)
        for place in (event.get("meta_info"), event.get("sglext"))
        if place and place.get("routed_experts")
    ]
    assert found, text
    return found[-1]


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_sglangs_own(answers: dict[str, Any], name: str) -> None:  # cases E10 E12
    (status, text), (own_status, own_text) = answers["moetape"][name], answers["own"][name]
    assert status == own_status == 200, text
    ours, own = stable(events(text)), stable(events(own_text))
    if "stream" not in name:
        assert ours == own
    else:  # chunks come as the machine has time for them
        assert routed(text) == routed(own_text) or name == "generate stream"
        assert routed(text)["routed_experts"] == routed(own_text)["routed_experts"]
        assert ours[-1].keys() == own[-1].keys()


def test_one_request_has_the_same_routes_on_every_endpoint(answers: dict[str, Any]) -> None:  # case E12
    texts = {
        routed(answers["moetape"][name][1])["routed_experts"]
        for name in ("generate", "generate stream", "completion", "completion stream")
    }
    assert len(texts) == 1
    assert (
        len({routed(answers["moetape"][name][1])["routed_experts"] for name in ("chat", "chat stream")}) == 1
    )


@pytest.mark.parametrize("name", ["completion n", "chat n", "completion n stream", "chat n stream"])
def test_every_choice_has_its_own_routes(answers: dict[str, Any], model: Path, name: str) -> None:
    status, text = answers["moetape"][name]
    assert status == 200, text
    said = routed(text)
    choices = [choice["routed_experts"] for choice in said["routed_experts_choices"]]
    assert len(choices) == 3
    assert said["routed_experts"] == choices[0]
    assert len(set(choices)) > 1
    spec = mt.RouteSpec.from_config(model)
    rows = {len(mt.decode(choice, "sglang", spec=spec)) for choice in choices}
    assert len(rows) == 1


def test_every_prompt_has_its_own_routes(answers: dict[str, Any]) -> None:
    said = routed(answers["moetape"]["completion prompts"][1])
    first, second = (choice["routed_experts"] for choice in said["routed_experts_choices"])
    assert first == routed(answers["moetape"]["completion"][1])["routed_experts"]
    assert len(second) < len(first)


@pytest.mark.parametrize("name", ["completion tape", "chat tape stream"])
def test_a_tape_comes_over_http(answers: dict[str, Any], model: Path, name: str) -> None:
    said = routed(answers["moetape"][name][1])
    assert said["routed_experts_dtype"] == "tape"
    spec = mt.RouteSpec.from_config(model)
    tape = mt.decode(said["routed_experts"], "tape-base64", spec=spec)
    plain = "completion" if "completion" in name else "chat"
    wide = mt.decode(routed(answers["moetape"][plain][1])["routed_experts"], "sglang", spec=spec)
    assert np.array_equal(tape.ids, wide.ids)
    assert tape.tokens is not None


def test_a_wrong_option_is_a_bad_request(answers: dict[str, Any]) -> None:
    status, text = answers["moetape"]["wrong option"]
    assert status == 400
    assert "int8" in text


def test_an_aborted_request_keeps_the_rows_of_what_was_computed(answers: dict[str, Any], model: Path) -> None:
    text = answers["moetape"]["aborted"][1]
    said, whole = routed(text), routed(answers["moetape"]["generate"][1])["routed_experts"]
    assert said["finish_reason"]["type"] == "abort"
    assert 0 < said["completion_tokens"] < 900
    assert "routed_experts_missing" not in said
    routes = mt.decode(said["routed_experts"], "sglang", spec=mt.RouteSpec.from_config(model))
    assert len(routes) == said["prompt_tokens"] + said["completion_tokens"] - 1
    shorter = mt.decode(whole, "sglang", spec=routes.spec)  # the same prompt, greedily sampled
    rows = min(len(shorter), len(routes))
    assert np.array_equal(shorter.ids[:rows], routes.ids[:rows])


def test_rows_say_which_weights_routed_them(answers: dict[str, Any], model: Path) -> None:
    """What a cache of older weights holds keeps their version; a flushed cache holds nothing."""
    spec = mt.RouteSpec.from_config(model)
    texts = [routed(answers["moetape"][f"version {version}"][1])["routed_experts"] for version in UPDATES]
    kept, flushed = (mt.decode(text, "tape-base64", spec=spec) for text in texts)
    assert kept.complete
    assert flushed.complete
    (_, _, oldest), *_, (first, end, newest) = kept.versions
    assert (oldest, newest, end) == (0, 7, len(kept))
    assert first < len(kept)
    assert flushed.versions == [(0, len(flushed), 8)]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_server_that_is_ended_leaves_nothing_behind(
    model: Path, tmp_path: Path, by: signal.Signals
) -> None:
    """No process, and no shared memory but a file of SGLang's own, which it leaves on its own too."""
    server = Server("moetape", model, tmp_path / "log").wait()
    try:
        status, text = server.post("/generate", GENERATE)
        assert status == 200, text
        processes = server.processes()
        assert len(processes) > 2
        shared = {
            Path(region.path)
            for each in processes
            for region in each.memory_maps()
            if "/dev/shm/" in region.path
        }
        for each in processes if by == signal.SIGKILL else processes[:1]:
            each.send_signal(by)
        server.process.wait(timeout=60)
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive
        left = [path for path in shared if path.exists()]
        assert all(path.name.startswith("sglang_loads_") for path in left), left
        for path in left:
            path.unlink()
    finally:
        server.stop()
