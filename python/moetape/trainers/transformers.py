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

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import torch

import moetape as mt
from moetape.models import (
    Router,
    find_routers,
    interceptor,
    outside_of_graphs,
    spec_of,
    spec_of_routers,
)
from moetape.models.arguments import check_excluded, check_model
from moetape.models.forward import ForwardInputs
from moetape.trainers import _alignment as alignment
from moetape.trainers import _autograd as autograd
from moetape.trainers import agreement
from moetape.trainers._checkpoint import wrap_all
from moetape.trainers._flight import Flights
from moetape.trainers._forward_plan import ForwardPlan, Given, plan_forward, refuse_jitter
from moetape.trainers._late import LateFlags
from moetape.trainers._microbatch import Counts, Current, MicroBatch
from moetape.trainers._recording import Recording
from moetape.trainers.policy import Pass, ReplayPolicy

__all__ = ["Counts", "Recording", "Replay", "ReplayPolicy", "Session", "attach"]

_sessions: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Session]] = weakref.WeakKeyDictionary()


def attach(
    model: torch.nn.Module,
    *,
    excluded: Mapping[int, str] | None = None,
    policy: ReplayPolicy | None = None,
    group: Any = None,
) -> Session:
    """Give the replay session of a model; the same one while it has one.

    excluded: {layer: reason} for MoE layers that were left out of the record; they are routed live.
    policy: what replays and how; also session.policy. aux_loss other than "live" is refused by name, since
    the models count that load from router logits.
    group: a process group whose ranks check every block's data together, before the forward's first
    collective: what is wrong on one of them is the same error on all. All must open their blocks together.
    None: this rank alone.
    Nothing of the model is changed outside of replay. Raises, by name, for routers that moetape.models does
    not understand and for dense models. The session does not keep the model alive.
    """
    check_model(model)
    check_excluded(excluded)
    if policy is not None:
        _check_policy(policy)
    known = _sessions.get(model)
    session = known() if known is not None else None
    if session is None:
        session = Session(model, excluded)
        _sessions[model] = weakref.ref(session)
    elif excluded is not None and dict(excluded) != session.spec.excluded:
        raise mt.InvalidArgumentError(
            f"excluded: expected {session.spec.excluded} as the model's session has, got {dict(excluded)}"
        )
    if policy is not None:
        session.policy = policy
    if group is not None:
        session.group = group
    return session


def _check_policy(policy: ReplayPolicy) -> None:
    if not isinstance(policy, ReplayPolicy):
        raise mt.WrongTypeError(f"policy: expected a ReplayPolicy, got {type(policy).__name__}")
    if policy.aux_loss != "live":
        raise mt.UnsupportedError(
            f"policy: expected aux_loss='live' for transformers models, got {policy.aux_loss!r}"
        )


class Session:
    """Replay for one model. Made by attach()."""

    def __init__(self, model: torch.nn.Module, excluded: Mapping[int, str] | None) -> None:
        self.spec: mt.RouteSpec = spec_of(model, excluded=excluded)
        self.group: Any = None  # whose ranks agree, see attach()
        self._policy = ReplayPolicy()
        self._model = weakref.ref(model)
        self._take(find_routers(model, excluded=excluded))
        self._current = Current()
        self._flights = Flights(self._current, self._uninstall_if_idle)
        self._lock = self._flights.lock
        self._late = LateFlags()  # of routers that have no score of a recorded expert
        self._block_thread: int | None = None  # of the open block; a lost block is not kept alive
        self._undo: list[Callable[[], None]] = []
        self._detached = False

    def _take(self, routers: list[Router]) -> None:
        self._interceptors = [interceptor(router) for router in routers]  # they keep no module alive
        self._names = {one.layer: one.name for one in self._interceptors}

    @property
    def policy(self) -> ReplayPolicy:
        """What blocks that are opened from now on replay, and how."""
        return self._policy

    @policy.setter
    def policy(self, policy: ReplayPolicy) -> None:
        _check_policy(policy)
        self._policy = policy

    def record(
        self, *, version: int | None = None, attention_mask: Any = None, row_ids: Any = None
    ) -> Recording:
        """Open a block that records what the model's forwards choose, or replay, for a later replay (R2).

        version: the policy version of the weights. Sequences are told apart as in replay().
        """
        return Recording(self, attention_mask, row_ids, version)

    def replay(
        self,
        routes: Sequence[mt.Routes],
        *,
        pass_: Pass | None = None,
        attention_mask: Any = None,
        row_ids: Any = None,
        missing: Literal["live", "error", "fill"] | None = None,
        allow_short: bool = False,
    ) -> Replay:
        """Open a block in which one forward of the model replays `routes`, one per sequence in batch order.

        Sequences are aligned by `attention_mask` [batch, tokens], by default the one that the forward gets
        (none = all tokens are real), or by `row_ids`, int64 [batch, length] or flat, cut from the batch by
        the trainer's own code: (sequence + 1) << 32 | position, with 0 or -1 for padding. Routes must end
        with the sequence or one token before; allow_short=True takes shorter ones. missing= beats the
        policy's: "error" refuses tokens without a valid row, but for a last one that was never fed. Token ids
        that routes carry are held against input_ids. All is checked before anything of the model runs.
        pass_: a pass that the policy does not replay runs live, and counts nothing. By default "train", and
        "reference" where the model has PEFT adapters that are all off.
        """
        policy = self._policy if missing is None else dataclasses.replace(self._policy, missing=missing)
        return Replay(self, routes, attention_mask, row_ids, policy, pass_, allow_short)

    def _agree(self, error: mt.Error | None) -> None:
        """Raise this rank's error, or that of any rank of the group."""
        if self.group is not None:
            agreement.agree(error, self.group)
        elif error is not None:
            raise error

    def check(self) -> None:
        """Raise what forwards on a device found out: recorded experts that a router has no score of.

        Waits for the device. Blocks raise what is known when they begin, without waiting; so call this before
        the optimizer steps. On the CPU the router itself raises, and there is nothing left to find.
        """
        self._agree(self._late_error(wait=True))

    def _note_late(self, layer: int, flag: torch.Tensor) -> None:
        if not autograd.in_backward():  # recomputation finds the same again
            self._late.note(layer, flag)

    def _late_error(self, *, wait: bool) -> mt.Error | None:
        names = [self._names[layer] for layer in self._late.take(wait=wait)]
        if not names:
            return None
        return mt.UnsupportedError(
            "replay: expected recorded experts that their router has a score for, got masked scores, weights "
            f"of 0, in an earlier forward at {', '.join(names)}"
        )

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

    def _living_model(self) -> torch.nn.Module:
        model = self._model()
        if self._detached or model is None:
            why = "detached" if self._detached else "outlived by its model"
            raise mt.ClosedError(f"replay: expected an attached session, got one that was {why}")
        self._renew_routers(model)
        return model

    def _any_rank(self, flag: bool) -> bool:
        return bool(agreement.gather_if_any(flag or None, self.group)) if self.group is not None else flag

    def _enter(self) -> torch.nn.Module:
        if self._block_thread is not None:
            raise mt.InvalidArgumentError("replay: expected one open block per model, got a second")
        model = self._living_model()
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
                    self._undo.append(one.add_forcer(self._force, self._note_late).remove)
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

    counts: tokens of the forward by how they were routed. dropped: the sequences that
    ReplayPolicy(on_bad_data="drop") took out on this rank: leave their tokens out of the loss. is_live:
    whether the forward ran without replay, because of its pass or of on_bad_data="live".
    A block that was entered and is lost without being left ends as if left by an error.
    """

    _hooks: Sequence[Any] = ()

    def __init__(
        self,
        session: Session,
        routes: Sequence[mt.Routes],
        attention_mask: Any,
        row_ids: Any,
        policy: ReplayPolicy,
        pass_: Pass | None,
        allow_short: bool,
    ) -> None:
        if attention_mask is not None and row_ids is not None:
            raise mt.InvalidArgumentError("replay: expected attention_mask or row_ids, got both")
        if not isinstance(allow_short, bool):
            raise mt.WrongTypeError(f"allow_short: expected True or False, got {allow_short!r}")
        if pass_ is not None:
            policy.replays(pass_)  # raises for what is none
        self._session = session
        self._policy = policy
        self._pass = pass_
        given_ids = None if row_ids is None else alignment.given_row_ids(row_ids)
        self._given = Given(routes, attention_mask, given_ids, allow_short)
        self._state: Literal["new", "open", "forward", "done"] = "new"
        self._micro_batch: MicroBatch | None = None
        self.counts = Counts()
        self.dropped: frozenset[int] = frozenset()
        self.is_live = False

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

        @outside_of_graphs
        def before(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            block = this()
            if block is not None and module is attached():
                block._before_forward(module, args, kwargs)

        @outside_of_graphs
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
        micro_batch = self._begin(model, args, kwargs)
        if micro_batch is None:
            self.is_live = True
            self._session._current.push(None)
        else:
            self._session._install(model)  # checkpointing may have been switched since the block began
            self._session._flights.begin(micro_batch)
        self._micro_batch = micro_batch
        self._state = "forward"

    def _after_forward(self, output: Any) -> None:
        flights, micro_batch = self._session._flights, self._micro_batch
        self._micro_batch = None  # from here on the graph alone holds it
        self._state = "done"
        if micro_batch is None:
            self._session._current.pop()
            return
        flights.end_forward(micro_batch)
        self._session._late.send()
        if output is None:
            flights.end(micro_batch)
            return
        try:
            self._session._agree(micro_batch.silent())
        except mt.Error:
            flights.end(micro_batch)
            raise
        flights.release_after_backward(micro_batch, output)

    def _begin(self, model: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> MicroBatch | None:
        """Check the data, on all ranks of the group; None where the forward is to run live."""
        if not self._policy.replays(self._pass or _pass_of(model)):
            return None
        session, policy = self._session, self._policy
        planned, call, error = None, None, session._late_error(wait=False)
        try:
            refuse_jitter(model, session._names.values(), policy)
            call = ForwardInputs.of(model.forward, args, kwargs)
            planned = self._plan(call)
            if planned.bad and policy.on_bad_data == "raise":
                error = error or next(iter(planned.bad.values()))
        except mt.Error as caught:
            error = error or caught
        except Exception as caught:  # whatever it is, other ranks wait for this one's verdict
            if session.group is None:
                raise
            error = error or mt.InvalidArgumentError(f"replay: {type(caught).__name__}: {caught}")
        session._agree(error)
        assert planned is not None
        assert call is not None
        if policy.on_bad_data == "live" and session._any_rank(bool(planned.bad)):
            return None
        self.counts, self.dropped = planned.counts, frozenset(planned.bad)
        return MicroBatch(session._names, *planned.on(call.tokens.device), planned.takes_all)

    def _plan(self, call: ForwardInputs) -> ForwardPlan:
        """Plan the forward; a second time without the sequences that go out of replay."""
        session, policy = self._session, self._policy
        names = list(session._names)
        planned = plan_forward(self._given, call, spec=session.spec, layers=names, policy=policy)
        if not planned.bad or policy.on_bad_data != "drop":
            return planned
        out = planned.bad
        planned = plan_forward(self._given, call, spec=session.spec, layers=names, policy=policy, dropped=out)
        planned.bad = out
        return planned


def _pass_of(model: torch.nn.Module) -> Pass:
    """Tell a PEFT model whose adapters are all off, which is the reference, from one that is trained."""
    switches = [
        bool(module.disable_adapters)
        for module in model.modules()
        if isinstance(getattr(module, "disable_adapters", None), bool)
    ]
    return "reference" if switches and all(switches) else "train"
