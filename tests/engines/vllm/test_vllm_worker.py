"""The worker's side alone, around a model runner that does as it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sequence import IntermediateTensors

import moetape
from moetape.engines import vllm as engine
from moetape.engines.vllm.capture import _take_eager
from moetape.engines.vllm.worker import KvSpace, RouteRecording

SPEC = moetape.RouteSpec(layers=[1, 2, 4], top_k=2, num_experts=8, num_layers=5)
SIZE = 4


class Runner:
    """Feeds one request of one block, token by token; its routers choose what the test says."""

    def __init__(self, layers: list[int], is_last: bool = True) -> None:
        self.layers, self.is_last = layers, is_last
        self.ids: dict[int, Any] = {}
        self.seen: list[str] = []
        table = SimpleNamespace(
            slot_mapping=SimpleNamespace(gpu=torch.zeros(8, dtype=torch.int64)),
            block_table=SimpleNamespace(np=np.array([[1, 2]], np.int32)),
            block_size=SIZE,
        )
        self.input_batch = SimpleNamespace(
            block_table=[table], req_ids=["r"], num_reqs=1, num_computed_tokens_cpu=np.zeros(1, np.int64)
        )
        self.discard_request_mask = SimpleNamespace(np=np.zeros(1, bool))

    def execute_model(self, scheduled: Any, intermediate: Any = None) -> Any:
        if intermediate is not None:
            self.seen = sorted(intermediate.tensors)
        first, count = int(self.input_batch.num_computed_tokens_cpu[0]), scheduled.total_num_scheduled_tokens
        self.input_batch.block_table[0].slot_mapping.gpu[:count] = SIZE + torch.arange(first, first + count)
        for layer in self.layers:
            if layer in self.ids:
                _take_eager(layer, torch.as_tensor(self.ids[layer]))
        return None if self.is_last else IntermediateTensors({"hidden_states": torch.zeros(count, 2)})

    def sample_tokens(self, grammar: Any = None) -> Any:
        return SimpleNamespace(aux_output_connector_output=None)


def record(runner: Runner, num_before: int = 0, answers: bool = True) -> RouteRecording:
    space = KvSpace(0, SIZE, 4, 1, False) if answers else None
    return RouteRecording(runner, SPEC, runner.layers, num_before, 16, space)


def step(runner: Runner, num_tokens: int, first: int = 0, new: bool = False, **arguments: Any) -> Any:
    """One step of `num_tokens` from position `first`; what the runner gives, and the rows of the request."""
    runner.input_batch.num_computed_tokens_cpu[0] = first
    news = [SimpleNamespace(req_id="r", block_ids=([1, 2],), num_computed_tokens=0)] if new else []
    scheduled = SimpleNamespace(
        total_num_scheduled_tokens=num_tokens,
        num_scheduled_tokens={"r": num_tokens},
        scheduled_new_reqs=news,
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        ),
        finished_req_ids=set(),
        kv_cache_block_copies=None,
        aux_output_connector_metadata=SimpleNamespace(
            generation=0, requests={"r": 0}, block_hashes={}, finished_requests=()
        ),
    )
    output = runner.execute_model(scheduled, **arguments)
    return output, runner.sample_tokens().aux_output_connector_output


def choice(num_rows: int, value: int) -> torch.Tensor:
    return torch.tensor([[value, value + 1]] * num_rows)


def test_rows_lie_beside_the_tokens() -> None:
    runner = Runner([1, 2, 4])
    record(runner)
    runner.ids = {layer: choice(3, layer) for layer in runner.layers}
    _, outputs = step(runner, 3, new=True)
    assert outputs["r"].token_start == 0
    assert outputs["r"].rows[:, :, 0].tolist() == [[0, 1, 2, 0, 4]] * 3


def test_rows_of_padding_are_left_out() -> None:
    runner = Runner([1, 2, 4])
    record(runner)
    runner.ids = {layer: choice(8, layer) for layer in runner.layers}
    _, outputs = step(runner, 3, new=True)
    assert len(outputs["r"].rows) == 3


def test_stages_hand_their_layers_on() -> None:
    stages = [Runner([1], is_last=False), Runner([2], is_last=False), Runner([4])]
    for index, runner in enumerate(stages):
        record(runner, num_before=index, answers=runner.is_last)
        runner.ids = {layer: choice(2, layer) for layer in runner.layers}
    first, _ = step(stages[0], 2)
    second, _ = step(stages[1], 2, intermediate_tensors=first)
    _, outputs = step(stages[2], 2, new=True, intermediate_tensors=second)
    assert stages[1].seen == stages[2].seen == ["hidden_states"]
    assert outputs["r"].rows[:, :, 0].tolist() == [[0, 1, 2, 0, 4]] * 2


def test_a_stage_without_experts_hands_on_what_came() -> None:
    dense, middle, empty = Runner([], is_last=False), Runner([1, 2, 4], is_last=False), Runner([])
    for runner, num_before in ((dense, 0), (middle, 0), (empty, 3)):
        record(runner, num_before, answers=runner.is_last)
        runner.ids = {layer: choice(2, layer) for layer in runner.layers}
    first, _ = step(dense, 2)
    second, _ = step(middle, 2, intermediate_tensors=first)
    _, outputs = step(empty, 2, new=True, intermediate_tensors=second)
    assert outputs["r"].rows[:, :, 0].tolist() == [[0, 1, 2, 0, 4]] * 2


def test_a_stage_that_cannot_hand_on_its_layers_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = Runner([1, 2], is_last=False), Runner([4])
    record(first, answers=False)
    record(last, num_before=2)
    for runner in (first, last):
        runner.ids = {layer: choice(2, layer) for layer in runner.layers}
    with monkeypatch.context() as patch:
        patch.setattr("moetape.engines.vllm.worker.torch.cat", _fail)
        sent, _ = step(first, 2)
    _, outputs = step(last, 2, new=True, intermediate_tensors=sent)
    assert engine.missing_rows(outputs["r"].rows) == {"refused": 2}


# case H04
@pytest.mark.parametrize("lacking", [1, 4])
def test_a_layer_that_did_not_run_makes_the_step_missing(lacking: int) -> None:
    first, last = Runner([1, 2], is_last=False), Runner([4])
    record(first, answers=False)
    record(last, num_before=2)
    for runner in (first, last):
        runner.ids = {layer: choice(2, layer) for layer in runner.layers if layer != lacking}
    sent, _ = step(first, 2)
    _, outputs = step(last, 2, new=True, intermediate_tensors=sent)
    assert engine.missing_rows(outputs["r"].rows) == {"refused": 2}


def test_the_row_of_a_rejected_draft_does_not_stand_in_for_one_that_failed() -> None:
    runner = Runner([1, 2, 4])
    recording = record(runner)
    runner.ids = {layer: choice(3, layer) for layer in runner.layers}
    step(runner, 3, new=True)  # the last of the three was a draft that is rejected
    for fails in ("capture", "commit"):
        calls = {"capture": recording._recorder.capture, "commit": recording._recorder.commit, fails: _fail}
        failing = SimpleNamespace(begin=recording._recorder.begin, **calls)
        good, recording._recorder = recording._recorder, failing
        _, outputs = step(runner, 1, first=2)
        recording._recorder = good
        rows = outputs["r"].rows
        assert rows[:2, 1, 0].tolist() == [1, 1]
        assert (rows[2] < 0).all()


def test_a_log_that_would_fill_up_tells_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "moetape.engines.vllm.worker.logger.error", lambda text, *rest, **more: told.append(text)
    )
    runner = Runner([1, 2, 4])
    record(runner)
    for _ in range(20):
        step(runner, 1, new=True)
    assert len(told) == 5


def _fail(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("broken")
