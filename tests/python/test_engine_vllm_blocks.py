"""Whose rows a block holds: what vLLM's scheduler sends, step by step, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import moetape
from moetape.engines.vllm.blocks import BlockOwners

SIZE = 2
SPEC = moetape.RouteSpec(layers=[0], top_k=2, num_experts=8)


class Worker:
    """A store of 8 blocks, and steps as the scheduler would send them."""

    def __init__(self, check_hashes: bool) -> None:
        self.store = moetape.Store(SPEC, num_slots=8 * SIZE)
        self.recorder = moetape.Recorder(self.store, max_rows=64)
        self.owners = BlockOwners(self.store, 0, SIZE, 1, check_hashes)

    def step(
        self,
        new: dict[str, tuple[list[int], int]] | None = None,
        grown: dict[str, list[int]] | None = None,
        resumed: dict[str, tuple[list[int], int]] | None = None,
        hashes: dict[str, list[bytes]] | None = None,
        finished: list[str] | None = None,
        generation: int = 0,
        copies: list[tuple[int, int]] | None = None,
        computed: list[int] | None = None,
    ) -> None:
        """One step; `computed` are the blocks whose tokens run in it."""
        grown, resumed, new = grown or {}, resumed or {}, new or {}
        scheduled = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=count)
                for name, (ids, count) in new.items()
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[*grown, *resumed],
                new_block_ids=[*((ids,) for ids in grown.values()), *((ids,) for ids, _ in resumed.values())],
                num_computed_tokens=[0] * len(grown) + [count for _, count in resumed.values()],
                resumed_req_ids=set(resumed),
            ),
            num_scheduled_tokens=dict.fromkeys([*new, *grown, *resumed], 1),
            finished_req_ids=set(finished or []),
            kv_cache_block_copies=[SimpleNamespace(src_block_id=a, dst_block_id=b) for a, b in copies or []],
            aux_output_connector_metadata=SimpleNamespace(
                generation=generation, block_hashes=hashes or {}, finished_requests=tuple(finished or [])
            ),
        )
        self.owners.begin_step(scheduled)
        if computed:
            slots = [block * SIZE + offset for block in computed for offset in range(SIZE)]
            self.recorder.begin()
            self.recorder.capture(0, np.array([[slot % 8, (slot + 1) % 8] for slot in slots]))
            self.recorder.commit(slots)

    def valid(self, *blocks: int) -> list[bool]:
        return [
            bool(self.store.read([block * SIZE + offset for offset in range(SIZE)]).complete)
            for block in blocks
        ]


@pytest.fixture(params=[False, True], ids=["local", "connector"])
def worker(request: Any) -> Worker:
    return Worker(request.param)


def test_a_new_owner_does_not_see_the_old_rows(worker: Worker) -> None:
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"A1", b"A2"]}, computed=[1, 2])
    assert worker.valid(1, 2) == [True, True]
    worker.step(new={"b": ([2, 3], 0)}, finished=["a"])
    assert worker.valid(1, 2, 3) == [True, False, False]


def test_blocks_that_a_request_grows_into_are_new_too(worker: Worker) -> None:
    worker.step(new={"a": ([1], 0)}, computed=[1, 4])
    worker.step(grown={"a": [4]})
    assert worker.valid(1, 4) == [True, False]


# case B16
def test_hits_in_the_prefix_cache_keep_their_rows(worker: Worker) -> None:
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"P1", b"P2"]}, computed=[1, 2])
    worker.step(new={"b": ([1, 2, 3], 2 * SIZE)}, hashes={"b": [b"P1", b"P2", b"B3"]}, computed=[3])
    assert worker.valid(1, 2, 3) == [True, True, True]


def test_a_hit_may_be_on_a_block_of_the_same_step(worker: Worker) -> None:
    worker.step(
        new={"b": ([1, 3], SIZE), "a": ([1, 2], 0)},
        hashes={"b": [b"P1", b"B2"], "a": [b"P1", b"A2"]},
        computed=[1, 2, 3],
    )
    assert worker.valid(1, 2, 3) == [True, True, True]


def test_a_resumed_request_hits_what_it_computed_before(worker: Worker) -> None:
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"P1", b"P2"]}, computed=[1, 2])
    worker.step(finished=["a"])  # so a preemption looks
    worker.step(resumed={"a": ([1, 4], SIZE)}, hashes={"a": [b"P1", b"P2"]})
    assert worker.valid(1, 4) == [True, False]


def test_a_cleared_cache_holds_no_rows(worker: Worker) -> None:
    worker.step(new={"a": ([1], 0)}, hashes={"a": [b"P1"]}, computed=[1])
    worker.step(generation=1)
    assert worker.valid(1) == [False]


def test_a_copy_of_a_block_has_its_rows_as_far_as_it_counts() -> None:
    worker = Worker(check_hashes=False)
    worker.step(new={"a": ([1, 2], 0)}, computed=[1, 2, 5])
    rows = worker.store.read([2 * SIZE]).ids
    worker.step(new={"b": ([1, 5], SIZE + 1)}, copies=[(2, 5)])
    assert worker.valid(1, 2) == [True, True]
    copied = worker.store.read([5 * SIZE, 5 * SIZE + 1])
    assert copied.valid.tolist() == [True, False]
    assert (copied.ids[0] == rows[0]).all()
    assert worker.store.read([2 * SIZE, 5 * SIZE + 1]).valid.tolist() == [True, False]


def test_a_copy_of_a_row_that_is_missing_is_missing() -> None:
    worker = Worker(check_hashes=False)
    worker.step(new={"a": ([1], 0)}, computed=[5])
    worker.step(new={"b": ([5], 1)}, copies=[(1, 5)])
    assert not worker.store.read([5 * SIZE]).complete


def test_a_copy_proves_nothing_where_kv_comes_from_outside() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1], 0)}, computed=[1, 5])
    worker.step(new={"b": ([5], 1)}, copies=[(1, 5)])
    assert not worker.store.read([5 * SIZE, 5 * SIZE + 1]).valid.any()


def test_a_session_that_goes_on_within_a_block_keeps_what_it_has_there(worker: Worker) -> None:
    worker.step(new={"a": ([1, 2], 0)}, computed=[1, 2])  # the last row is of a token that is taken back
    worker.step(new={"a": ([1, 2, 3], SIZE + 1)})
    assert worker.store.read([2 * SIZE, 2 * SIZE + 1, 3 * SIZE]).valid.tolist() == [True, False, False]


def test_a_block_that_is_loaded_in_part_has_no_rows() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1], 0)}, hashes={"a": [b"A1"]}, computed=[1])
    worker.step(new={"b": ([1], 1)}, finished=["a"])
    assert not worker.store.read([SIZE, SIZE + 1]).valid.any()


# case J03
def test_kv_from_outside_has_no_rows() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"A1", b"A2"]}, computed=[1, 2])
    # The connector loads P1 and P2 into the blocks that "a" had: the rows there are of A1 and A2.
    worker.step(new={"b": ([1, 2, 3], 2 * SIZE)}, hashes={"b": [b"P1", b"P2", b"B3"]}, finished=["a"])
    assert worker.valid(1, 2) == [False, False]


def test_a_block_whose_hash_is_not_known_proves_nothing() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1], 0)}, hashes={"a": [b"A1"]}, computed=[1])
    worker.step(new={"b": ([1, 2], SIZE)})
    assert worker.valid(1) == [False]


def test_a_block_that_fills_while_tokens_are_sampled_gets_its_hash_later() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1], 0)}, computed=[1])
    worker.step(grown={"a": [2]}, hashes={"a": [b"A1"]}, computed=[2])
    worker.step(finished=["a"], hashes={"a": [b"A2"]})
    worker.step(new={"b": ([1, 2, 3], 2 * SIZE)}, hashes={"b": [b"A1", b"A2"]})
    assert worker.valid(1, 2) == [True, True]


def test_rows_that_are_missing_stay_missing_in_a_later_hit() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1], SIZE)}, hashes={"a": [b"P1"]})
    worker.step(new={"b": ([1], SIZE)}, hashes={"b": [b"P1"]})
    assert worker.valid(1) == [False]


def test_after_an_error_nothing_older_is_believed() -> None:
    worker = Worker(check_hashes=True)
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"P1", b"P2"]}, computed=[1, 2])
    with pytest.raises(IndexError):
        worker.step(new={"b": ([99], 0)})  # a block that the store has not
    assert worker.valid(1, 2) == [False, False]
    worker.step(grown={"a": [3]}, hashes={"a": [b"P3"]}, computed=[3, 4])
    worker.step(new={"c": ([4], SIZE)}, hashes={"c": [b"P1"]})
    assert worker.valid(3, 4) == [True, False]
    worker.step(generation=1)
    worker.step(new={"a": ([1, 2], 0)}, hashes={"a": [b"P1", b"P2"]}, computed=[1, 2], generation=1)
    worker.step(new={"b": ([1, 2], 2 * SIZE)}, hashes={"b": [b"P1", b"P2"]}, generation=1)
    assert worker.valid(1, 2) == [True, True]
