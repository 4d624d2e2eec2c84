"""moetape.canary, moetape.diagnose and `moetape diagnose` as users see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from cli_helpers import refused, succeed, succeed_json
from core_helpers import distinct_ids
from moetape import replay

SPEC = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)
SMALL = mt.RouteSpec(layers=range(6), top_k=4, num_experts=32)


def row_ids(sequence: int, start: int, end: int) -> Any:
    return (sequence + 1) << 32 | np.arange(start, end)


def test_a_canary_tells_where_a_misplaced_row_came_from() -> None:
    canary = mt.Canary(SPEC)
    ids = np.array(mt.canary(SPEC, sequence=0, length=64).ids)
    assert canary.check(ids, row_ids(0, 0, 64)).all_right
    ids[40:, 14] = canary.routes(0, 65).ids[41:, 14]
    report = canary.check(ids, row_ids(0, 0, 64))
    assert (report.num_misplaced, report.num_right) == (24, 64 * 58 - 24)
    [run] = report.runs
    assert (run.layer, run.first_row, run.num_rows) == (17, 40, 24)
    assert (run.wanted, run.found) == ((0, 40, 17), (0, 41, 17))
    assert "layer 17 rows 40-63: want sequence 0 position 40, got position 41" in str(report)
    assert canary.decode(ids[3, 5]) == (0, 3, 8)
    assert canary.decode(np.sort(ids[3, 5])) == (0, 3, 8)
    assert canary.decode([0] * 8) is None


def test_a_canary_goes_through_a_plan() -> None:
    # case J10: what a rank gets, as int64 [layers, rows, k], with padding; checked without a second record
    canary = mt.Canary(SPEC, max_length=1000)
    routes = [canary.routes(0, 13), canary.routes(1, 9)]
    rows = replay.RowIds.from_lengths([13, 9]).pad_each(4).zigzag_each(2, 1).ids
    plan = replay.Plan.from_row_ids(rows, layers=[20, 21])
    ids, _ = plan.apply(routes, dtype="int64")
    report = canary.check(ids.transpose(1, 0, 2), rows, layers=[20, 21])
    assert report.all_right
    assert report.num_padding == (rows == 0).sum()
    assert not canary.check(ids.transpose(1, 0, 2), rows, layers=[21, 22]).all_right


def test_what_a_canary_cannot_carry_is_said() -> None:
    with pytest.raises(mt.CapacityError, match="lists of 2 of 8 experts"):
        mt.canary(mt.RouteSpec(layers=range(4), top_k=2, num_experts=8), 0, 100)
    canary = mt.Canary(SPEC, max_length=100)
    with pytest.raises(mt.CapacityError, match="100 positions"):
        canary.routes(0, 101)
    with pytest.raises(mt.WrongShapeError, match="row_ids: expected one for each of 4 rows"):
        canary.check(canary.routes(0, 4).ids, [1 << 32])
    with pytest.raises(mt.WrongShapeError, match=r"\[rows, layers, k\]"):
        canary.check([1, 2], [1 << 32])
    with pytest.raises(mt.WrongTypeError, match="spec"):
        mt.Canary(3)  # type: ignore[arg-type]


def test_diagnose_finds_a_shift_in_records_and_in_arrays() -> None:
    ids = distinct_ids(201, SMALL)
    a, b = mt.Routes.from_ids(SMALL, ids[:200]), mt.Routes.from_ids(SMALL, ids[1:])
    for diagnosis in (mt.diagnose(a, b), mt.diagnose(ids[:200], ids[1:]), mt.diagnose([a], [ids[1:]])):
        [cause] = diagnosis.causes
        assert (cause.kind, cause.shift, cause.num_rows, cause.num_explained) == ("rows_shifted", 1, 200, 199)
        assert cause.share == 0.995
        [move] = cause.moves
        assert (move.position, move.from_position, move.num_rows) == (0, 1, 199)
        assert "explains 199 of 200 rows (99.5%)" in str(diagnosis)
    assert mt.diagnose(a, a).in_place
    assert "nothing is out of place" in str(mt.diagnose(a, a))


def test_diagnose_gives_the_map_of_experts() -> None:
    # case H05
    ids = distinct_ids(600, SMALL)
    physical = np.stack([np.random.default_rng(layer).permutation(32) for layer in range(6)])
    mapped = np.stack([physical[layer][ids[:, layer]] for layer in range(6)], axis=1)
    [cause] = mt.diagnose(ids, mapped).causes
    assert cause.kind == "experts_mapped"
    for layer in range(6):
        assert np.array_equal(np.array(cause.experts[layer])[physical[layer]], np.arange(32))


def test_noise_and_missing_rows_have_no_cause() -> None:
    noise = mt.diagnose(distinct_ids(300, SMALL), distinct_ids(300, SMALL, seed=1))
    assert noise.causes == []
    assert noise.num_unexplained == noise.num_rows == 300
    assert "no cause was found" in str(noise)
    ids = distinct_ids(100, SMALL)
    holed = np.where((np.arange(100) % 3 == 0)[:, None, None], -1, ids)
    diagnosis = mt.diagnose(ids, holed)
    assert diagnosis.in_place
    assert (diagnosis.num_rows, diagnosis.num_rows_only_in_a) == (66, 34)


def test_what_cannot_be_diagnosed_is_refused_by_name() -> None:
    ids = distinct_ids(4, SMALL)
    with pytest.raises(mt.WrongShapeError, match="b: expected as many records as a, 1, got 2"):
        mt.diagnose([ids], [ids, ids])
    with pytest.raises(mt.SpecMismatchError, match="top_k 4 as in a, got 3"):
        mt.diagnose(ids, ids[:, :, :3])
    with pytest.raises(mt.WrongShapeError, match=r"b: expected \[rows, layers, k\], got \[4, 6\]"):
        mt.diagnose(ids, ids[:, :, 0])
    with pytest.raises(mt.WrongTypeError, match="a: expected Routes or an array of integers"):
        mt.diagnose(ids.astype(np.float32), ids)
    with pytest.raises(mt.WrongTypeError, match="a: expected"):
        mt.diagnose(None, ids)  # type: ignore[arg-type]
    with pytest.raises(mt.InvalidArgumentError, match="got both"):
        mt.diagnose([ids, mt.Routes.from_ids(SMALL, ids)], [ids, ids])
    with pytest.raises(mt.InvalidArgumentError, match="max_rows"):
        mt.diagnose(ids, ids, max_rows=0)


def test_the_command_tells_the_cause_by_the_numbers_of_the_tapes(tmp_path: Path) -> None:
    ids = distinct_ids(300, SMALL)
    records = {name: ids[i * 100 : (i + 1) * 100] for i, name in enumerate("pqr")}
    a, b = tmp_path / "a.tape", tmp_path / "b.tape"
    mt.save(a, [mt.Routes.from_ids(SMALL, one) for one in records.values()], sequence_ids=list("pqr"))
    late = mt.Routes.from_ids(SMALL, np.roll(records["q"], 2, axis=0))
    mt.save(b, [late], sequence_ids=["q"])
    text = succeed("diagnose", a, b, code=1)
    assert "rows_shifted: position p of b holds position p - 2 of a" in text
    assert "sequence 0 positions 2-99 of b: sequence 1 positions 0-97 of a" in text
    result = succeed_json("diagnose", a, b, code=1)
    assert result["sequences_only_in_a"] == [0, 2]
    [cause] = result["causes"]
    assert (cause["kind"], cause["shift"], cause["num_explained"]) == ("rows_shifted", -2, 98)
    assert cause["moves"][0]["from_sequence"] == 1
    assert "nothing is out of place" in succeed("diagnose", a, a)
    assert refused("diagnose", a, b, "--max-rows", "0").startswith("--max-rows: expected")
