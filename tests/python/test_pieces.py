"""Routes that travel in pieces are what a plan would have taken from them whole."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import moetape as mt
from moetape import pieces
from moetape.replay import Plan, RowIds

SPEC = mt.RouteSpec(layers=[1, 2, 3, 5, 6], top_k=2, num_experts=300)
GROUPS = [None, [[1, 2], [], [3, 5, 6]], [[1, 6], [2, 5], [3]]]


def random_routes(draw: random.Random, length: int, start: int) -> mt.Routes:
    noise = np.random.default_rng(draw.getrandbits(32))
    ids = np.argsort(noise.random((length, 5, 300)), axis=-1)[..., :2]
    valid = noise.random(length) > draw.choice([0.0, 0.2])
    return mt.Routes.from_ids(
        SPEC,
        ids,
        start=start,
        valid=valid,
        version=draw.randint(0, 9),
        tokens=(start + np.arange(length)) % 7,
    )


def random_plan(draw: random.Random, lengths: list[int]) -> Plan:
    rows = RowIds.from_lengths(lengths).pad_each(4).zigzag_each(2, draw.randrange(2))
    layers = draw.choice([None, [2], [5, 1], [6, 3, 2], []])
    return Plan.from_row_ids(rows.take([draw.randrange(len(lengths))]), layers=layers)


def hand_over(
    whole: list[mt.Routes], plan: Plan, groups: Any = None, rows: int | None = None
) -> tuple[Plan, list[mt.Routes], int]:
    """(plan over them, routes, rows handed over) of what a plan needs, by pieces."""
    num_rows, found = 0, []
    new_plan, wants = pieces.wants(plan, SPEC)
    for want in wants:
        touched = [one for one in pieces.cut(whole[want.sequence], groups, rows) if want.touches(one[0])]
        num_rows += sum(piece.end - piece.start for piece, _ in touched)
        parts = [pieces.read(piece, data, want, "a piece") for piece, data in touched]
        found.append(pieces.join(SPEC, want, parts))
    return new_plan, found, num_rows


@pytest.mark.parametrize("seed", range(60))
def test_pieces_give_what_the_whole_gives(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 40) for _ in range(draw.randint(1, 4))]
    whole = [random_routes(draw, draw.randint(0, length), draw.choice([0, 0, 5])) for length in lengths]
    plan = random_plan(draw, lengths)
    new_plan, found, _ = hand_over(whole, plan, draw.choice(GROUPS), draw.choice([None, 1, 3, 8]))
    ids, uses = plan.apply(whole, dtype="int32")
    ids_of_pieces, uses_of_pieces = new_plan.apply(found, dtype="int32")
    assert np.array_equal(ids, ids_of_pieces)
    assert np.array_equal(uses, uses_of_pieces)
    tokens = [(one & 0xFFFFFFFF) % 7 for one in plan.row_ids.tolist()]
    assert new_plan.verify(found, tokens) == plan.verify(whole, tokens) == sum(map(len, found))
    for (sequence, start, end), part in zip(plan.needs(), found, strict=True):
        first, last = max(start, whole[sequence].start), min(end, whole[sequence].end)
        if first < last:
            expected = whole[sequence].slice(first, last)
            assert part.versions == expected.versions
            assert part.tokens is not None
            assert np.array_equal(part.tokens, np.asarray(expected.tokens))


def test_each_rank_gets_its_own_quarter_of_the_rows() -> None:  # case K02
    draw = random.Random(0)
    whole = [random_routes(draw, 64, 0) for _ in range(10)]
    for replica in (range(5), range(5, 10)):
        seen = []
        for rank in range(2):
            rows = RowIds.from_lengths([64] * 10).take(list(replica)).zigzag_each(2, rank)
            plan = Plan.from_row_ids(rows)
            _, found, num_rows = hand_over(whole, plan, rows=16)
            seen += [
                (sequence, start + row)
                for (sequence, start, _), part in zip(plan.needs(), found, strict=True)
                for row in np.flatnonzero(part.valid)
            ]
            assert num_rows == 10 * 64 // 4
        expected = [(s, row) for s in replica for row in range(64) if whole[s].valid[row]]
        assert sorted(seen) == expected


def test_what_lies_in_one_piece_is_a_view_of_it() -> None:
    whole = random_routes(random.Random(1), 20, 0)
    [(piece, data)] = pieces.cut(whole.without(0))
    part = pieces.read(piece, data, pieces.Want(0, 4, 9, SPEC.layers), "a piece")
    assert np.shares_memory(part.ids, np.frombuffer(data, np.uint8))


def test_another_piece_or_a_changed_one_is_refused() -> None:
    draw = random.Random(2)
    (piece, data), *_ = pieces.cut(random_routes(draw, 20, 0))
    (_, other), *_ = pieces.cut(random_routes(draw, 20, 0))
    want = pieces.Want(3, 0, 20, SPEC.layers)
    with pytest.raises(mt.CorruptDataError, match=r"sequence 3: expected the piece .*, got"):
        pieces.read(piece, other, want, "sequence 3")
    for place in range(0, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(mt.CorruptDataError, match="sequence 3"):
            pieces.read(piece, bytes(changed), want, "sequence 3")


def test_a_lost_piece_is_missing_and_never_zeros() -> None:
    whole = random_routes(random.Random(3), 20, 0)
    plan = Plan.from_row_ids(RowIds.from_lengths([20]))
    _, [want] = pieces.wants(plan, SPEC)
    first, *rest = pieces.cut(whole, GROUPS[1], 8)
    parts = [pieces.missing(SPEC, first[0], want)]
    parts += [pieces.read(piece, data, want, "a piece") for piece, data in rest if want.touches(piece)]
    found = pieces.join(SPEC, want, parts)
    assert not found.valid[:8].any()
    assert np.array_equal(found.valid[8:], whole.valid[8:])
    assert (plan.apply([found])[1][:8] == mt.replay.LIVE).all()


def test_wrong_cuts_are_refused_by_name() -> None:
    whole = random_routes(random.Random(4), 5, 0)
    with pytest.raises(mt.InvalidArgumentError, match="rows_per_piece: expected 1 or more, got 0"):
        pieces.cut(whole, rows_per_piece=0)
    with pytest.raises(mt.InvalidArgumentError):
        pieces.cut(whole, [[1, 2], [2, 3, 5, 6]])
    for none in ([], [[]]):
        with pytest.raises(mt.InvalidArgumentError, match=r"layer_groups: expected each of .*, got none"):
            pieces.cut(whole, none)
    with pytest.raises(mt.OutOfRangeError):
        pieces.wants(Plan.from_row_ids(RowIds.from_lengths([5]), layers=[4]), SPEC)


def test_a_piece_says_its_layers() -> None:
    piece = pieces.Piece(0, 5, (1, 2, 3, 7, 9, 10), 0, "", 0)
    assert str(piece) == "rows [0, 5) of layers 1 to 3, 7, 9 to 10"


def test_where_nothing_is_needed_the_plan_still_applies() -> None:
    plan = Plan.from_row_ids(np.array([0, -1, 0]))
    new_plan, wants = pieces.wants(plan, SPEC)
    assert wants == []
    none = pieces.no_rows(SPEC, SPEC.layers)
    for one, expected in zip(new_plan.apply([none]), plan.apply([none]), strict=True):
        assert np.array_equal(one, expected)
