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
from typing import Any, Literal

import torch

import moetape as mt
from moetape.models import (
    Router,
    find_routers,
    interceptor,
    spec_of,
    spec_of_routers,
)
from moetape.models.arguments import check_excluded, check_model
from moetape.trainers import _autograd as autograd
from moetape.trainers import agreement
from moetape.trainers._checkpoint import wrap_all
from moetape.trainers._flight import Flights
from moetape.trainers._late import LateFlags
from moetape.trainers._microbatch import Counts, Current, MicroBatch
from moetape.trainers._recording import Recording
from moetape.trainers._replay_block import Replay
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
