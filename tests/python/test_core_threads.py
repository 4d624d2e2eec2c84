"""The GIL: capture keeps it, long calls let other threads run, and a lane is used by one thread at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import moetape as mt

# 4 MiB of rows: above the size from which calls release the GIL.
SPEC = mt.RouteSpec(range(64), top_k=8, num_experts=256)
NUM_ROWS = 8192


@pytest.fixture(scope="module")
def filled() -> tuple[mt.Store, mt.Recorder, mt.Routes]:
    ids = np.broadcast_to(np.arange(8, dtype=np.int32), (NUM_ROWS, 64, 8))
    store = mt.Store(SPEC, num_slots=NUM_ROWS)
    rec = mt.Recorder(store, max_rows=NUM_ROWS)
    rec.capture_all(ids, order="tlk")
    rec.commit(np.arange(NUM_ROWS))
    return store, rec, store.read(np.arange(NUM_ROWS))


@pytest.fixture
def nobody_yields() -> Iterator[None]:
    """Threads change places only where one releases the GIL of its own accord."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(interval)


def other_thread_runs_during(call: Callable[[], object], tries: int) -> bool:
    """Whether a thread that waits for the GIL gets it in one of some calls."""
    ran = False

    def run() -> None:
        nonlocal ran
        started.wait()
        ran = True

    started = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    started.set()
    for _ in range(tries):
        call()
        if ran:
            break
    seen = ran
    thread.join()
    return seen


def long_calls(store: mt.Store, routes: mt.Routes) -> dict[str, Callable[[], object]]:
    slots = np.arange(NUM_ROWS)
    text = mt.encode(routes, "sglang")
    plan = mt.replay.Plan.from_row_ids(mt.replay.row_ids(0, slots))
    return {
        "read": lambda: store.read(slots),
        "encode": lambda: mt.encode(routes, "sglang"),
        "encode rows": lambda: mt.encode(store.rows(slots), "vllm"),
        "decode": lambda: mt.decode(text, "sglang", spec=SPEC),
        "apply": lambda: plan.apply([routes]),
    }


@pytest.mark.parametrize("name", ["read", "encode", "encode rows", "decode", "apply"])
@pytest.mark.usefixtures("nobody_yields")
def test_long_calls_let_other_threads_run(filled: tuple[mt.Store, mt.Recorder, mt.Routes], name: str) -> None:
    store, _, routes = filled
    assert other_thread_runs_during(long_calls(store, routes)[name], tries=10_000)


@pytest.mark.usefixtures("nobody_yields")
def test_long_commits_let_other_threads_run(filled: tuple[mt.Store, mt.Recorder, mt.Routes]) -> None:
    _, rec, routes = filled
    slots = np.arange(NUM_ROWS)

    def step() -> None:
        rec.begin()
        for column in range(64):
            rec.capture(column, routes.ids[:, column])
        rec.commit(slots)

    assert other_thread_runs_during(step, tries=1_000)


@pytest.mark.usefixtures("nobody_yields")
def test_capture_keeps_the_gil(filled: tuple[mt.Store, mt.Recorder, mt.Routes]) -> None:
    _, rec, routes = filled
    ids = routes.ids[:, 0].astype(np.int64)

    def step() -> None:
        rec.begin()
        for column in range(64):
            rec.capture(column, ids)

    assert not other_thread_runs_during(step, tries=10)


def test_many_threads_read_while_one_records(filled: tuple[mt.Store, mt.Recorder, mt.Routes]) -> None:
    store, rec, routes = filled
    stop = threading.Event()
    failures: list[str] = []

    def read() -> None:
        while not stop.is_set():
            part = store.read(np.arange(0, NUM_ROWS, 2))
            expected = routes.ids[: len(part)]
            if not np.array_equal(part.ids[part.valid], expected[part.valid]):
                failures.append("a reader saw a mixture")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        rec.begin()
        rec.capture_all(routes.ids, order="tlk")
        rec.commit(np.arange(NUM_ROWS))
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_a_lane_is_used_by_one_thread_at_a_time(
    filled: tuple[mt.Store, mt.Recorder, mt.Routes],
) -> None:
    _, rec, routes = filled
    slots = np.arange(NUM_ROWS)
    refused: list[str] = []
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            try:
                rec.capture(0, routes.ids[:1, 0], offset=NUM_ROWS - 1)
            except mt.InvalidArgumentError as error:
                refused.append(str(error))
            except mt.AlreadyCapturedError:
                pass

    thread = threading.Thread(target=disturb)
    thread.start()
    for _ in range(20_000):
        rec.begin()
        try:
            rec.capture_all(routes.ids, order="tlk")
            rec.commit(slots)
        except mt.Error:
            pass
        if refused:
            break
    stop.set()
    thread.join()
    assert refused[0] == "lane: expected one call at a time, got a second beside another thread's"


def test_closing_waits_for_readers(filled: tuple[mt.Store, mt.Recorder, mt.Routes]) -> None:
    _, _, routes = filled
    for _ in range(10):
        store = mt.Store(SPEC, num_slots=NUM_ROWS)
        store.write(np.arange(NUM_ROWS), routes)
        outcomes: list[bool] = []

        def read(store: mt.Store = store, outcomes: list[bool] = outcomes) -> None:
            try:
                while True:
                    outcomes.append(store.read(np.arange(NUM_ROWS)) == routes)
            except mt.ClosedError:
                pass

        thread = threading.Thread(target=read)
        thread.start()
        store.close()
        thread.join()
        assert all(outcomes)
