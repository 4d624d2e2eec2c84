"""One block of replay: a forward pass of a transformers model that takes recorded ids."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

import moetape as mt
from moetape.models import outside_of_graphs
from moetape.models.forward import ForwardInputs
from moetape.trainers import _alignment as alignment
from moetape.trainers import _autograd as autograd
from moetape.trainers._forward_plan import ForwardPlan, Given, plan_forward, refuse_jitter
from moetape.trainers._microbatch import Counts, MicroBatch
from moetape.trainers.policy import Pass, ReplayPolicy

if TYPE_CHECKING:
    from moetape.trainers.transformers import Session


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
