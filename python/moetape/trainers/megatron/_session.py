"""The replay session of a Megatron model on one rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.models.arguments import check_excluded
from moetape.replay import RowIds
from moetape.trainers._flight import Flights
from moetape.trainers.agreement import gather_if_any, is_alone
from moetape.trainers.megatron import _checkpoint as checkpoint
from moetape.trainers.megatron._plan import MicroBatchRoutes, Shard
from moetape.trainers.megatron._port import Port, check_free
from moetape.trainers.megatron._routers import (
    MegatronRouter,
    check_against_spec,
    check_replayable,
    context_of,
    find_routers,
    pipeline_group,
    shard_of,
    spec_of_config,
    unwrapped,
)
from moetape.trainers.megatron._step import ReplayedStep
from moetape.trainers.policy import Pass, ReplayPolicy

_sessions: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Session]] = weakref.WeakKeyDictionary()


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    *,
    spec: mt.RouteSpec | None = None,
    policy: ReplayPolicy | None = None,
    group: Any = None,
    excluded: Mapping[int, str] | None = None,
) -> Session:
    """Give the replay session of this rank's model: a module, or the list of its virtual pipeline chunks.

    The same session while the model has one. spec: what the routes were recorded under; default: what the
    model's configuration says, without the layers of `excluded` {layer: reason}, which stay live. group: the
    ranks that agree on every verdict; default: all. Raises, by name, for routers that would not do what they
    are told. The model keeps its session alive, the session not the model.
    """
    chunks = _chunks_of(model)
    check_excluded(excluded)
    known = _sessions.get(chunks[0])
    session = known() if known is not None else None
    if session is None:
        session = Session(chunks, spec, policy or ReplayPolicy(), group, excluded)
        for chunk in chunks:
            _sessions[chunk] = weakref.ref(session)
        return session
    if [session.chunk_of(chunk) for chunk in chunks] != list(range(session.num_chunks)):
        raise mt.InvalidArgumentError(
            f"model: expected the {session.num_chunks} chunks that are attached, got {len(chunks)} others"
        )
    if spec is not None and spec != session.spec:
        raise mt.InvalidArgumentError(f"spec: expected {session.spec} as the session has, got {spec}")
    if policy is not None:
        session.policy = policy
    return session


def _cut(
    routes: Sequence[Any],
    lengths: Sequence[int],
    cut: Callable[[RowIds], RowIds],
    shape: tuple[int, ...],
) -> MicroBatchRoutes:
    try:
        row_ids: Any = cut(RowIds.from_lengths(lengths)).ids.reshape(shape)
    except mt.Error as error:
        row_ids = error
    return MicroBatchRoutes(routes, row_ids, lengths=lengths)


def _chunks_of(model: Any) -> list[torch.nn.Module]:
    chunks = [model] if isinstance(model, torch.nn.Module) else list(model)
    for chunk in chunks:
        if not isinstance(chunk, torch.nn.Module) or not hasattr(unwrapped(chunk), "config"):
            raise mt.WrongTypeError(
                f"model: expected a Megatron model or its chunks, got {type(chunk).__name__}"
            )
    if not chunks:
        raise mt.InvalidArgumentError("model: expected at least one chunk, got none")
    return [unwrapped(chunk) for chunk in chunks]


class Chunk:
    """A chunk of the model: its routers, and its micro-batches under way."""

    def __init__(self, session: Session, model: torch.nn.Module, routers: list[MegatronRouter]) -> None:
        self.session = session  # whoever holds a router's port keeps the session
        self.model = weakref.ref(model)
        self.names = {router.layer: router.name for router in routers}
        self.flights = Flights(checkpoint.current, lambda: None)
        self._ports = [(Port(router, self), weakref.ref(router.module)) for router in routers]

    @property
    def device(self) -> torch.device:
        model = self.model()
        first = None if model is None else next(model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def routers(self) -> list[MegatronRouter]:
        found = [(port, module()) for port, module in self._ports]
        return [MegatronRouter(port.layer, port.name, module) for port, module in found if module is not None]

    def remove_ports(self) -> None:
        for port, module in self._ports:
            if (router := module()) is not None:
                port.remove(router)


class Session:
    """Replay for one model on one rank. Made by attach(). One step at a time, its forwards on one thread."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        spec: mt.RouteSpec | None,
        policy: ReplayPolicy,
        group: Any,
        excluded: Mapping[int, str] | None,
    ) -> None:
        config: Any = models[0].config
        self.spec: mt.RouteSpec = spec_of_config(config, excluded) if spec is None else spec
        self.policy = policy
        self.group = group
        found = [find_routers(model, self.spec.excluded) for model in models]
        routers = [router for chunk in found for router in chunk]
        check_against_spec(routers, self.spec, config)
        for router in routers:
            check_replayable(router, policy.allow)
            check_free(router)
        self.shard: Shard = shard_of(config, routers)
        self._context = context_of(routers)
        self.late_errors: list[mt.Error] = []  # that all ranks are still to hear of
        self._detached = False
        stages = pipeline_group()
        self.stages_checked = stages is None or is_alone(stages)
        checkpoint.add_user()
        self._stop_binding = weakref.finalize(self, checkpoint.remove_user)
        self._stop_binding.atexit = False
        self.chunks = [Chunk(self, *one) for one in zip(models, found, strict=True)]

    @property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @property
    def layers(self) -> list[int]:
        """Global layers whose routers are on this rank, ascending."""
        return sorted(layer for chunk in self.chunks for layer in chunk.names)

    def chunk_of(self, model: torch.nn.Module) -> int:
        """The index of the chunk that a module, wrapped or not, is."""
        bare = unwrapped(model)
        for index, chunk in enumerate(self.chunks):
            if chunk.model() is bare:
                return index
        raise mt.InvalidArgumentError(
            f"model: expected one of the session's {self.num_chunks} chunks, got another "
            f"{type(bare).__name__}"
        )

    def forward_step(
        self,
        step: Callable[..., Any],
        routes: Sequence[MicroBatchRoutes],
        pass_: Pass = "train",
    ) -> ReplayedStep:
        """Wrap Megatron's forward step for one call of its schedule; all ranks of the group must call.

        `step(data_iterator, model, ...)` runs the model once. routes: those of every micro-batch, in the
        order in which the schedule takes them. All data is checked here, on the CPU, and what is wrong on one
        rank is raised on all. What comes back is given to the schedule in place of `step`; finish() it (or
        leave its `with` block) before the optimizer steps. A pass that the policy does not replay runs live.
        """
        if self._detached:
            raise mt.ClosedError("replay: expected an attached session, got one that was detached")
        return ReplayedStep(self, step, routes, pass_)

    def take_late_errors(self) -> list[mt.Error]:
        errors, self.late_errors = self.late_errors, []
        return errors

    def check(self) -> None:
        """Refuse a configuration that has changed since attach() into one that would ignore the ids."""
        for chunk in self.chunks:
            if chunk.model() is None:
                raise mt.ClosedError("replay: expected an attached session, got one outlived by its model")
            for router in chunk.routers():
                check_replayable(router, self.policy.allow)

    def check_stages(self) -> None:
        """Refuse a spec with a layer whose router is on no pipeline stage; all stages call."""
        stages = gather_if_any(self.layers, pipeline_group())
        nowhere = sorted(set(self.spec.layers).difference(*stages))
        if nowhere:
            raise mt.SpecMismatchError(
                f"model: expected routers in layers {list(self.spec.layers)} on its {len(stages)} pipeline "
                f"stages, got none in {nowhere}"
            )
        self.stages_checked = True

    def padded(self, routes: Sequence[Any], lengths: Sequence[int], seq_length: int) -> MicroBatchRoutes:
        """A micro-batch [batch, seq_length], padded right, cut in zig-zag for context parallelism.

        What is wrong with `lengths` is raised by forward_step, on all ranks.
        """
        return _cut(
            routes,
            lengths,
            lambda rows: rows.pad_each_to(seq_length).zigzag_each(*self._context),
            shape=(len(lengths), -1),
        )

    def packed(
        self, routes: Sequence[Any], lengths: Sequence[int], multiple: int | None = None
    ) -> MicroBatchRoutes:
        """A micro-batch of packed sequences, each padded to a multiple and cut in zig-zag.

        multiple: default what all ranks can cut, as verl and skyrl pad. What is wrong with `lengths` is
        raised by forward_step, on all ranks.
        """
        size = self._context[0]
        padding = self.shard.size * size * (2 if size > 1 else 1) if multiple is None else multiple
        return _cut(
            routes, lengths, lambda rows: rows.pad_each(padding).zigzag_each(*self._context), shape=(-1,)
        )

    def local_rows(self, row_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The row ids as this rank's routers see them: row s * batch + b, cut for sequence parallelism."""
        return self.shard.rows("row_ids", np.asarray(row_ids, dtype=np.int64))

    def detach(self) -> None:
        """End the session; attach() makes another. Refused while a micro-batch waits for its backward."""
        waiting = sum(len(chunk.flights) for chunk in self.chunks)
        if waiting:
            raise mt.InvalidArgumentError(
                f"detach: expected no replay in use, got {waiting} micro-batches that wait for their backward"
            )
        self._detached = True
        for chunk in self.chunks:
            chunk.remove_ports()
            model = chunk.model()
            known = None if model is None else _sessions.get(model)
            if model is not None and known is not None and known() is self:
                del _sessions[model]
        self._stop_binding()
