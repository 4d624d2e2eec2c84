"""One interceptor per router module: forcers decide, taps see what the experts receive.

While at least one tap or forcer is attached, the module's forward runs under a TorchFunctionMode that meets
its expert-space top-k: the one call of `topk` over scores [n, num_experts] with k = top_k. The model's own
code goes on from there, so weights are made, scaled and differentiated by the model itself. Replaying a
router's own choice gives the same bits. When the last handle is removed, the module is as it was.

Group-limited routers choose among scores that are masked outside of some groups. A forced id may stand in
another group, and some routers (DeepSeek-V2) make weights of the top-k's values: these come from the scores
that `masked_fill` was given. A score masked in another way would be a weight of 0 and is refused by name.

Ownership: interceptors are kept by weak reference to their module and keep no module alive. A deep copy of a
module that is being intercepted is not intercepted.
Threads: attach and detach from any thread; forwards may run in several threads at once and may be nested or
repeated (recomputation); each forward has its own state. Taps and forcers run on the forward's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from moetape import ConflictError, InvalidArgumentError, UnsupportedError
from moetape.models.arguments import check
from moetape.models.override import Override
from moetape.models.routers import Router

Tap = Callable[[int, torch.Tensor], object]
"""tap(layer, ids [n, K]): ids are int64 on the router's device, read only."""

Forcer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], "torch.Tensor | None"]
"""forcer(layer, scores [n, E], live_values [n, K], live_ids [n, K]) -> ids int64 [n, K], or None for live."""

Late = Callable[[int, torch.Tensor], object]
"""late(layer, flag): a bool on a device, whether the router has no score of a forced expert."""

_lock = RLock()
_interceptors: weakref.WeakKeyDictionary[nn.Module, Interceptor] = weakref.WeakKeyDictionary()


class Handle:
    """Takes one tap or forcer off again; removing twice does nothing."""

    def __init__(self, remove: Callable[[Handle], None]) -> None:
        self._remove: Callable[[Handle], None] | None = remove

    def remove(self) -> None:
        with _lock:
            remove, self._remove = self._remove, None
            if remove is not None:
                remove(self)


class Interceptor:
    """What stands in front of one router's top-k. Get it from `interceptor(router)`, never build one."""

    def __init__(self, router: Router) -> None:
        self.layer = router.layer
        self.name = router.name
        self.top_k = router.top_k
        self.num_experts = router.num_experts
        self._module = weakref.ref(router.module)
        self._taps: dict[Handle, Tap] = {}
        self._forcers: dict[Handle, tuple[Forcer, Late | None]] = {}
        self._override: Override | None = None

    @property
    def module(self) -> nn.Module | None:
        """The router's module; None once it is gone."""
        return self._module()

    def add_tap(self, tap: Tap) -> Handle:
        """Call `tap` with the ids that the experts receive, once per forward. Taps run in the order added."""
        return self._add(tap, "_taps")

    def add_forcer(self, forcer: Forcer, late: Late | None = None) -> Handle:
        """Let `forcer` choose the ids; None leaves the live choice. Two that choose are a ConflictError.

        With `late`, a forward on a device does not wait there to know of forced experts without a score.
        """
        return self._add((forcer, late), "_forcers")

    def _add(self, function: Any, where: str) -> Handle:
        def remove(handle: Handle) -> None:
            setattr(
                self, where, {key: value for key, value in getattr(self, where).items() if key is not handle}
            )
            if not self._taps and not self._forcers:
                self._uninstall()

        with _lock:
            module = self._module()
            if module is None:
                raise InvalidArgumentError(
                    f"router {self.name}: expected a living module, got one that is gone"
                )
            attached = _interceptors.get(module)
            if attached is not None and attached is not self:
                return attached._add(function, where)
            handle = Handle(remove)
            # Replaced, never changed: a forward in another thread iterates over the old one.
            setattr(self, where, {**getattr(self, where), handle: function})
            self._install(module)
            return handle

    def _install(self, module: nn.Module) -> None:
        _interceptors[module] = self
        if self._override is None:
            self._override = Override(module, "forward", self._forward)

    def _uninstall(self) -> None:
        if (module := self._module()) is not None:
            _interceptors.pop(module, None)
        if self._override is not None:
            self._override.remove()
            self._override = None

    def _forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        mode = _TopKMode(self)
        with mode:
            result = forward(*args, **kwargs)
        mode.check()
        return result

    def _top_k(self, scores: torch.Tensor, unmasked: torch.Tensor, live: Any) -> Any:
        """The result of the router's top-k after forcers and taps."""
        values, ids = live
        chosen = [
            (forced, late)
            for forcer, late in self._forcers.values()
            if (forced := forcer(self.layer, scores, values, ids)) is not None
        ]
        if len(chosen) > 1:
            raise ConflictError(f"router {self.name}: expected one forcer to choose, got {len(chosen)}")
        result = live
        if chosen:
            forced, late = chosen[0]
            ids = self._checked(forced, ids)
            values = unmasked.gather(1, ids)
            masked = _masked(unmasked.detach(), values.detach(), live[0].detach())
            if late is None or masked.device.type == "cpu":
                self._refuse_masked(masked, values.detach(), ids)
            else:
                late(self.layer, masked.any())
            result = torch.return_types.topk((values, ids))
        for tap in self._taps.values():
            tap(self.layer, ids)
        return result

    def _refuse_masked(self, masked: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> None:
        if masked.any():
            row, column = masked.nonzero()[0].tolist()
            raise UnsupportedError(
                f"router {self.name}: expected forced experts that it has a score for, got expert "
                f"{int(ids[row, column])} in row {row} with {float(values[row, column])}, a masked score "
                "that would be a weight of 0"
            )

    def _checked(self, forced: torch.Tensor, live_ids: torch.Tensor) -> torch.Tensor:
        if forced.dtype != torch.int64 or forced.shape != live_ids.shape:
            raise InvalidArgumentError(
                f"router {self.name}: expected forced ids int64 {list(live_ids.shape)}, "
                f"got {forced.dtype} {list(forced.shape)}"
            )
        return forced.to(live_ids.device)


def _masked(scores: torch.Tensor, values: torch.Tensor, live_values: torch.Tensor) -> torch.Tensor:
    """Which forced ids are masked experts: the lowest score is 0 or -inf, and no live choice has it."""
    lowest = scores.amin(1, keepdim=True)
    is_mask = (lowest == 0) | (lowest == -torch.inf)
    return is_mask & (values == lowest) & (live_values != lowest).all(1, keepdim=True)


def interceptor(router: Router) -> Interceptor:
    """The interceptor of a router's module; the same one as long as anything is attached to it."""
    check("router", router, Router, "a Router of find_routers")
    with _lock:
        existing = _interceptors.get(router.module)
        if existing is None:
            return Interceptor(router)
        have = (existing.layer, existing.top_k, existing.num_experts)
        want = (router.layer, router.top_k, router.num_experts)
        if have != want:
            raise InvalidArgumentError(
                f"router {router.name}: expected layer, top-k, experts {have} as attached, got {want}"
            )
        return existing


def num_intercepted() -> int:
    """How many router modules are intercepted in this process now."""
    return len(_interceptors)


def remove_all(handles: Iterable[Handle]) -> None:
    """Remove every handle."""
    for handle in handles:
        handle.remove()


class _TopKMode(TorchFunctionMode):  # type: ignore[misc]
    """Lives for one forward of one router."""

    def __init__(self, active: Interceptor) -> None:
        super().__init__()
        self._active = active
        self._num_hits = 0
        self._others: list[str] = []
        self._masked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "masked_fill":
            self._masked.append((result, args[0] if args else kwargs["input"]))
        if name != "topk":
            return result
        scores, k, plain = _topk_call(*args, **kwargs)
        active = self._active
        if not plain or scores.dim() != 2 or scores.shape[1] != active.num_experts or k != active.top_k:
            self._others.append(f"top {k} of {list(scores.shape)}")
            return result
        self._num_hits += 1
        if self._num_hits > 1:
            raise UnsupportedError(
                f"router {active.name}: expected one top {active.top_k} of {active.num_experts} in a "
                "forward, got a second"
            )
        return active._top_k(scores, self._unmasked(scores), result)

    def _unmasked(self, scores: torch.Tensor) -> torch.Tensor:
        for masked, source in reversed(self._masked):
            if masked is scores:
                return self._unmasked(source)
        return scores

    def check(self) -> None:
        if self._num_hits == 0:
            active = self._active
            seen = ", ".join(self._others) or "none"
            raise UnsupportedError(
                f"router {active.name}: expected one top {active.top_k} of [n, {active.num_experts}] in a "
                f"forward, got {seen}"
            )


def _topk_call(
    input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> tuple[torch.Tensor, int, bool]:
    """The scores, k, and whether the call takes the largest along the last dimension into new tensors."""
    plain = dim in (-1, input.dim() - 1) and largest and out is None
    return input, k, plain
