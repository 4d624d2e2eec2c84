"""Replays recorded routes in a torch model of the transformers library.

    session = attach(model)                      # once
    with session.replay([routes, ...]):          # one per sequence, in batch order
        loss = model(**batch).loss
    loss.backward()                              # here or in the block; recomputation sees the same ids

Routers take the recorded experts; weights are made by the model's own code, and gradients flow through them.
Tokens without a recorded row (missing rows, the last token, padding) are routed by the router itself, and
that choice is kept for recomputation.

One block is one forward pass of the attached model. Any number of blocks may wait for their backward, in
any order: each layer's checkpoint function is wrapped while replay is in use, so that the graph itself holds
the ids of its micro-batch. Checkpoints written by hand around layers (torch.utils.checkpoint) carry no such
mark: they work while one micro-batch waits for its backward, and are refused when several do.

Thread rule: one block at a time, its forward on the thread that opened it; the backward pass on any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.models import Router, find_routers, interceptor, spec_of, spec_of_routers
from moetape.models.arguments import check_excluded, check_model
from moetape.models.forward import ForwardInputs
from moetape.trainers import _alignment as alignment
from moetape.trainers import _autograd as autograd
from moetape.trainers._checkpoint import wrap_all
from moetape.trainers._flight import Flights
from moetape.trainers._microbatch import Counts, Current, MicroBatch, narrow

__all__ = ["Counts", "Replay", "Session", "attach"]

_sessions: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Session]] = weakref.WeakKeyDictionary()


def attach(model: torch.nn.Module, *, excluded: Mapping[int, str] | None = None) -> Session:
    """Give the replay session of a model; the same one while it has one.

    excluded: {layer: reason} for MoE layers that were left out of the record; they are routed live.
    Nothing of the model is changed outside of replay. Raises, by name, for routers that moetape.models does
    not understand and for dense models. The session does not keep the model alive.
    """
    check_model(model)
    check_excluded(excluded)
    known = _sessions.get(model)
    session = known() if known is not None else None
    if session is None:
        session = Session(model, excluded)
        _sessions[model] = weakref.ref(session)
    elif excluded is not None and dict(excluded) != session.spec.excluded:
        raise mt.InvalidArgumentError(
            f"excluded: expected {session.spec.excluded} as the model's session has, got {dict(excluded)}"
        )
    return session


class Session:
    """Replay for one model. Made by attach()."""

    def __init__(self, model: torch.nn.Module, excluded: Mapping[int, str] | None) -> None:
        self.spec: mt.RouteSpec = spec_of(model, excluded=excluded)
        self._model = weakref.ref(model)
        self._take(find_routers(model, excluded=excluded))
        self._current = Current()
        self._flights = Flights(self._current, self._uninstall_if_idle)
        self._lock = self._flights.lock
        self._block_thread: int | None = None  # of the open block; a lost block is not kept alive
        self._undo: list[Callable[[], None]] = []
        self._detached = False

    def _take(self, routers: list[Router]) -> None:
        self._interceptors = [interceptor(router) for router in routers]  # they keep no module alive
        self._names = {one.layer: one.name for one in self._interceptors}

    def replay(
        self,
        routes: Sequence[mt.Routes],
        *,
        attention_mask: Any = None,
        row_ids: Any = None,
        missing: Literal["live", "error"] = "live",
        allow_short: bool = False,
    ) -> Replay:
        """Open a block in which one forward of the model replays `routes`, one per sequence in batch order.

        Sequences are aligned by `attention_mask` [batch, tokens], by default the one that the forward gets
        (none = all tokens are real), or by `row_ids`, int64 [batch, length] or flat, cut from the batch by
        the trainer's own code: (sequence + 1) << 32 | position, with 0 or -1 for padding. Routes must end
        with the sequence or one token before; allow_short=True takes shorter ones. missing="error" refuses
        tokens without a valid row, but for a last one that was never fed. Token ids that routes carry are
        held against input_ids. All is checked before anything of the model runs.
        """
        return Replay(self, routes, attention_mask, row_ids, missing, allow_short)

    def detach(self) -> None:
        """End the session; attach() makes another. Refused in a block or while a micro-batch waits."""
        if self._block_thread is not None or self._flights:
            raise mt.InvalidArgumentError(
                f"detach: expected no replay in use, got {len(self._flights)} micro-batches that wait for "
                f"their backward{' and an open block' if self._block_thread is not None else ''}"
            )
        self._detached = True
        model = self._model()
        known = None if model is None else _sessions.get(model)
        if model is not None and known is not None and known() is self:
            del _sessions[model]

    def _enter(self) -> torch.nn.Module:
        model = self._model()
        if self._detached or model is None:
            why = "detached" if self._detached else "outlived by its model"
            raise mt.ClosedError(f"replay: expected an attached session, got one that was {why}")
        if self._block_thread is not None:
            raise mt.InvalidArgumentError("replay: expected one open block per model, got a second")
        self._renew_routers(model)
        with self._lock:
            self._block_thread = threading.get_ident()
            try:
                self._install(model)
            except BaseException:
                self._leave()
                raise
        return model

    def _renew_routers(self, model: torch.nn.Module) -> None:
        """Find the routers again where some were replaced since (adapters, sharding)."""
        modules = dict(model.named_modules(remove_duplicate=False))
        replaced = [one.name for one in self._interceptors if modules.get(one.name, self) is not one.module]
        if not replaced:
            return
        if self._flights:
            raise mt.ConflictError(
                f"replay: expected the routers of the {len(self._flights)} micro-batches that wait for their "
                f"backward, got others at {', '.join(replaced)}"
            )
        routers = find_routers(model, excluded=self.spec.excluded)
        layers = [router.layer for router in routers]
        if layers != list(self.spec.layers) or spec_of_routers(routers).fingerprint != self.spec.fingerprint:
            raise mt.SpecMismatchError(
                f"replay: expected routers of {self.spec} as attached, got those of layers {layers} after "
                f"{', '.join(replaced)} changed; detach() and attach() again"
            )
        self._take(routers)

    def _leave(self) -> None:
        self._block_thread = None
        self._uninstall_if_idle()

    # The model is touched only while a block is open or a graph may recompute.

    def _install(self, model: torch.nn.Module) -> None:
        with self._lock:
            if not self._undo:
                for one in self._interceptors:
                    self._undo.append(one.add_forcer(self._force).remove)
            for undo in wrap_all(model, self._bind):
                self._undo.append(undo)

    def _uninstall_if_idle(self) -> None:
        with self._lock:
            if self._block_thread is None and not self._flights:
                while self._undo:
                    self._undo.pop()()

    def _force(
        self, layer: int, scores: Any, live_values: Any, live_ids: torch.Tensor
    ) -> torch.Tensor | None:
        micro_batch = self._running()
        if micro_batch is None:
            return None
        return micro_batch.choose(layer, tuple(live_ids.shape), lambda: live_ids).to(live_ids)

    def _bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self._current.bound(function, self._running())

    def _running(self) -> MicroBatch | None:
        """Find the micro-batch of the forward or recomputation that runs in this thread; None = no replay."""
        if self._current:
            return self._current.top
        if autograd.in_backward():
            return self._recomputed_by_hand()
        if self._block_thread == threading.get_ident():
            raise mt.InvalidArgumentError(
                "replay: expected routers to fire in one forward of the attached model, got one outside of it"
            )
        return None

    def _recomputed_by_hand(self) -> MicroBatch | None:
        """Find it for a checkpoint that is not ours: the node that asks for recomputing dates its forward."""
        live = self._flights.live
        number = autograd.backward_node_number()
        if number is None or not live or number < min(one.nodes.start for one in live):
            return None
        if len(live) > 1:
            raise mt.UnsupportedError(
                f"replay: a hand-written checkpoint is recomputed while {len(live)} micro-batches wait for "
                "their backward, expected 1; use model.gradient_checkpointing_enable(), or run each backward "
                "before the next forward"
            )
        if number not in live[0].nodes:
            raise mt.UnsupportedError(
                "replay: a hand-written checkpoint that is no part of the replayed forward runs again while "
                "that waits for its backward; mix or nest with model.gradient_checkpointing_enable() only"
            )
        return live[0]


class Replay:
    """One block: one forward pass under replay. Made by Session.replay(); used once.

    A block that was entered and is lost without being left ends as if left by an error.
    """

    _hooks: Sequence[Any] = ()

    def __init__(
        self,
        session: Session,
        routes: Sequence[mt.Routes],
        attention_mask: Any,
        row_ids: Any,
        missing: Literal["live", "error"],
        allow_short: bool,
    ) -> None:
        if attention_mask is not None and row_ids is not None:
            raise mt.InvalidArgumentError("replay: expected attention_mask or row_ids, got both")
        if missing not in ("live", "error"):
            raise mt.InvalidArgumentError(f"missing: expected 'live' or 'error', got {missing!r}")
        if not isinstance(allow_short, bool):
            raise mt.WrongTypeError(f"allow_short: expected True or False, got {allow_short!r}")
        self._session = session
        self._routes = _checked_routes(routes, session.spec)
        self._attention_mask = attention_mask
        self._row_ids = None if row_ids is None else alignment.given_row_ids(row_ids)
        self._missing = missing
        self._allow_short = allow_short
        self._state: Literal["new", "open", "forward", "done"] = "new"
        self._micro_batch: MicroBatch | None = None
        self.counts = Counts()

    def __enter__(self) -> Replay:
        if self._state != "new":
            raise mt.InvalidArgumentError("replay: expected a new block, got a used one")
        model = self._session._enter()
        self._state = "open"
        self._add_hooks(model)
        return self

    def _add_hooks(self, model: torch.nn.Module) -> None:
        attached = weakref.ref(model)  # a deep copy of the model shares the hooks, which are not meant for it
        this = weakref.ref(self)  # whoever entered the block holds it, not the model

        def before(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            block = this()
            if block is not None and module is attached():
                block._before_forward(module, args, kwargs)

        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            block = this()
            if block is not None and module is attached() and block._state == "forward":
                block._after_forward(output)

        self._hooks = [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after, always_call=True),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        was = self._state
        self._close()
        if kind is None and was == "open":
            raise mt.NotCapturedError(
                "replay: expected one forward of the attached model in the block, got none"
            )

    def __del__(self) -> None:
        if self._hooks:  # entered and lost
            self._close()

    def _close(self) -> None:
        if self._state == "forward":  # torch calls no hook after a KeyboardInterrupt
            self._after_forward(None)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._state = "done"
        self._session._leave()

    def _before_forward(self, model: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if autograd.in_backward():
            return  # a checkpoint around the whole model
        if self._state != "open":
            raise mt.AlreadyCapturedError(
                "replay: expected one forward of the attached model in the block, got a second"
            )
        if autograd.inside_reentrant_checkpoint():
            raise mt.UnsupportedError(
                "replay: a reentrant checkpoint around the whole model hides its recomputing; "
                "checkpoint its layers"
            )
        micro_batch = self._plan(ForwardInputs.of(model.forward, args, kwargs))
        self._session._install(model)  # checkpointing may have been switched since the block began
        self._session._flights.begin(micro_batch)
        self._micro_batch = micro_batch
        self._state = "forward"

    def _after_forward(self, output: Any) -> None:
        flights, micro_batch = self._session._flights, self._micro_batch
        assert micro_batch is not None
        self._micro_batch = None  # from here on the graph alone holds it
        self._state = "done"
        flights.end_forward(micro_batch)
        try:
            if output is None:
                flights.end(micro_batch)
                return
            micro_batch.check_all_fired()
        except mt.Error:
            flights.end(micro_batch)
            raise
        flights.release_after_backward(micro_batch, output)

    def _plan(self, call: ForwardInputs) -> MicroBatch:
        session, row_ids = self._session, self._row_ids
        if row_ids is None:
            mask = call.attention_mask if self._attention_mask is None else self._attention_mask
            row_ids, num_tokens = alignment.row_ids_of_mask(call, mask)
            alignment.check_lengths(self._routes, num_tokens, self._allow_short)
        else:
            alignment.check_row_ids_shape(call, row_ids)
        flat = np.ascontiguousarray(row_ids).reshape(-1)
        plan = mt.replay.Plan.from_row_ids(flat, layers=list(session._names))
        ids, use = plan.apply(self._routes, dtype=narrow(session.spec.num_experts))
        if not call.is_embedded:
            plan.verify(self._routes, call.tokens.detach().reshape(-1).to("cpu", torch.int32).numpy())
        self.counts = self._count(flat, np.asarray(use))
        recorded, replayed = torch.from_numpy(ids), torch.from_numpy(np.asarray(use) == mt.replay.REPLAYED)
        device = call.tokens.device
        return MicroBatch(session._names, recorded.to(device), replayed.to(device))

    def _count(self, row_ids: alignment.RowIds, use: npt.NDArray[np.uint8]) -> Counts:
        live = use == mt.replay.LIVE
        sequence, position = (row_ids >> 32) - 1, row_ids & 0xFFFFFFFF
        ends = np.array([one.end for one in self._routes], dtype=np.int64)
        beyond, behind_last = live.copy(), live.copy()
        beyond[live] = position[live] >= ends[sequence[live]]
        behind_last[live] = position[live] > ends[sequence[live]]
        missing = live & ~beyond
        if behind_last.any() and not self._allow_short:
            row = int(np.flatnonzero(behind_last)[0])
            end = ends[sequence[row]]
            raise mt.WrongShapeError(
                f"row_ids: expected positions up to {end} of sequence {sequence[row]}, whose routes end "
                f"there, got {position[row]}; allow_short=True routes the rest live"
            )
        uncovered = missing | (beyond & np.isin(sequence, sequence[behind_last]))
        if self._missing == "error" and uncovered.any():
            row = int(np.flatnonzero(uncovered)[0])
            raise mt.MissingRowsError(
                f"replay: expected a recorded row for every token, got {int(uncovered.sum())} without; "
                f"the first is sequence {sequence[row]} position {position[row]}"
            )
        return Counts(
            int((use == mt.replay.REPLAYED).sum()),
            int(missing.sum()),
            int(beyond.sum()),
            int((use == mt.replay.FILL).sum()),
        )


def _checked_routes(routes: Sequence[mt.Routes], spec: mt.RouteSpec) -> list[mt.Routes]:
    if isinstance(routes, mt.Routes) or not isinstance(routes, Sequence):
        raise mt.WrongTypeError(f"routes: expected a sequence of Routes, got {type(routes).__name__}")
    for index, one in enumerate(routes):
        if not isinstance(one, mt.Routes):
            raise mt.WrongTypeError(f"routes[{index}]: expected Routes, got {type(one).__name__}")
        if one.spec.fingerprint != spec.fingerprint:
            raise mt.SpecMismatchError(f"routes[{index}]: expected those of {spec}, got those of {one.spec}")
        if spec.distinct and not one.spec.distinct:
            raise mt.SpecMismatchError(
                f"routes[{index}]: expected distinct ids, as the model's routers pick; got a spec that lets "
                "a row repeat one"
            )
    return list(routes)
