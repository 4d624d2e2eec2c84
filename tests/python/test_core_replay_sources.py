"""Where a plan's routes come from: Routes, texts and stores that are pulled, and tapes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids
from moetape.replay import FILL, LIVE, REPLAYED, Plan, RowIds

ROUTES = [
    mt.Routes.from_ids(SPEC, distinct_ids(300), tokens=range(300)),
    mt.Routes.from_ids(SPEC, distinct_ids(40)[::-1].copy(), start=3, tokens=range(40)),
]
ROWS = RowIds.from_lengths([301, 50]).pad_each(4).zigzag_each(size=2, rank=0).pad(8)
PLAN = Plan.from_row_ids(ROWS, layers=[4, 1])
IDS, USES = PLAN.apply(ROUTES)


def text_of(routes: mt.Routes, dialect: str) -> Any:
    encoded = mt.encode(routes, dialect)
    return encoded if isinstance(encoded, str | bytes) else encoded.tobytes()


@pytest.mark.parametrize("dialect", [name for name in mt.wire.DIALECTS if name != "vllm-split"])
def test_a_ranks_slice_straight_from_texts(dialect: str) -> None:
    assert {FILL, LIVE, REPLAYED} == set(USES.tolist())
    sources = [
        mt.decode_rows(text_of(routes, dialect), dialect, spec=SPEC, start=routes.start) for routes in ROUTES
    ]
    gc.collect()  # the texts live on
    for _ in range(2):
        ids, uses = PLAN.apply(sources)
        assert np.array_equal(ids, IDS)
        assert np.array_equal(uses, USES)


def test_sources_of_every_kind_may_be_mixed() -> None:
    store = mt.Store(SPEC, num_slots=64)
    slots = range(7, 47)
    store.write(slots, ROUTES[1], version=1)
    ids, uses = PLAN.apply([ROUTES[0], store.rows(slots, start=3)])
    assert np.array_equal(ids, IDS)
    assert np.array_equal(uses, USES)
    rows = mt.decode_rows(mt.encode(ROUTES[0], "sglang"), "sglang", spec=SPEC)
    ids, _ = PLAN.apply([rows, ROUTES[1]])
    assert np.array_equal(ids, IDS)
    with pytest.raises(mt.InvalidArgumentError, match=r"sources\[1\]"):
        PLAN.apply([rows, rows])
    assert len(rows) == 300


def test_texts_go_on_as_rows_do(tmp_path: Path) -> None:
    rows = mt.decode_rows(mt.encode(ROUTES[0], "vllm"), "vllm", spec=SPEC)
    assert mt.encode(rows, "lightllm") == mt.encode(ROUTES[0], "lightllm")
    with mt.TapeWriter(tmp_path / "a.tape", SPEC) as writer:
        writer.append(rows)
    assert np.array_equal(mt.open(tmp_path / "a.tape")[0].ids, ROUTES[0].ids)


def test_what_is_not_pulled_is_not_looked_at() -> None:
    text = mt.encode(ROUTES[0], "sglang")
    damaged = text[:200] + "!" + text[201:]
    plan = Plan.from_row_ids(mt.replay.row_ids(0, range(250, 260)))
    ids, _ = plan.apply([mt.decode_rows(damaged, "sglang", spec=SPEC)])
    assert np.array_equal(ids, plan.apply(ROUTES)[0])
    with pytest.raises(mt.CorruptDataError, match="character 200"):
        PLAN.apply([mt.decode_rows(damaged, "sglang", spec=SPEC), ROUTES[1]])
    with pytest.raises(mt.WrongTypeError, match="data: expected str or bytes, got bytearray"):
        mt.decode_rows(bytearray(text.encode()), "sglang", spec=SPEC)  # type: ignore[arg-type]
    with pytest.raises(mt.WrongTypeError, match="spec: expected RouteSpec, got NoneType"):
        mt.decode_rows("A" * (2 << 20), "sglang", spec=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["none", "bitpack"])
@pytest.mark.parametrize("groups", [None, [[1, 2], [4]]])
def test_a_ranks_slice_of_a_tape(tmp_path: Path, codec: str, groups: list[list[int]] | None) -> None:
    # case E06
    path = tmp_path / "run.tape"
    mt.save(path, [ROUTES[1], ROUTES[0]], codec=codec, layer_groups=groups)
    tape = mt.open(path)
    ids, uses = PLAN.apply(tape, sequences=[1, 0])
    assert np.array_equal(ids, IDS)
    assert np.array_equal(uses, USES)
    assert np.array_equal(PLAN.expert_load(tape, sequences=[1, 0]), PLAN.expert_load(ROUTES))
    positions = (ROWS.ids & 0xFFFFFFFF).astype(np.int32)
    tokens = np.where(ROWS.ids >> 32 == 2, positions - 3, positions)
    assert (
        PLAN.verify(tape, tokens, sequences=[1, 0]) == PLAN.verify(ROUTES, tokens) == (USES == REPLAYED).sum()
    )
    with pytest.raises(mt.ConflictError, match="row 0"):
        PLAN.verify(tape, tokens + 1, sequences=[1, 0])


def test_sequences_are_those_of_a_tape(tmp_path: Path) -> None:
    mt.save(tmp_path / "run.tape", ROUTES)
    tape = mt.open(tmp_path / "run.tape")
    assert np.array_equal(PLAN.apply(tape)[0], IDS)
    for sequences, error in (([0], mt.OutOfRangeError), ([0, 2], mt.OutOfRangeError), ([], mt.Error)):
        with pytest.raises(error):
            PLAN.apply(tape, sequences=sequences)
    with pytest.raises(mt.InvalidArgumentError, match="sequences: expected None"):
        PLAN.apply(ROUTES, sequences=[0, 1])
    for sources in (None, 5, ["routes"], tape.spec):
        with pytest.raises(mt.WrongTypeError, match="sources"):
            PLAN.apply(sources)  # type: ignore[arg-type]
    rows = mt.decode_rows(mt.encode(ROUTES[0], "sglang"), "sglang", spec=SPEC)
    for call in (PLAN.expert_load, lambda sources: PLAN.verify(sources, [0] * PLAN.num_rows)):
        with pytest.raises(mt.WrongTypeError, match="RowSource"):
            call([rows, ROUTES[1]])
