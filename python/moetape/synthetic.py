"""Routes of no model, whose statistics are known: for benchmarks, tests and examples.

    spec = moetape.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)
    uniform = moetape.synthetic.uniform(spec, lengths=[1000, 500])       # one Routes a sequence
    recent = moetape.synthetic.recent(spec, lengths=[1000, 500], reuse=0.6)
    requests = moetape.synthetic.by_request(spec, lengths=[1000, 500], share=0.7)
    tokens = moetape.synthetic.zipf_tokens(lengths=[1000, 500], vocabulary=32_000)
    typed = moetape.synthetic.by_token(spec, tokens, share=0.7)

In each of them every expert is used equally often over seeds; what differs is which rows use the same ones.
The ids of a row and layer differ. With a spec that allows repeats, `uniform` draws each id by itself.

All are pure functions: the same arguments give the same routes (with one version of NumPy, whose streams of
random numbers change seldom). Any thread. They raise WrongTypeError for what is no number, OutOfRangeError
for one outside its range, InvalidArgumentError for a spec with too few experts, and OutOfMemoryError.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetape._moetape import Routes, RouteSpec
from moetape.errors import InvalidArgumentError, OutOfMemoryError, OutOfRangeError, WrongTypeError

__all__ = ["by_request", "by_token", "recent", "uniform", "zipf_tokens"]

Ids = npt.NDArray[np.unsignedinteger]
_BLOCK = 1 << 16  # sets of ids made at a time: their columns stay in cache
_NUM_PICKS = 1 << 16
_TOKENS_PER_SEED = 1024
_MAX_TOKENS = 2**31


def uniform(
    spec: RouteSpec, lengths: Iterable[int], *, seed: int = 0, version: int | None = None
) -> list[Routes]:
    """Sequences of these lengths in which all choices of top_k experts are equally likely and independent."""
    spans = _checked_lengths(lengths)
    random = _random(seed, 0)
    ids = _new(spec, sum(spans))
    if spec.distinct:
        _fill_distinct(random, ids, spec.num_experts)
    else:
        ids[:] = _integers(random, spec.num_experts, ids.shape)
    return _split(spec, ids, spans, version)


def recent(
    spec: RouteSpec,
    lengths: Iterable[int],
    *,
    reuse: float = 0.5,
    seed: int = 0,
    version: int | None = None,
) -> list[Routes]:
    """Sequences whose tokens use the experts of the tokens before again.

    Each id is, with probability `reuse`, the one that the token before had in the same column, else one that
    the token before did not use. So a share `reuse` of ids is found in the row before, reuse**d and some that
    came back in the row d before. Uniform routes have top_k / num_experts. Needs num_experts >= 2 * top_k.

    Fast with many sequences at once; tokens of one follow each other, at some 30 µs each.
    """
    spans = _checked_lengths(lengths)
    _check_share("reuse", reuse)
    _check_room(spec, "reuse", spec.top_k)
    random = _random(seed, 1)
    order = np.argsort([-length for length in spans], kind="stable")  # the first n are those that go on
    starts = (np.cumsum([0, *spans])[:-1])[order]
    falling = np.array(spans, np.int64)[order]
    ids = _new(spec, sum(spans))

    # Of each sequence and layer: all experts, those of the current row first.
    streams = len(spans) * spec.num_moe_layers
    experts = np.tile(np.arange(spec.num_experts, dtype=ids.dtype), (streams, 1))
    random.permuted(experts, axis=1, out=experts)
    picks = _picks(random, spec.num_experts - spec.top_k, spec.top_k)
    for step in range(max(spans, default=0)):
        going = int(np.count_nonzero(falling > step))
        if step > 0:
            _replace(random, experts[: going * spec.num_moe_layers], picks, reuse)
        rows = experts[: going * spec.num_moe_layers, : spec.top_k]
        ids[starts[:going] + step] = rows.reshape(going, spec.num_moe_layers, spec.top_k)
    return _split(spec, ids, spans, version)


def by_request(
    spec: RouteSpec,
    lengths: Iterable[int],
    *,
    share: float = 0.75,
    preferred: int | None = None,
    seed: int = 0,
    version: int | None = None,
) -> list[Routes]:
    """Sequences of which each prefers experts of its own, as those of one subject do.

    At each layer a sequence has `preferred` experts (default 2 * top_k) drawn at random. Each id is, with
    probability `share`, one of these, else another expert. Both kinds must have top_k experts or more.
    """
    spans = _checked_lengths(lengths)
    size = _checked_preferred(spec, preferred, 2 * spec.top_k)
    _check_share("share", share)
    favourites = _distinct(_random(seed, 2), (len(spans), spec.num_moe_layers, size), spec.num_experts)
    groups = np.repeat(np.arange(len(spans)), spans)
    ids = _preferring(_random(seed, 3), spec, favourites, groups, share)
    return _split(spec, ids, spans, version)


def by_token(
    spec: RouteSpec,
    tokens: Iterable[npt.ArrayLike],
    *,
    share: float = 0.75,
    preferred: int | None = None,
    seed: int = 0,
    version: int | None = None,
) -> list[Routes]:
    """Sequences of these tokens, whose experts depend on the token id. The routes carry the tokens.

    At each layer a token id has `preferred` experts (default top_k) drawn at random: by seed and id alone, so
    that calls with one seed agree on them, as with one model. Each id is, with probability `share`,
    one of these, else another expert. Both kinds must have top_k experts or more.
    """
    parts = [_checked_tokens(index, part) for index, part in enumerate(tokens)]
    size = _checked_preferred(spec, preferred, spec.top_k)
    _check_share("share", share)
    together = np.concatenate([*parts, np.empty(0, np.int32)])
    kinds, groups = np.unique(together, return_inverse=True)
    shape = (_TOKENS_PER_SEED, spec.num_moe_layers, size)
    favourites = np.empty((len(kinds), *shape[1:]), _id_type(spec.num_experts))
    for shelf in np.unique(kinds // _TOKENS_PER_SEED):
        here = kinds // _TOKENS_PER_SEED == shelf
        all_here = _distinct(_random(seed, 4, int(shelf)), shape, spec.num_experts)
        favourites[here] = all_here[kinds[here] % _TOKENS_PER_SEED]
    ids = _preferring(_random(seed, 5), spec, favourites, groups, share)
    routes = _split(spec, ids, [len(part) for part in parts], version)
    return [one.with_tokens(part) for one, part in zip(routes, parts, strict=True)]


def zipf_tokens(
    lengths: Iterable[int], *, vocabulary: int, exponent: float = 1.0, seed: int = 0
) -> list[npt.NDArray[np.int32]]:
    """Token ids below `vocabulary`; id i is drawn in proportion to (i + 1) ** -exponent, as words are."""
    spans = _checked_lengths(lengths)
    _check_integer("vocabulary", vocabulary, 1, _MAX_TOKENS)
    if not (isinstance(exponent, int | float) and 0 <= exponent < 100):
        raise OutOfRangeError(f"exponent: expected 0 to 100, got {exponent!r}")
    bounds = np.cumsum(np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent)
    drawn = np.searchsorted(bounds / bounds[-1], _random(seed, 6).random(sum(spans)), side="right")
    return np.split(drawn.astype(np.int32), np.cumsum(spans)[:-1]) if spans else []


# ---- drawing


def _random(seed: int, *stream: int) -> np.random.Generator:
    _check_integer("seed", seed, 0, 2**64)
    return np.random.default_rng([int(seed), *stream])


def _new(spec: RouteSpec, num_rows: int) -> Ids:
    try:
        return np.empty((num_rows, spec.num_moe_layers, spec.top_k), _id_type(spec.num_experts))
    except (MemoryError, ValueError) as error:
        raise OutOfMemoryError(
            f"lengths: expected memory for {num_rows} rows of {spec.row_bytes} bytes, got {error}"
        ) from error


def _id_type(num_experts: int) -> Any:
    return np.uint8 if num_experts <= 256 else np.uint16


def _integers(random: np.random.Generator, end: int, shape: int | tuple[int, ...]) -> Ids:
    return random.integers(0, end, shape, dtype=_id_type(end))


def _distinct(random: np.random.Generator, shape: tuple[int, ...], end: int) -> Ids:
    """Ids below `end`, different along the last axis; all choices, and orders, are equally likely."""
    ids: Ids = np.empty(shape, _id_type(end))
    _fill_distinct(random, ids, end)
    return ids


def _fill_distinct(random: np.random.Generator, ids: Ids, end: int) -> None:
    top_k = ids.shape[-1]
    sets = ids.reshape(-1, top_k)
    for first in range(0, len(sets), _BLOCK):
        columns = _integers(random, end, (top_k, len(sets[first : first + _BLOCK])))
        for k in range(1, top_k):
            _redraw_repeats(random, columns[:k], columns[k], end)
        sets[first : first + _BLOCK] = columns.T


def _redraw_repeats(random: np.random.Generator, before: Ids, column: Ids, end: int) -> None:
    """Draws ids of a column again, in place, until each differs from those of the columns before it."""
    repeated = np.zeros(len(column), np.bool_)
    for earlier in before:
        repeated |= earlier == column
    places = np.flatnonzero(repeated)
    taken = before[:, places]
    while places.size:
        again = _integers(random, end, len(places))
        column[places] = again
        repeated = (taken == again).any(axis=0)
        places, taken = places[repeated], taken[:, repeated]


def _picks(random: np.random.Generator, end: int, top_k: int) -> Ids:
    """Random choices of top_k out of `end`, to be looked up, which is faster than drawing each anew."""
    return _distinct(random, (_NUM_PICKS, top_k), end)


def _look_up(random: np.random.Generator, picks: Ids, count: int) -> Ids:
    return picks[random.integers(0, _NUM_PICKS, count, dtype=np.uint16)]


def _chosen(flags: npt.NDArray[np.bool_], ids: Ids, others: Ids) -> Ids:
    """np.where, faster where flags are random."""
    return others ^ ((ids ^ others) * flags)


def _replace(random: np.random.Generator, experts: Ids, picks: Ids, reuse: float) -> None:
    """Of each row of experts [streams, all] swaps some of the first with others, in place."""
    top_k = picks.shape[1]
    fresh = random.random((len(experts), top_k), np.float32) >= reuse
    first_of_others = np.arange(len(experts))[:, None] * experts.shape[1] + top_k
    places = first_of_others + _look_up(random, picks, len(experts))
    # Within a row no place is named twice, so all swaps may happen at once.
    used, unused = experts[:, :top_k].copy(), experts.reshape(-1)[places]
    experts[:, :top_k] = _chosen(fresh, unused, used)
    experts.reshape(-1)[places] = _chosen(fresh, used, unused)


def _preferring(
    random: np.random.Generator,
    spec: RouteSpec,
    favourites: Ids,
    groups: npt.NDArray[np.intp],
    share: float,
) -> Ids:
    """Ids [rows, layers, k], of which a share are favourites[group of the row, layer]."""
    size = favourites.shape[2]
    favourites = np.sort(favourites, axis=2)
    ids = _new(spec, len(groups))
    picks = _picks(random, size, spec.top_k), _picks(random, spec.num_experts - size, spec.top_k)
    rows_at_once = max(1, _BLOCK // spec.num_moe_layers)
    for first in range(0, len(groups), rows_at_once):
        rows = groups[first : first + rows_at_once]
        own = np.ascontiguousarray(favourites[rows].reshape(-1, size).T)
        liked = _look_up(random, picks[0], own.shape[1]).T
        other = np.ascontiguousarray(_look_up(random, picks[1], own.shape[1]).T)
        chosen = _chosen(
            random.random(other.shape, np.float32) < share,
            own[liked, np.arange(own.shape[1])],
            _skipping(own, other),
        )
        ids[first : first + rows_at_once] = chosen.T.reshape(-1, *ids.shape[1:])
    return ids


def _skipping(own: Ids, ranks: Ids) -> Ids:
    """The experts of these ranks among those that are not in own [size, n], ascending by column."""
    ids = ranks.astype(own.dtype)
    for number, expert in enumerate(own):
        ids += expert - expert.dtype.type(number) <= ranks
    return ids


# ---- what comes in and goes out


def _split(spec: RouteSpec, ids: Ids, spans: Sequence[int], version: int | None) -> list[Routes]:
    ends = np.cumsum(spans, dtype=np.int64).tolist()
    return [
        Routes.from_ids(spec, ids[end - length : end], version=version)
        for end, length in zip(ends, spans, strict=True)
    ]


def _check_integer(name: str, value: object, first: int, end: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise WrongTypeError(f"{name}: expected an integer, got {value!r}")
    if not first <= value < end:
        raise OutOfRangeError(f"{name}: expected {first} to {end - 1}, got {value}")


def _checked_lengths(lengths: Iterable[int]) -> list[int]:
    if isinstance(lengths, int | np.integer | str) or not isinstance(lengths, Iterable):
        raise WrongTypeError(f"lengths: expected one number of rows a sequence, got {lengths!r}")
    spans = list(lengths)
    for index, length in enumerate(spans):
        _check_integer(f"lengths[{index}]", length, 0, 2**40)
    return [int(length) for length in spans]


def _checked_tokens(index: int, part: npt.ArrayLike) -> npt.NDArray[np.int32]:
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise WrongTypeError(f"tokens[{index}]: expected one dimension of integers, got {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise WrongTypeError(
            f"tokens[{index}]: expected one dimension of integers, got {array.dtype} {list(array.shape)}"
        )
    if array.size and not (array.min() >= 0 and array.max() < 2**31):
        raise OutOfRangeError(
            f"tokens[{index}]: expected 0 to {2**31 - 1}, got {array.min()} to {array.max()}"
        )
    return array.astype(np.int32)


def _check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise WrongTypeError(f"{name}: expected a number, got {value!r}")
    if not 0 <= value <= 1:
        raise OutOfRangeError(f"{name}: expected 0 to 1, got {value}")


def _checked_preferred(spec: RouteSpec, preferred: int | None, default: int) -> int:
    if preferred is None:
        preferred = default
    _check_integer("preferred", preferred, spec.top_k, 2**31)
    _check_room(spec, "preferred", int(preferred))
    return int(preferred)


def _check_room(spec: RouteSpec, what: str, taken: int) -> None:
    if spec.num_experts - taken < spec.top_k:
        raise InvalidArgumentError(
            f"{what}: expected a spec with {spec.top_k} experts or more beside {taken}, "
            f"got one with {spec.num_experts}"
        )
