"""Meter: how a training step's routes and logprobs differ from the rollout's, without waiting for the device.

    meter = Meter(spec, device="cuda")
    meter.add_routes(rollout_ids, training_ids, mask=tokens)   # [layers, rows, k] each
    meter.add_uses(uses)                                       # what Plan.apply says of each row
    meter.add_scores(layer, scores, ids, mask=tokens)          # in the router's forward
    meter.add_logprobs(rollout_logprobs, training_logprobs, mask=answer)
    log(meter.reduce().read().metrics)                         # two all-reduces, one copy to the host

All that a Meter keeps are sums and maxima in two tensors on its device, so that they add up over
micro-batches and reduce over ranks. Everything but read() is made of torch operations that never wait for
the device: nothing is copied to the host, no shape follows from data. `mask` is bool [rows] everywhere,
True = counts; False (padding, prompts) is as if it were not there, whatever stands in it: NaN and ids below
0 too. Counts are exact up to 2^53. Gradients do not flow. Thread rule: one thread at a time.

Raises WrongShapeError and WrongTypeError, naming the argument, before anything is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from moetape import RouteSpec
from moetape.errors import InvalidArgumentError, OutOfRangeError, WrongShapeError, WrongTypeError
from moetape.replay import FILL, LIVE, REPLAYED

__all__ = ["Meter", "Readings"]

Floats = npt.NDArray[np.float64]
_Method = TypeVar("_Method", bound=Callable[..., None])
_TAU = 2.0


def _no_grad(method: _Method) -> _Method:
    result: _Method = torch.no_grad()(method)
    return result


@dataclass(frozen=True)
class Readings:
    """What a Meter held when it was read; on the host.

    metrics: by the names of docs/metrics.md; what was never added is left out, never 0.
    by_layer: {layer: {name: value}}. by_position: (start, end, rate of rerouted routers).
    load: how often each expert was chosen, [layers, experts].
    """

    metrics: dict[str, float]
    by_layer: dict[int, dict[str, float]]
    by_position: list[tuple[int, int, float]]
    load: Floats


class Meter:
    """Sums over a step. Made for one spec; see the module."""

    def __init__(
        self,
        spec: RouteSpec,
        *,
        device: torch.device | str = "cpu",
        num_windows: int = 64,
        window: int = 1024,
    ) -> None:
        """Make an empty meter.

        num_windows, window: how by_position is cut; later positions fall into the last window.
        """
        if num_windows < 1 or window < 1:
            raise InvalidArgumentError(
                f"num_windows, window: expected 1 or more, got {num_windows} and {window}"
            )
        self.spec = spec
        self._window = window
        layers, experts = spec.num_moe_layers, spec.num_experts
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (), "unequal_rows": (), "rerouted_rows": (), "refused_rows": (),
            "routers": (layers,), "unequal": (layers,), "rerouted": (layers,), "shared": (layers,),
            "disjoint": (layers,),
            "position_routers": (num_windows,), "position_rerouted": (num_windows,),
            "uses": (3,), "fallback_samples": (),
            "scored": (layers,), "live_mass": (layers,), "live_rank": (layers,), "live_top": (layers,),
            "load": (layers, experts),
            "versions": (), "staleness": (), "stale_rows": (), "unversioned": (),
            "logprobs": (), "k1": (), "k3": (), "abs_diff": (), "extreme": (),
        }  # fmt: skip
        self._sums = _Fields(shapes, device)
        self._maxima = _Fields({"staleness": (), "abs_diff": ()}, device)
        self.reset()

    @property
    def device(self) -> torch.device:
        return self._sums.flat.device

    @_no_grad
    def add_routes(
        self,
        rollout: torch.Tensor,
        training: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Adds how far two records of the same tokens agree, and nothing of the load.

        rollout, training: integers [layers, rows, k], all layers of the spec. positions: integers [rows], for
        by_position. A row with an id outside [0, num_experts) is refused: counted as such, and not compared.
        """
        rollout, training = self._all_ids("rollout", rollout), self._all_ids("training", training)
        shape = rollout.shape
        if training.shape != shape:
            raise WrongShapeError(f"training: expected {list(shape)}, got {list(training.shape)}")
        counts = self._mask(mask, shape[1])
        if positions is not None:
            positions = self._rows("positions", _integers("positions", positions), shape[1])
        bad = self._bad(rollout) | self._bad(training)
        refused = bad.any(dim=0) & counts
        counts = counts & ~refused
        a, b = self._keys(rollout), self._keys(training)
        unequal = (rollout != training).any(dim=-1) & counts
        shared = (a.unsqueeze(-1) == b.unsqueeze(-2)).any(dim=-1).sum(dim=-1) * counts
        rerouted = (shared != shape[2]) & counts
        sums = self._sums
        sums.add("rows", counts.sum())
        sums.add("refused_rows", refused.sum())
        sums.add("unequal_rows", unequal.any(dim=0).sum())
        sums.add("rerouted_rows", rerouted.any(dim=0).sum())
        sums.add("routers", counts.sum().expand(shape[0]))
        sums.add("unequal", unequal.sum(dim=1))
        sums.add("rerouted", rerouted.sum(dim=1))
        sums.add("shared", shared.sum(dim=1))
        sums.add("disjoint", ((shared == 0) & counts).sum(dim=1))
        if positions is None:
            return
        last = sums["position_routers"].shape[0] - 1
        window = torch.div(positions, self._window, rounding_mode="floor").clamp(0, last).long()
        sums["position_routers"].index_add_(0, window, counts.to(torch.float64) * shape[0])
        sums["position_rerouted"].index_add_(0, window, rerouted.sum(dim=0).to(torch.float64))

    @_no_grad
    def add_uses(
        self,
        uses: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        samples: torch.Tensor | None = None,
        num_samples: int = 1,
    ) -> None:
        """Adds what became of each row: REPLAYED, LIVE or FILL of moetape.replay; [rows], as of Plan.apply.

        samples: integers [rows] below num_samples, whose sample a row is of; default: all of one. A sample
        fell back if one of its rows is LIVE.
        """
        uses = self._rows("uses", _integers("uses", uses), None)
        counts = self._mask(mask, uses.shape[0])
        if num_samples < 1:
            raise InvalidArgumentError(f"num_samples: expected 1 or more, got {num_samples}")
        for use in (FILL, REPLAYED, LIVE):
            self._sums["uses"][use].add_(((uses == use) & counts).sum())
        live = ((uses == LIVE) & counts).double()
        if samples is None:
            place = torch.zeros(uses.shape[0], dtype=torch.int64, device=self.device)
        else:
            place = self._rows("samples", _integers("samples", samples), uses.shape[0]).long()
        fell_back = torch.zeros(num_samples, dtype=torch.float64, device=self.device)
        fell_back.scatter_reduce_(0, place.clamp(0, num_samples - 1), live, "amax")
        self._sums.add("fallback_samples", fell_back.sum())

    @_no_grad
    def add_scores(
        self,
        layer: int,
        scores: torch.Tensor,
        ids: torch.Tensor,
        *,
        selection: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> None:
        """Adds what the live router thinks of replayed experts of one layer.

        scores: [rows, experts], of 0 or more: softmax or sigmoid of the logits. ids: integers [rows, k].
        selection: what the router's own top-k looks at, where that is not `scores` (with a bias, in groups).
        Mass is the share of a row's scores that its ids have; rank counts the experts before an id, from 0.
        """
        column = self._column(layer)
        rows = scores.shape[0] if scores.dim() == 2 else -1
        if scores.dim() != 2 or scores.shape[1] > self.spec.num_experts or scores.shape[1] < self.spec.top_k:
            raise WrongShapeError(
                f"scores: expected [rows, {self.spec.num_experts}], got {list(scores.shape)}"
            )
        ids = _integers("ids", ids)
        if tuple(ids.shape) != (rows, self.spec.top_k):
            raise WrongShapeError(f"ids: expected {[rows, self.spec.top_k]}, got {list(ids.shape)}")
        if selection is not None and selection.shape != scores.shape:
            raise WrongShapeError(f"selection: expected {list(scores.shape)}, got {list(selection.shape)}")
        counts = self._mask(mask, rows)
        counts = counts & ~((ids < 0) | (ids >= scores.shape[1])).any(dim=-1)
        inside = torch.where(counts.unsqueeze(-1), ids, 0).long()
        chosen = scores.gather(1, inside).double().sum(dim=-1)
        mass = chosen / scores.double().sum(dim=-1)
        looked_at = scores if selection is None else selection
        ranks = [
            (looked_at > looked_at.gather(1, inside[:, k : k + 1])).sum(dim=-1) for k in range(ids.shape[1])
        ]
        rank = torch.stack(ranks, dim=-1)
        for name, value in {
            "scored": counts.double(),
            "live_mass": mass,
            "live_rank": rank.double().mean(dim=-1),
            "live_top": (rank < ids.shape[1]).double().mean(dim=-1),
        }.items():
            self._sums[name][column].add_(torch.where(counts, value, 0.0).sum())

    @_no_grad
    def add_load(
        self, ids: torch.Tensor, *, mask: torch.Tensor | None = None, layer: int | None = None
    ) -> None:
        """Adds how often each expert was chosen: integers [layers, rows, k], or [rows, k] of one layer.

        Ids outside [0, num_experts) are not counted.
        """
        if layer is None:
            load, all_ids = self._sums["load"], self._all_ids("ids", ids)
        else:
            ids = _integers("ids", ids)
            if ids.dim() != 2 or ids.shape[1] != self.spec.top_k:
                raise WrongShapeError(f"ids: expected [rows, {self.spec.top_k}], got {list(ids.shape)}")
            column = self._column(layer)
            load, all_ids = self._sums["load"][column : column + 1], ids.unsqueeze(0)
        counts = self._mask(mask, all_ids.shape[1]).view(1, -1, 1)
        counts = counts & (all_ids >= 0) & (all_ids < self.spec.num_experts)
        place = torch.where(counts, all_ids, 0).long().flatten(1)
        load.scatter_add_(1, place, counts.double().flatten(1))

    @_no_grad
    def add_versions(self, versions: torch.Tensor, current: int, *, mask: torch.Tensor | None = None) -> None:
        """Adds how many policy versions rows are behind `current`: integers [rows], -1 = unknown."""
        versions = self._rows("versions", _integers("versions", versions), None)
        counts = self._mask(mask, versions.shape[0])
        known = counts & (versions >= 0)
        behind = torch.where(known, current - versions.long(), 0).double()
        self._sums.add("versions", known.sum())
        self._sums.add("staleness", behind.sum())
        self._sums.add("stale_rows", (behind > 0).sum())
        self._sums.add("unversioned", (counts & (versions < 0)).sum())
        self._maxima.raise_to("staleness", torch.where(known, behind, -math.inf))

    @_no_grad
    def add_logprobs(
        self, rollout: torch.Tensor, training: torch.Tensor, *, mask: torch.Tensor | None = None
    ) -> None:
        """Adds how far the logprobs of the sampled tokens differ: floats of one shape, mask of the same.

        With log r = training - rollout, tokens being the rollout's samples: k1 = -log r and
        k3 = r - 1 - log r estimate KL(rollout, training); F(2) is the share of tokens with r above 2 or
        below 1/2.
        """
        if rollout.shape != training.shape:
            raise WrongShapeError(f"training: expected {list(rollout.shape)}, got {list(training.shape)}")
        for name, tensor in (("rollout", rollout), ("training", training)):
            if not tensor.is_floating_point():
                raise WrongTypeError(f"{name}: expected floats, got {tensor.dtype}")
        counts = self._mask(None if mask is None else mask.reshape(-1), rollout.numel())
        log_ratio = torch.where(counts, (training.double() - rollout.double()).reshape(-1), 0.0)
        distance = log_ratio.abs()
        self._sums.add("logprobs", counts.sum())
        self._sums.add("k1", -log_ratio.sum())
        self._sums.add("k3", (torch.expm1(log_ratio) - log_ratio).sum())
        self._sums.add("abs_diff", distance.sum())
        self._sums.add("extreme", (distance > math.log(_TAU)).sum())
        self._maxima.raise_to("abs_diff", torch.where(counts, distance, -math.inf))

    def merge(self, other: Meter) -> None:
        """As if what was added to `other` had been added here; both of one spec and one cut of positions."""
        same = self.spec == other.spec and self._window == other._window
        if not same or self._sums.flat.shape != other._sums.flat.shape:
            raise InvalidArgumentError("other: expected a meter of the same spec, windows and window")
        self._sums.flat.add_(other._sums.flat)
        torch.maximum(self._maxima.flat, other._maxima.flat, out=self._maxima.flat)

    def reset(self) -> None:
        self._sums.flat.zero_()
        self._maxima.flat.fill_(-math.inf)

    def reduce(self, group: Any = None) -> Meter:
        """A meter with the sums over all ranks of a process group, on each of them; this one stays as it is.

        Every rank calls it, with meters of one spec. Ranks that hold copies of the same rows (tensor parallel
        ones) must not count them twice: mask them, or give a group without them.
        """
        result = Meter(
            self.spec,
            device=self.device,
            num_windows=self._sums["position_routers"].shape[0],
            window=self._window,
        )
        result.merge(self)
        torch.distributed.all_reduce(result._sums.flat, torch.distributed.ReduceOp.SUM, group=group)
        torch.distributed.all_reduce(result._maxima.flat, torch.distributed.ReduceOp.MAX, group=group)
        return result

    def read(self) -> Readings:
        """Waits for the device, with one copy, and gives the numbers."""
        flat = torch.cat([self._sums.flat, self._maxima.flat]).cpu().numpy()
        num_sums = self._sums.flat.shape[0]
        return _readings(
            self.spec, self._window, self._sums.split(flat[:num_sums]), self._maxima.split(flat[num_sums:])
        )

    def _all_ids(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        layers, top_k = self.spec.num_moe_layers, self.spec.top_k
        if ids.dim() != 3 or ids.shape[0] != layers or ids.shape[2] != top_k:
            raise WrongShapeError(f"{name}: expected [{layers}, rows, {top_k}], got {list(ids.shape)}")
        return _integers(name, ids)

    def _rows(self, name: str, tensor: torch.Tensor, num_rows: int | None) -> torch.Tensor:
        if tensor.dim() != 1 or (num_rows is not None and tensor.shape[0] != num_rows):
            expected = "[rows]" if num_rows is None else [num_rows]
            raise WrongShapeError(f"{name}: expected {expected}, got {list(tensor.shape)}")
        return tensor

    def _mask(self, mask: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        if mask is None:
            return torch.ones(num_rows, dtype=torch.bool, device=self.device)
        if mask.dtype != torch.bool:
            raise WrongTypeError(f"mask: expected bool, got {mask.dtype}")
        return self._rows("mask", mask, num_rows)

    def _column(self, layer: int) -> int:
        if layer not in self.spec.layers:
            raise OutOfRangeError(f"layer: expected one of {list(self.spec.layers)}, got {layer}")
        return self.spec.layers.index(layer)

    def _bad(self, ids: torch.Tensor) -> torch.Tensor:
        return ((ids < 0) | (ids >= self.spec.num_experts)).any(dim=-1)

    def _keys(self, ids: torch.Tensor) -> torch.Tensor:
        """Different numbers for the ids of a list: those that stand twice are told apart."""
        if self.spec.distinct:
            return ids
        same = ids.unsqueeze(-1) == ids.unsqueeze(-2)
        before = same.tril(diagonal=-1).sum(dim=-1)
        return ids.long() * ids.shape[-1] + before


class _Fields:
    """Named parts of one tensor of float64."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: torch.device | str) -> None:
        self._shapes = shapes
        self.flat = torch.zeros(
            sum(math.prod(shape) for shape in shapes.values()), dtype=torch.float64, device=device
        )
        self._views: dict[str, torch.Tensor] = self.split(self.flat)

    def split(self, flat: Any) -> dict[str, Any]:
        parts, first = {}, 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            parts[name] = flat[first : first + size].reshape(shape)
            first += size
        return parts

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def add(self, name: str, value: torch.Tensor) -> None:
        self._views[name].add_(value)

    def raise_to(self, name: str, values: torch.Tensor) -> None:
        if values.shape[0] > 0:
            torch.maximum(self._views[name], values.max(), out=self._views[name])


def _integers(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """As int32 or int64: bounds do not fit narrower types, which 256 would wrap to 0 in."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise WrongTypeError(f"{name}: expected integers, got {tensor.dtype}")
    if tensor.dtype in (torch.int32, torch.int64):
        return tensor
    narrow = tensor.dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16)
    return tensor.to(torch.int32 if narrow else torch.int64)


def _readings(spec: RouteSpec, window: int, sums: dict[str, Floats], maxima: dict[str, Floats]) -> Readings:
    metrics: dict[str, float] = {}

    def rate(name: str, part: Any, whole: Any) -> None:
        if whole > 0:
            metrics[name] = float(part / whole)

    routers = sums["routers"].sum()
    rate("r3/unequal_routers", sums["unequal"].sum(), routers)
    rate("r3/rerouted_routers", sums["rerouted"].sum(), routers)
    rate("ci/r3_mismatch_fraction", sums["disjoint"].sum(), routers)
    rate("r3/overlap", sums["shared"].sum(), routers * spec.top_k)
    rate("r3/unequal_tokens", sums["unequal_rows"], sums["rows"])
    rate("r3/rerouted_tokens", sums["rerouted_rows"], sums["rows"])
    rate("r3/refused_tokens", sums["refused_rows"], sums["rows"] + sums["refused_rows"])
    used = sums["uses"].sum()
    rate("r3/replayed_fraction", sums["uses"][REPLAYED], used)
    rate("r3/fill_fraction", sums["uses"][FILL], used)
    rate("r3/routed_experts_fallback_fraction", sums["uses"][LIVE], used - sums["uses"][FILL])
    if used > 0:
        metrics["r3/routed_experts_fallback_samples"] = float(sums["fallback_samples"])
        metrics["r3/routed_experts_fallback_token_routes"] = float(sums["uses"][LIVE])
    scored = sums["scored"].sum()
    rate("r3/live_mass", sums["live_mass"].sum(), scored)
    rate("r3/live_rank", sums["live_rank"].sum(), scored)
    rate("r3/live_top_k", sums["live_top"].sum(), scored)
    rate("r3/staleness_mean", sums["staleness"], sums["versions"])
    rate("r3/stale_tokens", sums["stale_rows"], sums["versions"])
    rate("r3/unversioned_tokens", sums["unversioned"], sums["versions"] + sums["unversioned"])
    tokens = sums["logprobs"]
    rate("rollout_train_k3_kl", sums["k3"], tokens)
    rate("rollout_train_k1_kl", sums["k1"], tokens)
    rate("rollout_train_extreme_frac_tau2", sums["extreme"], tokens)
    rate("train_rollout_logprob_abs_diff", sums["abs_diff"], tokens)
    rate("mismatch_kl", sums["k3"], tokens)
    for name, key in (
        ("r3/staleness_max", "staleness"),
        ("train_rollout_logprob_abs_diff_max", "abs_diff"),
    ):
        if maxima[key] > -math.inf:
            metrics[name] = float(maxima[key])
    violations = _violations(sums["load"])
    if violations.size > 0:
        metrics["moe/max_vio"] = float(violations.max())
        metrics["moe/avg_vio"] = float(violations.mean())
        metrics["moe/min_vio"] = float(violations.min())
    return Readings(metrics, _by_layer(spec, sums), _by_position(window, sums), sums["load"].copy())


def _violations(load: Floats) -> Floats:
    """Busiest expert / mean - 1 of each layer that has a load."""
    mean = load.mean(axis=1)
    some = mean > 0
    violations: Floats = load[some].max(axis=1, initial=0) / mean[some] - 1
    return violations


def _by_layer(spec: RouteSpec, sums: dict[str, Floats]) -> dict[int, dict[str, float]]:
    wholes = {
        "unequal_routers": ("unequal", "routers", 1),
        "rerouted_routers": ("rerouted", "routers", 1),
        "overlap": ("shared", "routers", spec.top_k),
        "live_mass": ("live_mass", "scored", 1),
        "live_rank": ("live_rank", "scored", 1),
        "live_top_k": ("live_top", "scored", 1),
    }
    result: dict[int, dict[str, float]] = {}
    for column, layer in enumerate(spec.layers):
        values = result.setdefault(layer, {})
        for name, (part, whole, times) in wholes.items():
            if sums[whole][column] > 0:
                values[name] = float(sums[part][column] / (sums[whole][column] * times))
        violation = _violations(sums["load"][column : column + 1])
        if violation.size > 0:
            values["max_vio"] = float(violation[0])
    return result


def _by_position(window: int, sums: dict[str, Floats]) -> list[tuple[int, int, float]]:
    routers, rerouted = sums["position_routers"], sums["position_rerouted"]
    return [
        (i * window, (i + 1) * window, float(rerouted[i] / routers[i]))
        for i in range(len(routers))
        if routers[i] > 0
    ]
