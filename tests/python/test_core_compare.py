"""moetape.compare and moetape.stats as Python sees them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, Ids, distinct_ids

IDS = distinct_ids(100)
RECORD = mt.Routes.from_ids(SPEC, IDS, version=3, tokens=np.arange(100) % 7)


def rerouted_ids(ids: Ids, share: float, seed: int = 1) -> Ids:
    """The same ids, with a share of the routers drawn anew."""
    again = distinct_ids(len(ids), seed=seed)
    drawn = np.random.default_rng(seed).random(ids.shape[:2]) < share
    return np.where(drawn[..., None], again, ids)


def test_a_record_agrees_with_itself() -> None:
    comparison = mt.compare(RECORD, RECORD)
    total = comparison.total
    assert (total.num_rows, total.num_routers, total.num_ids) == (100, 300, 600)
    assert (total.unequal_routers_rate, total.rerouted_routers_rate, total.overlap) == (0.0, 0.0, 1.0)
    assert comparison.rerouted_rows == []
    assert comparison.rows_by_rerouted_routers == [100, 0, 0, 0]
    assert comparison.spec == SPEC


def test_rates_are_those_that_numpy_finds() -> None:
    # case J06
    other_ids = rerouted_ids(IDS, 0.1)
    other = mt.Routes.from_ids(SPEC, other_ids, version=4)
    comparison = mt.compare(RECORD, other)

    unequal = (other_ids != IDS).any(axis=2)
    rerouted = (np.sort(IDS) != np.sort(other_ids)).any(axis=2)
    shared = (IDS[..., :, None] == other_ids[..., None, :]).any(axis=3)
    assert comparison.total.unequal_routers_rate == pytest.approx(unequal.mean())
    assert comparison.total.rerouted_routers_rate == pytest.approx(rerouted.mean())
    assert comparison.total.rerouted_rows_rate == pytest.approx(rerouted.any(axis=1).mean())
    assert comparison.total.overlap == pytest.approx(shared.mean())
    assert tuple(comparison.by_layer) == SPEC.layers
    for column, layer in enumerate(SPEC.layers):
        assert comparison.by_layer[layer].num_rerouted_routers == rerouted[:, column].sum()
    for start, end, sums in comparison.by_position:
        assert end - start == 2
        assert sums.num_rerouted_routers == rerouted[start:end].sum()
    assert comparison.rows_by_rerouted_routers == np.bincount(rerouted.sum(axis=1), minlength=4).tolist()
    assert list(comparison.by_version) == [(3, 4)]
    for token in range(7):
        assert comparison.by_token[token].num_rerouted_routers == rerouted[token::7].sum()
    worst = comparison.rerouted_rows[0]
    assert worst.num_rerouted_routers == rerouted.sum(axis=1).max()
    assert (worst.sequence, worst.token) == (0, worst.position % 7)
    token, sums = comparison.most_rerouted_tokens(1)[0]
    assert sums.num_rerouted_routers == max(rerouted[t::7].sum() for t in range(7))
    assert sums == comparison.by_token[token]


def test_missing_rows_are_counted_and_never_compared() -> None:
    # case C14
    shorter = RECORD.slice(0, 98)
    holed = mt.Routes.from_ids(SPEC, IDS, valid=np.arange(100) % 10 != 0)
    comparison = mt.compare(shorter, holed)
    assert comparison.total.num_rows == 88
    assert (comparison.num_rows_only_in_a, comparison.num_rows_only_in_b) == (10, 2)
    assert comparison.num_rows_in_neither == 0
    assert comparison.missing_in_a == {"gap": 2}
    assert comparison.missing_in_b == {"not_sent": 10}
    nothing = mt.compare(RECORD.slice(0, 0), RECORD.slice(0, 0)).total
    assert nothing.overlap is None
    assert nothing.rerouted_rows_rate is None


def test_iterables_are_walked_in_step_and_not_kept() -> None:
    alive = 0

    def records(seed: int) -> Iterator[mt.Routes]:
        nonlocal alive
        for i in range(5):
            alive += 1
            assert alive <= 2
            yield mt.Routes.from_ids(SPEC, distinct_ids(4, seed=seed + i))
            alive -= 1

    comparison = mt.compare(records(1), records(10))
    assert comparison.num_sequences == 5
    assert comparison.total.num_rows == 20
    assert mt.stats(records(1)).num_rows == 20


def test_parts_merge_to_the_whole_after_a_pickle() -> None:
    other = mt.Routes.from_ids(SPEC, rerouted_ids(IDS, 0.5), version=5)
    whole = mt.Comparison(SPEC)
    parts = [mt.Comparison(SPEC), mt.Comparison(SPEC)]
    for sequence, (start, end) in enumerate([(0, 10), (10, 60), (60, 100)]):
        pair = (RECORD.slice(start, end), other.slice(start, end))
        whole.add(*pair)
        parts[sequence % 2].add(*pair, sequence=sequence)
    assert parts[0] != whole
    parts[0].merge(pickle.loads(pickle.dumps(parts[1])))
    assert parts[0] == whole
    assert parts[0].total == mt.compare(RECORD, other).total
    assert "300 routers" in repr(whole)


def test_stats_are_those_that_numpy_finds() -> None:
    valid = np.arange(100) % 9 != 0
    routes = mt.Routes.from_ids(SPEC, IDS, valid=valid, version=6)
    stats = mt.stats([routes, RECORD])
    kept = np.concatenate([IDS[valid], IDS])
    expected = np.array([np.bincount(kept[:, layer].ravel(), minlength=8) for layer in range(3)])
    assert np.array_equal(stats.load, expected)
    assert stats.load.dtype == np.int64
    assert (stats.num_sequences, stats.num_rows, stats.num_valid_rows) == (2, 200, len(kept))
    assert stats.missing == {"not_sent": 12}
    assert stats.rows_by_version == {6: 88, 3: 100}
    assert sum(load for _, _, load in stats.load_by_row).tolist() == expected.tolist()
    assert [(start, end) for start, end, _ in stats.load_by_version] == [(3, 4), (4, 5), (5, 6), (6, 7)]
    assert stats.load_by_version[1][2].sum() == 0
    for column, layer in enumerate(SPEC.layers):
        balance = stats.balance[layer]
        assert balance is not None
        assert balance.max_over_mean == pytest.approx(expected[column].max() / expected[column].mean())
        assert balance.variation == pytest.approx(expected[column].std() / expected[column].mean())
    neighbours = mt.compare(mt.Routes.from_ids(SPEC, IDS[1:]), mt.Routes.from_ids(SPEC, IDS[:-1]))
    assert mt.stats(RECORD).reuse == neighbours.by_layer
    assert stats.bytes == {"narrow": 1200, "bitpacked": 600, "int32": 4800}


def test_stats_merge_after_a_pickle() -> None:
    first, second = mt.stats(RECORD.slice(0, 40)), mt.Stats(SPEC)
    second.add(RECORD.slice(40, 100))
    load = second.load
    second.merge(pickle.loads(pickle.dumps(first)))
    assert np.array_equal(second.load, mt.stats(RECORD).load)
    assert not np.array_equal(second.load, load), "a view that changed"
    assert second.num_sequences == 2
    assert pickle.loads(pickle.dumps(second)) == second


@pytest.mark.parametrize("value", [mt.compare(RECORD, RECORD), mt.stats(RECORD)], ids=["Comparison", "Stats"])
def test_a_broken_pickle_is_refused(value: Any) -> None:
    spec, fields = value.__getstate__()
    other = mt.RouteSpec(layers=[0], top_k=2, num_experts=8)
    for state in [(), (spec,), (spec, fields[:-1]), (other, fields), (spec, tuple(None for _ in fields))]:
        broken = type(value).__new__(type(value))
        with pytest.raises(mt.CorruptDataError, match="state"):
            broken.__setstate__(state)


def test_balance_of_a_load() -> None:
    worst = mt.balance([0, 12, 0, 0])
    assert worst is not None
    assert (worst.max_over_mean, worst.entropy, worst.gini, worst.num_unused) == (4.0, 0.0, 0.75, 3)
    assert mt.balance(np.zeros(4, np.int32)) is None
    with pytest.raises(mt.InvalidArgumentError, match="load: expected counts of 0 or more, got -1"):
        mt.balance([3, -1])


def test_what_does_not_fit_is_named() -> None:
    other = mt.Routes.from_ids(mt.RouteSpec(layers=[1, 2], top_k=2, num_experts=8), distinct_ids(3)[:, :2])
    with pytest.raises(mt.SpecMismatchError, match="b"):
        mt.compare(RECORD, other)
    with pytest.raises(mt.SpecMismatchError):
        mt.stats([RECORD, other])
    with pytest.raises(mt.ConflictError, match="position 5"):
        mt.compare(RECORD, RECORD.with_tokens(np.where(np.arange(100) == 5, 9, np.arange(100) % 7)))
    with pytest.raises(mt.WrongShapeError, match="b: expected as many records as a, got 1"):
        mt.compare([RECORD, RECORD], [RECORD])
    with pytest.raises(mt.InvalidArgumentError, match="at least one pair"):
        mt.compare([], [])
    with pytest.raises(mt.InvalidArgumentError, match="at least one record"):
        mt.stats([])
    with pytest.raises(mt.InvalidArgumentError, match="max_rerouted_rows"):
        mt.compare(RECORD, RECORD, max_rerouted_rows=-1)


@pytest.mark.parametrize("bad", [None, 3, "text", [3]], ids=repr)
def test_what_is_no_record_is_refused(bad: Any) -> None:
    with pytest.raises(mt.WrongTypeError, match="a"):
        mt.compare(bad, RECORD)
    with pytest.raises(mt.WrongTypeError, match="routes"):
        mt.stats(bad)
