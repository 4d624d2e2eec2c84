"""The Meter of moetape.trainers: against plain NumPy, without waiting for the device, over ranks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import moetape as mt
from core_helpers import distinct_ids
from moetape.replay import FILL, LIVE, REPLAYED
from moetape.trainers.meter import Meter

SPEC = mt.RouteSpec(layers=[1, 2, 4], top_k=2, num_experts=8)
ROWS = 40


def by_layer(ids: npt.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids.transpose(1, 0, 2)))


def drifted(ids: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Some lists drawn anew, some turned around."""
    random = np.random.default_rng(seed)
    drawn = random.random(ids.shape[:2])[..., None]
    other = distinct_ids(len(ids), SPEC, seed=seed)
    return np.where(drawn < 0.3, other, np.where(drawn < 0.5, ids[:, :, ::-1], ids))


def test_routers_that_disagree_are_those_that_numpy_and_compare_find() -> None:
    # case J06
    rollout = distinct_ids(ROWS, SPEC)
    training = drifted(rollout, 1)
    mask = np.random.default_rng(2).random(ROWS) < 0.8
    positions = np.arange(ROWS) * 3
    meter = Meter(SPEC, window=16, num_windows=4)
    noisy = np.where(mask[:, None, None], training, -1)  # what stands in padding does not matter
    for start, end in ((0, 11), (11, ROWS)):
        meter.add_routes(
            by_layer(rollout[start:end]),
            by_layer(noisy[start:end]),
            mask=torch.from_numpy(mask[start:end]),
            positions=torch.from_numpy(positions[start:end]),
        )
    readings = meter.read()
    a, b = rollout[mask], training[mask]
    total = mt.compare(mt.Routes.from_ids(SPEC, a), mt.Routes.from_ids(SPEC, b))
    for name, expected in {
        "r3/unequal_routers": total.total.unequal_routers_rate,
        "r3/rerouted_routers": total.total.rerouted_routers_rate,
        "r3/unequal_tokens": total.total.unequal_rows_rate,
        "r3/rerouted_tokens": total.total.rerouted_rows_rate,
        "r3/overlap": total.total.overlap,
        "r3/refused_tokens": 0,
        "ci/r3_mismatch_fraction": 1 - (a[..., :, None] == b[..., None, :]).any(axis=(2, 3)).mean(),
    }.items():
        assert readings.metrics[name] == pytest.approx(expected), name
    for layer, sums in total.by_layer.items():
        assert readings.by_layer[layer]["rerouted_routers"] == pytest.approx(sums.rerouted_routers_rate)
        assert readings.by_layer[layer]["overlap"] == pytest.approx(sums.overlap)
    rerouted = (np.sort(a) != np.sort(b)).any(axis=2)
    for start, end, rate in readings.by_position:
        inside = (positions[mask] >= start) & ((positions[mask] < end) | (end == 64))
        assert rate == pytest.approx(rerouted[inside].mean())
    assert [start for start, _, _ in readings.by_position] == [0, 16, 32, 48]


def test_repeated_ids_are_compared_as_multisets() -> None:
    spec = mt.RouteSpec(layers=[0], top_k=3, num_experts=8, distinct=False)
    meter = Meter(spec)
    meter.add_routes(torch.tensor([[[5, 5, 1], [2, 2, 3]]]), torch.tensor([[[1, 1, 5], [3, 2, 2]]]))
    metrics = meter.read().metrics
    assert metrics["r3/rerouted_routers"] == 0.5
    assert metrics["r3/unequal_routers"] == 1
    assert metrics["r3/overlap"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_ids_that_are_no_experts_are_refused_and_counted(dtype: str) -> None:
    # case D07: 256 experts, and a type in which 256 is 0
    spec = mt.RouteSpec(layers=[0], top_k=2, num_experts=256)
    ids = torch.from_numpy(np.array([[[254, 255], [3, 4]]]).astype(dtype))
    meter = Meter(spec)
    meter.add_routes(ids, ids)
    meter.add_load(ids)
    readings = meter.read()
    assert readings.metrics["r3/refused_tokens"] == 0
    assert readings.load[0, [3, 4, 254, 255]].tolist() == [1] * 4
    wrong = Meter(SPEC)
    bad = by_layer(distinct_ids(4, SPEC)).clone()
    bad[1, 2, 0] = 8
    wrong.add_routes(bad, bad)
    wrong.add_load(bad)
    assert wrong.read().metrics["r3/refused_tokens"] == 0.25
    assert wrong.read().load.sum() == 4 * 3 * 2 - 1


def test_uses_are_shares_of_what_was_replayed() -> None:
    # case I16
    uses = torch.tensor([REPLAYED, REPLAYED, LIVE, FILL, REPLAYED, LIVE, FILL], dtype=torch.uint8)
    meter = Meter(SPEC)
    meter.add_uses(uses, samples=torch.tensor([0, 0, 1, 1, 2, 3, 3]), num_samples=4)
    metrics = meter.read().metrics
    assert metrics["r3/replayed_fraction"] == pytest.approx(3 / 7)
    assert metrics["r3/fill_fraction"] == pytest.approx(2 / 7)
    assert metrics["r3/routed_experts_fallback_fraction"] == pytest.approx(2 / 5)
    assert metrics["r3/routed_experts_fallback_token_routes"] == 2
    assert metrics["r3/routed_experts_fallback_samples"] == 2


def test_mass_and_rank_of_replayed_experts_are_those_of_the_live_scores() -> None:
    random = np.random.default_rng(3)
    scores = random.random((ROWS, 8))
    biased = scores + random.random(8)
    ids = distinct_ids(ROWS, SPEC)[:, 0]
    mask = random.random(ROWS) < 0.7
    spoilt = torch.from_numpy(np.where(mask[:, None], scores, np.nan))
    meter = Meter(SPEC)
    meter.add_scores(
        2,
        spoilt,
        torch.from_numpy(np.where(mask[:, None], ids, -1)),
        selection=torch.from_numpy(biased),
        mask=torch.from_numpy(mask),
    )
    chosen = np.take_along_axis(scores, ids, 1).sum(1) / scores.sum(1)
    order = np.argsort(-biased, axis=1)
    rank = np.array([[np.flatnonzero(order[row] == one)[0] for one in ids[row]] for row in range(ROWS)])
    readings = meter.read()
    assert readings.metrics["r3/live_mass"] == pytest.approx(chosen[mask].mean())
    assert readings.metrics["r3/live_rank"] == pytest.approx(rank[mask].mean())
    assert readings.metrics["r3/live_top_k"] == pytest.approx((rank[mask] < 2).mean())
    assert set(readings.by_layer[1]) == set()
    assert readings.by_layer[2]["live_mass"] == readings.metrics["r3/live_mass"]


def test_load_and_its_violations_leave_padding_out() -> None:
    # case I14
    ids = distinct_ids(ROWS, SPEC)
    mask = np.arange(ROWS) % 4 != 0
    meter = Meter(SPEC)
    meter.add_load(by_layer(ids)[:, :10], mask=torch.from_numpy(mask[:10]))
    for column, layer in enumerate(SPEC.layers):
        meter.add_load(torch.from_numpy(ids[10:, column]), mask=torch.from_numpy(mask[10:]), layer=layer)
    load = mt.stats(mt.Routes.from_ids(SPEC, ids[mask])).load
    readings = meter.read()
    assert np.array_equal(readings.load, load)
    violations = load.max(axis=1) / load.mean(axis=1) - 1
    assert readings.metrics["moe/max_vio"] == pytest.approx(violations.max())
    assert readings.metrics["moe/avg_vio"] == pytest.approx(violations.mean())
    assert readings.by_layer[4]["max_vio"] == pytest.approx(violations[2])


def test_staleness_counts_versions_behind() -> None:
    meter = Meter(SPEC)
    mask = torch.tensor([True, True, True, True, False])
    meter.add_versions(torch.tensor([7, 5, -1, 4, 0]), current=7, mask=mask)
    metrics = meter.read().metrics
    assert metrics["r3/staleness_mean"] == pytest.approx(5 / 3)
    assert metrics["r3/staleness_max"] == 3
    assert metrics["r3/stale_tokens"] == pytest.approx(2 / 3)
    assert metrics["r3/unversioned_tokens"] == 0.25


def test_kl_and_extreme_tokens_are_those_of_their_formulas() -> None:
    random = np.random.default_rng(4)
    rollout = -random.exponential(1, (4, 10)).astype(np.float32)
    training = rollout + random.normal(0, 0.6, (4, 10)).astype(np.float32)
    mask = random.random((4, 10)) < 0.7
    meter = Meter(SPEC)
    meter.add_logprobs(
        torch.from_numpy(rollout),
        torch.from_numpy(np.where(mask, training, np.nan)),
        mask=torch.from_numpy(mask),
    )
    log_ratio = training.astype(np.float64)[mask] - rollout.astype(np.float64)[mask]
    ratio = np.exp(log_ratio)
    metrics = meter.read().metrics
    assert metrics["rollout_train_k3_kl"] == pytest.approx((ratio - 1 - log_ratio).mean())
    assert metrics["mismatch_kl"] == metrics["rollout_train_k3_kl"]
    assert metrics["rollout_train_k1_kl"] == pytest.approx(-log_ratio.mean())
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(np.abs(log_ratio).mean())
    assert metrics["train_rollout_logprob_abs_diff_max"] == pytest.approx(np.abs(log_ratio).max())
    extreme = np.maximum(ratio, 1 / ratio) > 2
    assert 0 < extreme.mean() < 1
    assert metrics["rollout_train_extreme_frac_tau2"] == pytest.approx(extreme.mean())


def test_what_was_never_added_is_absent_and_never_zero() -> None:
    meter = Meter(SPEC)
    assert meter.read().metrics == {}
    nothing = torch.zeros(5, dtype=torch.bool)
    fill(meter, mask=nothing)
    meter.add_versions(torch.zeros(0, dtype=torch.int64), current=1)
    # counts of a step in which nothing counted are left out as well
    assert meter.read().metrics == {}
    fill(meter)
    assert meter.read().metrics
    meter.reset()
    assert meter.read().metrics == {}


def fill(meter: Meter, *, seed: int = 0, mask: torch.Tensor | None = None) -> None:
    """A step of five rows, with everything that can be added."""
    device = meter.device
    random = np.random.default_rng(seed)
    ids = by_layer(distinct_ids(5, SPEC, seed=seed)).to(device)
    other = by_layer(distinct_ids(5, SPEC, seed=seed + 100)).to(device)
    mask = None if mask is None else mask.to(device)
    meter.add_routes(ids, other, mask=mask, positions=torch.arange(5, device=device))
    meter.add_uses(torch.tensor([REPLAYED, LIVE, FILL, REPLAYED, LIVE], device=device), mask=mask)
    scores = torch.from_numpy(random.random((5, 8))).to(device)
    meter.add_scores(4, scores, ids[2], selection=scores, mask=mask)
    meter.add_load(ids, mask=mask)
    meter.add_load(other[0], mask=mask, layer=1)
    meter.add_versions(torch.arange(5, device=device) + seed - 2, current=9, mask=mask)
    logprobs = torch.from_numpy(random.random((2, 5))).to(device)
    meter.add_logprobs(logprobs[0], logprobs[1], mask=mask)


class Waits(TorchDispatchMode):
    """Notes the operations that need data on the host: numbers, and results whose size follows from data."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        boolean_index = name.startswith("index") and any(
            one is not None and one.dtype == torch.bool
            for one in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else [])
        )
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "unique2", "equal") or boolean_index:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_adding_and_merging_never_wait_for_the_device() -> None:
    with Waits() as waits:
        fill(meter := Meter(SPEC), mask=torch.tensor([True, True, False, True, True]))
        meter.merge(Meter(SPEC))
    assert waits.seen == []
    with waits:
        assert torch.tensor([3]).item() == 3
    assert waits.seen == ["_local_scalar_dense"]
    # Tensors of the meta device have no data at all: whatever looks at some fails.
    fill(Meter(SPEC, device="meta"), mask=torch.tensor([True, True, False, True, True]))


def reduce_on_a_rank(rank: int, rendezvous: str, results: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    meter = Meter(SPEC)
    fill(meter, seed=rank)
    reduced = meter.reduce()
    results.put((rank, meter.read().metrics, reduced.read().metrics))
    torch.distributed.destroy_process_group()


def test_sums_reduce_over_ranks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    rendezvous = f"file://{tmp_path}/rendezvous"
    ranks = [context.Process(target=reduce_on_a_rank, args=(rank, rendezvous, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = {rank: (own, reduced) for rank, own, reduced in (results.get(timeout=120) for _ in ranks)}
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    together = Meter(SPEC)
    for seed in range(2):
        alone = Meter(SPEC)
        fill(alone, seed=seed)
        assert found[seed][0] == alone.read().metrics, "reducing changed the rank's own meter"
        together.merge(alone)
    assert found[0][1] == found[1][1]
    assert found[0][1] == pytest.approx(together.read().metrics)


def test_what_does_not_fit_is_named_and_nothing_is_added() -> None:
    meter = Meter(SPEC)
    ids = by_layer(distinct_ids(5, SPEC))
    short = torch.ones(4, dtype=torch.bool)
    cases: list[tuple[type[mt.Error], str, Any]] = [
        (mt.WrongShapeError, "rollout: expected", lambda: meter.add_routes(ids[:2], ids)),
        (mt.WrongShapeError, "training: expected", lambda: meter.add_routes(ids, ids[:, :4])),
        (mt.WrongTypeError, "training: expected integers", lambda: meter.add_routes(ids, ids.float())),
        (
            mt.WrongShapeError,
            "mask: expected",
            lambda: meter.add_routes(ids, ids, mask=short),
        ),
        (mt.WrongTypeError, "mask: expected bool", lambda: meter.add_routes(ids, ids, mask=ids[0, :, 0])),
        (mt.OutOfRangeError, "layer: expected one of", lambda: meter.add_load(ids[0], layer=3)),
        (mt.WrongShapeError, "scores: expected", lambda: meter.add_scores(1, torch.rand(5, 9), ids[0])),
        (mt.WrongTypeError, "rollout: expected floats", lambda: meter.add_logprobs(ids, ids)),
        (mt.InvalidArgumentError, "other: expected", lambda: meter.merge(Meter(SPEC, window=5))),
        (mt.InvalidArgumentError, "window: expected", lambda: Meter(SPEC, window=0)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
    assert meter.read().metrics == {}
