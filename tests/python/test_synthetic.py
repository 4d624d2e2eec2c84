"""The routes of no model keep what they promise, and are the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import moetape as mt
from moetape import synthetic

SPEC = mt.RouteSpec(layers=[1, 2, 5], top_k=4, num_experts=32)
WIDE = mt.RouteSpec(layers=[0, 1], top_k=3, num_experts=300)
TIGHT = mt.RouteSpec(layers=[0], top_k=4, num_experts=8)
LENGTHS = [3, 0, 40, 7]

Make = Callable[..., list[mt.Routes]]


def tokens_of(lengths: list[int]) -> list[Any]:
    return synthetic.zipf_tokens(lengths, vocabulary=1000, exponent=0, seed=3)


MAKERS: dict[str, Make] = {
    "uniform": synthetic.uniform,
    "recent": synthetic.recent,
    "by_request": lambda spec, lengths, **more: synthetic.by_request(
        spec, lengths, preferred=spec.top_k, **more
    ),
    "by_token": lambda spec, lengths, **more: synthetic.by_token(spec, tokens_of(lengths), **more),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def hits(ids: Any, wanted: Any) -> Any:
    """Which of ids [..., k] are among wanted [..., n]."""
    return (ids[..., :, None] == wanted[..., None, :]).any(axis=-1)


@every_maker
@pytest.mark.parametrize("spec", [SPEC, WIDE, TIGHT], ids=["spec", "two_bytes", "tight"])
def test_sequences_have_their_lengths_and_different_ids(make: Make, spec: mt.RouteSpec) -> None:
    # case I21; from_ids refuses a repeated id
    made = make(spec, LENGTHS, version=7)
    assert [len(routes) for routes in made] == LENGTHS
    for routes in made:
        assert routes.spec == spec
        assert (routes.start, routes.complete) == (0, True)
        assert routes.versions == ([(0, len(routes), 7)] if len(routes) else [])
        assert all(len(set(row)) == spec.top_k for row in routes.ids.reshape(-1, spec.top_k).tolist())


@every_maker
def test_equal_arguments_give_equal_routes(make: Make) -> None:
    assert make(SPEC, LENGTHS, seed=5) == make(SPEC, LENGTHS, seed=5)
    assert make(SPEC, LENGTHS, seed=5) != make(SPEC, LENGTHS, seed=6)
    assert make(SPEC, []) == []


@every_maker
def test_every_expert_is_used_equally_often(make: Make) -> None:
    # Over sequences, since a sequence or a token may have experts of its own.
    many = [make(SPEC, [5] * 200, seed=seed) for seed in range(10)]
    ids = np.concatenate([routes.ids for made in many for routes in made])
    for column in range(SPEC.num_moe_layers):
        shares = np.bincount(ids[:, column].reshape(-1), minlength=32) / ids[:, column].size
        assert np.abs(shares * 32 - 1).max() < 0.2, shares


def test_uniform_draws_all_choices_in_all_orders() -> None:
    spec = mt.RouteSpec(layers=[0], top_k=2, num_experts=4)
    (routes,) = synthetic.uniform(spec, [12_000])
    counts = np.bincount(routes.ids[:, 0, 0].astype(int) * 4 + routes.ids[:, 0, 1], minlength=16)
    assert not counts[[0, 5, 10, 15]].any()
    assert (np.abs(np.delete(counts, [0, 5, 10, 15]) - 1000) < 150).all(), counts  # 5 standard deviations


def test_uniform_repeats_ids_where_the_spec_allows_it() -> None:
    spec = mt.RouteSpec(layers=[0], top_k=2, num_experts=4, distinct=False)
    (routes,) = synthetic.uniform(spec, [8000])
    assert abs((routes.ids[:, 0, 0] == routes.ids[:, 0, 1]).mean() - 1 / 4) < 0.03


@pytest.mark.parametrize("reuse", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("spec", [SPEC, WIDE, TIGHT], ids=["spec", "two_bytes", "tight"])
def test_recent_reuses_the_experts_of_the_token_before(spec: mt.RouteSpec, reuse: float) -> None:
    made = synthetic.recent(spec, [400, 300, 500, 1], reuse=reuse)
    again = np.concatenate([hits(one.ids[1:], one.ids[:-1]).reshape(-1) for one in made])
    assert abs(again.mean() - reuse) < 0.03
    if reuse in (0.0, 1.0):
        assert again.mean() == reuse


def test_recent_forgets_as_it_says() -> None:
    spec = mt.RouteSpec(layers=[0, 1], top_k=2, num_experts=256)
    (routes,) = synthetic.recent(spec, [4000], reuse=0.7)
    for distance in (2, 4):
        found = hits(routes.ids[distance:], routes.ids[:-distance]).mean()
        assert 0.7**distance - 0.03 < found < 0.7**distance + 0.05


def most_used(ids: Any, count: int) -> Any:
    """[layers, count]: the experts that ids [rows, layers, k] hold most often."""
    return np.stack(
        [np.bincount(ids[:, column].reshape(-1)).argsort()[::-1][:count] for column in range(ids.shape[1])]
    )


@pytest.mark.parametrize("share", [0.6, 0.9, 1.0])
def test_requests_prefer_experts_of_their_own(share: float) -> None:
    made = synthetic.by_request(SPEC, [1500] * 4, share=share, preferred=6)
    own = [most_used(routes.ids, 6) for routes in made]
    for routes, experts in zip(made, own, strict=True):
        assert abs(hits(routes.ids, experts).mean() - share) < 0.03
    assert len({experts.tobytes() for experts in own}) == 4
    others = np.mean([hits(made[0].ids, experts).mean() for experts in own[1:]])
    assert others < share / 2


def test_requests_prefer_all_their_own_experts_alike() -> None:
    (routes,) = synthetic.by_request(SPEC, [4000], share=1.0, preferred=8)
    for column in range(SPEC.num_moe_layers):
        counts = np.bincount(routes.ids[:, column].reshape(-1))
        assert abs(counts[counts > 0] - 2000).max() < 250


def test_token_ids_decide_experts() -> None:
    tokens = [np.repeat(np.arange(3), 800), np.repeat([2, 1], 800)]
    first, second = synthetic.by_token(SPEC, tokens, share=0.75)
    assert first.tokens is not None
    assert first.tokens.tolist() == tokens[0].tolist()
    own = [most_used(first.ids[token * 800 : (token + 1) * 800], SPEC.top_k) for token in range(3)]
    for routes in (first, second):
        assert routes.tokens is not None
        for token in set(routes.tokens.tolist()):
            rows = routes.ids[routes.tokens == token]
            assert abs(hits(rows, own[token]).mean() - 0.75) < 0.03


def test_what_a_token_prefers_depends_on_the_seed_and_the_token_alone() -> None:
    (alone,) = synthetic.by_token(SPEC, [[70_000] * 50], share=1.0, seed=9)
    _, beside = synthetic.by_token(SPEC, [[1, 2, 3], [5, 70_000, 70_000]], share=1.0, seed=9)
    assert np.array_equal(np.sort(alone.ids[0]), np.sort(beside.ids[1]))
    assert np.array_equal(np.sort(alone.ids[0]), np.sort(alone.ids[49]))
    (other_seed,) = synthetic.by_token(SPEC, [[70_000]], share=1.0, seed=10)
    assert not np.array_equal(np.sort(alone.ids[0]), np.sort(other_seed.ids[0]))


def test_zipf_tokens_fall_off_as_they_say() -> None:
    (tokens,) = synthetic.zipf_tokens([20_000], vocabulary=100, exponent=1.0)
    counts = np.bincount(tokens, minlength=100)
    assert tokens.dtype == np.int32
    assert abs(counts[0] / counts[1] - 2) < 0.2
    assert abs(counts[0] / counts[9] - 10) < 2.5
    (flat,) = synthetic.zipf_tokens([20_000], vocabulary=10, exponent=0)
    assert abs(np.bincount(flat) - 2000).max() < 250
    assert synthetic.zipf_tokens([], vocabulary=10) == []
    assert [len(part) for part in synthetic.zipf_tokens([0, 2, 0], vocabulary=10)] == [0, 2, 0]


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: synthetic.uniform(SPEC, 5), mt.WrongTypeError, "lengths: expected one"),
        (lambda: synthetic.uniform(SPEC, [3, -1]), mt.OutOfRangeError, r"lengths\[1\].*-1"),
        (lambda: synthetic.uniform(SPEC, [1.5]), mt.WrongTypeError, r"lengths\[0\].*1.5"),
        (lambda: synthetic.uniform(SPEC, [2**40 - 1] * 2**10), mt.OutOfMemoryError, "rows of 12 bytes"),
        (lambda: synthetic.recent(SPEC, [2**40 - 1] * 2**10), mt.OutOfMemoryError, "lengths"),
        (lambda: synthetic.uniform(SPEC, [1], seed=-1), mt.OutOfRangeError, "seed.*-1"),
        (lambda: synthetic.uniform(SPEC, [1], seed="x"), mt.WrongTypeError, "seed.*'x'"),
        (lambda: synthetic.uniform(SPEC, [1], version=-1), mt.OutOfRangeError, "version"),
        (lambda: synthetic.recent(SPEC, [1], reuse=1.01), mt.OutOfRangeError, "reuse: expected 0 to 1"),
        (lambda: synthetic.recent(SPEC, [1], reuse=None), mt.WrongTypeError, "reuse.*None"),
        (lambda: synthetic.recent(SPEC, [1], reuse=float("nan")), mt.OutOfRangeError, "reuse"),
        (
            lambda: synthetic.recent(mt.RouteSpec([0], 4, 7), [1]),
            mt.InvalidArgumentError,
            "4 experts or more beside 4, got one with 7",
        ),
        (lambda: synthetic.by_request(SPEC, [1], preferred=3), mt.OutOfRangeError, "preferred.*3"),
        (lambda: synthetic.by_request(SPEC, [1], preferred=29), mt.InvalidArgumentError, "preferred.*29"),
        (lambda: synthetic.by_request(SPEC, [1], share=2), mt.OutOfRangeError, "share.*2"),
        (lambda: synthetic.by_token(SPEC, [[1], [0.5]]), mt.WrongTypeError, r"tokens\[1\].*float64"),
        (lambda: synthetic.by_token(SPEC, [[-1]]), mt.OutOfRangeError, r"tokens\[0\].*-1"),
        (lambda: synthetic.by_token(SPEC, [[2**31]]), mt.OutOfRangeError, r"tokens\[0\]"),
        (lambda: synthetic.by_token(SPEC, [[[1], [1, 2]]]), mt.WrongTypeError, r"tokens\[0\]"),
        (lambda: synthetic.zipf_tokens([1], vocabulary=0), mt.OutOfRangeError, "vocabulary.*0"),
        (lambda: synthetic.zipf_tokens([1], vocabulary=9, exponent=-1), mt.OutOfRangeError, "exponent"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    call: Callable[[], object], error: type[mt.Error], names: str
) -> None:
    with pytest.raises(error, match=names):
        call()
