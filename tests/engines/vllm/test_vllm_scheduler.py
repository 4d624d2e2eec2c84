"""The scheduler's connector alone: every row is given once, whatever the scheduler does in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.distributed.aux_output_connector.connector import AuxRequestOutput

import moetape
from moetape.engines import vllm as engine
from moetape.engines.vllm.scheduler import SchedulerConnector

SPEC = moetape.RouteSpec(layers=[0, 1], top_k=1, num_experts=200)


class Request:
    """Rows of position p hold p, so a row that stands in the wrong place is seen."""

    def __init__(self, connector: SchedulerConnector, num_prompt: int, start: int = 0, **extra: Any) -> None:
        self.request_id = "r"
        self.num_prompt_tokens = self.num_tokens = num_prompt
        self.num_output_tokens = 0
        self.block_hashes: list[bytes] = []
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=start, extra_args=extra or None)
        self.finished = self.resumable = False
        self.given: list[np.ndarray] = []
        self._connector = connector

    def is_finished(self) -> bool:
        return self.finished

    def owed(self) -> int | None:
        step = SimpleNamespace(num_scheduled_tokens={"r": 1})
        return self._connector.build_connector_meta(step, {"r": self}).requests.get("r")

    def sample(self, num_new: int, sent: tuple[int, int] | None) -> None:
        """`num_new` tokens are accepted; the worker sent rows [first, end)."""
        self.num_tokens += num_new
        self.num_output_tokens += num_new
        output = {}
        if sent is not None:
            rows = np.arange(*sent, dtype=np.uint8)[:, None, None].repeat(2, axis=1)
            output["r"] = AuxRequestOutput(sent[0], rows)
        given = self._connector.take_output(self, output)
        if given is not None:
            self.given.append(given)

    def rows(self) -> list[int]:
        return np.concatenate(self.given)[:, 0, 0].tolist()


@pytest.fixture(params=[False, True], ids=["local", "connector"])
def connector(request: pytest.FixtureRequest) -> SchedulerConnector:
    return SchedulerConnector(SPEC, request.param)


def test_prompt_then_row_by_row(connector: SchedulerConnector) -> None:
    request = Request(connector, 5)
    assert request.owed() == 0
    request.sample(1, (0, 5))
    assert request.owed() == 5
    request.sample(1, (5, 6))
    assert request.rows() == [0, 1, 2, 3, 4, 5]


def test_a_start_within_the_prompt_or_at_its_end(connector: SchedulerConnector) -> None:
    request = Request(connector, 5, start=5)
    assert request.owed() == 5
    request.sample(1, (5, 5))
    request.sample(1, (5, 6))
    assert request.rows() == [5]


def test_rows_of_rejected_drafts_are_not_given(connector: SchedulerConnector) -> None:
    request = Request(connector, 3)
    request.sample(1, (0, 3))
    request.sample(2, (3, 7))  # three drafts, of which one was accepted
    request.sample(1, (5, 6))
    assert request.rows() == [0, 1, 2, 3, 4, 5]


def test_a_worker_that_lags_behind_sends_rows_again(connector: SchedulerConnector) -> None:
    request = Request(connector, 3)
    owed = request.owed()  # scheduled ahead: the next step is told before this one's token is known
    request.sample(1, (0, 3))
    assert owed == 0
    request.sample(1, (owed, 4))
    assert request.rows() == [0, 1, 2, 3]


# case B05
def test_a_preempted_request_keeps_what_it_was_given(connector: SchedulerConnector) -> None:
    request = Request(connector, 3)
    request.sample(1, (0, 3))
    connector.request_finished(request)  # so the scheduler tells of a preemption
    assert request.owed() == 3
    request.sample(1, (3, 4))
    assert request.rows() == [0, 1, 2, 3]


def test_another_request_of_the_same_name_begins_anew(connector: SchedulerConnector) -> None:
    first = Request(connector, 3)
    first.sample(1, (0, 3))
    first.finished = True
    connector.request_finished(first)
    assert Request(connector, 3).owed() == 0


@pytest.mark.parametrize(
    ("sent", "rows"),
    [
        (None, [-7] * 4),
        ((2, 4), [-7, -7, 2, 3]),
        ((0, 3), [0, 1, 2, -7]),
        ((1, 3), [-7, 1, 2, -7]),
        ((6, 9), [-7] * 4),
    ],
)
def test_rows_that_did_not_come_are_lost_and_not_shifted(
    connector: SchedulerConnector, sent: tuple[int, int] | None, rows: list[int]
) -> None:
    assert moetape.REASONS[7] == "lost"
    request = Request(connector, 4)
    request.sample(1, sent)
    assert request.rows() == rows
    assert engine.missing_rows(request.given[0]) == {"lost": rows.count(-7)}


def test_no_output_of_the_worker_fails_nothing(connector: SchedulerConnector) -> None:
    request = Request(connector, 4)
    request.num_tokens += 1
    assert engine.missing_rows(connector.take_output(request, None)) == {"lost": 4}


def test_a_session_whose_hashes_change_stops_nothing(connector: SchedulerConnector) -> None:
    session = Request(connector, 5)
    session.resumable = True
    session.block_hashes = [b"1", b"2"]
    assert session.owed() == 0
    session.sample(1, (0, 5))
    session.block_hashes = [b"1"]  # its last token is taken back, and more are fed
    session.num_tokens = session.num_prompt_tokens = 8
    assert session.owed() == 5
    session.sample(1, (5, 8))
    session.finished, session.resumable = True, False
    connector.request_finished(session)
    assert session.rows() == [0, 1, 2, 3, 4, 5, 6, 7]


# case J09
@pytest.mark.parametrize("no", [False, 0, "0", "false", "False"])
def test_a_request_without_routes_is_not_read(connector: SchedulerConnector, no: Any) -> None:
    request = Request(connector, 4, return_routed_experts=no)
    assert request.owed() is None
    request.sample(1, None)
    assert request.given == []
