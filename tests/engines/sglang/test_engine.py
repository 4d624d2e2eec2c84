"""Real SGLang engines on a CPU: with moetape in the place of SGLang's capturer, and against it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import moetape as mt
from harness import drive, result
from scenarios import CALLS, SCENARIOS, SMOKE

COMPLETE = [name for name in SCENARIOS if name not in ("broken", "pipeline parallel")]
OWN = [name for name in COMPLETE if name != "tensor parallel"]
AGAINST_OWN = [name for name in OWN if name != "not chunked"]
CORRECT = [pytest.param(name, marks=pytest.mark.smoke) if name == SMOKE else name for name in COMPLETE]


class Runs:
    """What came back, scenario by scenario."""

    def __init__(self, folder: Path, logs: dict[str, str]) -> None:
        self.folder, self.logs = folder, logs

    def calls(self, mode: str, name: str) -> list[tuple[str, Any]]:
        found = result(self.folder, mode, name)
        assert found is not None, f"{mode}, {name}: the engine died\n{self.logs[mode][-4000:]}"
        return [(call, answers) for call, answers in found["calls"]]

    def answers(self, name: str, call: str) -> Any:
        return next(answers for found, answers in self.calls("moetape", name) if found == call)


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    """All scenarios of both capturers; where only smoke tests run, one engine."""
    folder = tmp_path_factory.mktemp("runs")
    is_smoke = request.config.getoption("markexpr") == "smoke"
    modes = {"moetape": [SMOKE]} if is_smoke else {"moetape": list(SCENARIOS), "own": OWN}
    return Runs(folder, drive(model, folder, modes))


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """What transformers' own forward of a sequence gives its experts: tokens -> [rows, layers, k]."""
    torch.set_num_threads(1)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    known: dict[tuple[int, ...], np.ndarray] = {}

    def routes(tokens: list[int]) -> np.ndarray:
        if tuple(tokens) not in known:
            with torch.no_grad(), mt.engines.transformers.record(reference) as recording:
                reference(torch.tensor([tokens]), use_cache=False)
            known[tuple(tokens)] = recording.routes[0].ids
        return known[tuple(tokens)]

    return routes


def ids_of(answer: dict[str, Any], spec: mt.RouteSpec, start: int = 0) -> np.ndarray:
    text = answer["routed_experts"]
    if answer.get("routed_experts_dtype") == "tape":
        return mt.Tape.from_bytes(base64.b64decode(text))[0].ids
    dtype = answer.get("routed_experts_dtype", "int32")
    return mt.decode(text, "sglang", spec=spec, start=start, dtype=dtype).ids


@pytest.fixture(scope="module")
def spec(model: Path) -> mt.RouteSpec:
    return mt.RouteSpec.from_config(model)


@pytest.mark.parametrize("name", CORRECT)
def test_every_row_is_that_of_transformers(
    runs: Runs, reference: Any, spec: mt.RouteSpec, name: str
) -> None:  # cases B16 C02 C19 C20
    num_rows = 0
    for call_name, answers in runs.calls("moetape", name):
        call = CALLS[call_name]
        if isinstance(answers, dict) or call.stream or "n" in call.params:
            continue
        for index, answer in enumerate(answers):
            wanted = call.wanted[index] if isinstance(call.wanted, list) else call.wanted
            start = call.start[index] if isinstance(call.start, list) else call.start
            if start > len(call.prompts[index]) or not wanted:
                assert answer.get("routed_experts") is None
                continue
            tokens = call.prompts[index] + answer["output_ids"]
            end = len(tokens) if "last row" in call_name and not answer["output_ids"] else len(tokens) - 1
            ids = ids_of(answer, spec, start)
            expected = reference(tokens)[start:end]
            assert ids.shape == expected.shape, (call_name, index)
            assert np.array_equal(np.sort(ids), np.sort(expected)), (call_name, index)
            assert "routed_experts_missing" not in answer
            num_rows += len(ids)
    assert num_rows > 300


@pytest.mark.parametrize("name", AGAINST_OWN)
def test_answers_are_sglangs_own_byte_for_byte(runs: Runs, name: str) -> None:  # cases J05 E12
    own = runs.calls("own", name)
    ours = [(call, answers) for call, answers in runs.calls("moetape", name) if not CALLS[call].ours]
    assert [call for call, _ in ours] == [call for call, _ in own]
    for (call, answers), (_, expected) in zip(ours, own, strict=True):
        if len(CALLS[call].arguments()) > 1 or "retraction" in name:  # which of them a step had is chance
            answers, expected = unscheduled(answers), unscheduled(expected)
        assert answers == expected, call


def unscheduled(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what depends on the requests that a step had together."""
    scheduled = ("cached_tokens", "num_retractions")
    return [{name: answer[name] for name in answer if name not in scheduled} for answer in answers]


def test_requests_were_retracted_and_lost_nothing(runs: Runs) -> None:  # cases B05 B15
    retractions = [
        answer["num_retractions"] for answer in runs.answers("retraction in a small cache", "many")
    ]
    assert sum(retractions) > 0, retractions


def test_prompts_longer_than_the_batches_of_sglangs_buffer(runs: Runs) -> None:  # cases A04 K03
    assert result(runs.folder, "own", "not chunked") is None
    assert all(answer["routed_experts"] for answer in runs.answers("not chunked", "many"))


@pytest.mark.smoke
def test_a_stream_has_all_routes_in_its_last_chunk(runs: Runs, spec: mt.RouteSpec) -> None:  # case E10
    *chunks, last = runs.answers("default", "stream")
    assert len(chunks) > 5
    assert not any(chunk.get("routed_experts") for chunk in chunks)
    assert len(ids_of(last, spec)) == last["prompt_tokens"] + last["completion_tokens"] - 1


@pytest.mark.smoke
def test_every_choice_has_its_own_routes(runs: Runs, reference: Any, spec: mt.RouteSpec) -> None:
    answers = runs.answers("default", "several choices")
    assert len(answers) == 6
    for index, answer in enumerate(answers):
        tokens = CALLS["several choices"].prompts[index // 3] + answer["output_ids"]
        assert np.array_equal(np.sort(ids_of(answer, spec)), np.sort(reference(tokens)[:-1]))
    assert len({answer["routed_experts"] for answer in answers}) > 2


@pytest.mark.smoke
def test_a_prefill_gives_its_last_row_on_request(runs: Runs) -> None:  # case C01
    without = runs.answers("default", "prefill only")
    with_it = runs.answers("default", "last row")
    for short, long, prompt in zip(without, with_it, (5, 20), strict=True):
        row_bytes = 4 * 4 * 4
        assert len(base64.b64decode(short["routed_experts"])) == (prompt - 1) * row_bytes
        assert len(base64.b64decode(long["routed_experts"])) == prompt * row_bytes
        assert base64.b64decode(long["routed_experts"]).startswith(base64.b64decode(short["routed_experts"]))


@pytest.mark.smoke
def test_a_narrow_answer_says_so_and_is_a_quarter(runs: Runs) -> None:
    wide, narrow = runs.answers("default", "batch")[3], runs.answers("default", "narrow")[3]
    assert "routed_experts_dtype" not in wide
    assert narrow["routed_experts_dtype"] == "uint8"
    rows = narrow["prompt_tokens"] + narrow["completion_tokens"] - 1
    assert len(base64.b64decode(narrow["routed_experts"])) == rows * 4 * 4


@pytest.mark.smoke
def test_a_tape_carries_tokens_and_positions(runs: Runs, spec: mt.RouteSpec) -> None:
    for prompt, answer in zip(CALLS["tape"].prompts, runs.answers("default", "tape"), strict=True):
        routes = mt.Tape.from_bytes(base64.b64decode(answer["routed_experts"]))[0]
        fed = (prompt + answer["output_ids"])[:-1]
        assert (routes.start, routes.end) == (10, len(fed))
        assert routes.tokens.tolist() == fed[10:]
        assert routes.spec.fingerprint == spec.fingerprint
        assert routes.complete


@pytest.mark.smoke
def test_a_wrong_option_is_refused_by_name(runs: Runs) -> None:
    assert "int8" in runs.answers("default", "wrong option")["error"]


def test_a_failing_recorder_fails_no_request_and_the_answer_says_why(runs: Runs) -> None:  # cases H03 H04
    broken, whole = runs.answers("broken", "batch"), runs.answers("default", "batch")
    for answer, expected in zip(broken, whole, strict=True):
        assert answer["output_ids"] == expected["output_ids"]
        ids = np.frombuffer(base64.b64decode(answer["routed_experts"]), np.int32)
        assert (ids == -1).all()
        rows = answer["prompt_tokens"] + answer["completion_tokens"] - 1
        assert sum(answer["routed_experts_missing"].values()) == rows
        assert "2" in answer["routed_experts_error"]


def test_stages_of_a_pipeline_say_which_layers_they_have_not(runs: Runs) -> None:  # case H04
    stages, whole = runs.answers("pipeline parallel", "batch"), runs.answers("default", "batch")
    for answer, expected in zip(stages, whole, strict=True):
        assert answer["output_ids"] == expected["output_ids"]
        assert (np.frombuffer(base64.b64decode(answer["routed_experts"]), np.int32) == -1).all()
        rows = answer["prompt_tokens"] + answer["completion_tokens"] - 1
        assert sum(answer["routed_experts_missing"].values()) == rows
        assert "layers [2, 3]" in answer["routed_experts_error"]
