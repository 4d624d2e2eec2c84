"""One call of Megatron's schedule under replay: its micro-batches, what they counted, what went wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import moetape as mt
from moetape.trainers import agreement
from moetape.trainers._microbatch import Counts
from moetape.trainers.megatron._checkpoint import current
from moetape.trainers.megatron._plan import Checked, MicroBatchRoutes, plan_micro_batch
from moetape.trainers.megatron._port import RankMicroBatch
from moetape.trainers.policy import Pass

if TYPE_CHECKING:
    from moetape.trainers.megatron._session import Session

_T = TypeVar("_T")


class ReplayedStep:
    """Stands for the forward step in one call of the schedule. Made by Session.forward_step().

    counts: tokens of this rank by how they were routed, all micro-batches together. dropped: the
    (micro-batch, sequence) pairs that ReplayPolicy(on_bad_data="drop") took out on all ranks: leave their
    tokens out of the loss. is_live: whether nothing is replayed, because of the pass or of
    on_bad_data="live".
    """

    def __init__(
        self,
        session: Session,
        step: Callable[..., Any],
        routes: Sequence[MicroBatchRoutes],
        pass_: Pass,
    ) -> None:
        self._session = session
        self._step = step
        self._policy = session.policy
        self._done = [0] * session.num_chunks
        self._plans: list[Checked | None] = []
        self.is_live = not self._policy.replays(pass_)
        self.dropped: frozenset[tuple[int, int]] = frozenset()
        self.counts = Counts()
        setting = f"pass {pass_!r} of {session.spec!r} under {self._policy}"
        if self.is_live:
            agreement.agree(None, session.group, same=setting)
        else:
            self._prepare(routes, setting)

    # Before the schedule.

    def _prepare(self, routes: Sequence[MicroBatchRoutes], setting: str) -> None:
        session, on_bad_data = self._session, self._policy.on_bad_data
        bad: dict[tuple[int, int], mt.Error] = {}

        def check_all() -> list[Checked]:
            for late in session.take_late_errors():
                raise late
            session.check()
            checked = self._check(routes, frozenset())
            for at, each in enumerate(checked):
                bad.update({(at, sequence): one for sequence, one in each.bad.items()})
            if bad and on_bad_data == "raise":
                raise next(iter(bad.values()))
            return checked

        checked = self._agreed(check_all, setting)
        if not session.stages_checked:  # asks other stages, so not before all ranks are of one mind
            self._agreed(session.check_stages)
        if on_bad_data != "raise":
            told = agreement.gather_if_any((_replica(), sorted(bad)) if bad else None, session.group)
            if told and on_bad_data == "live":
                self.is_live = True
                return
            if told:
                self.dropped = frozenset(
                    pair for one in told if one is not None and one[0] == _replica() for pair in one[1]
                )
                checked = self._agreed(lambda: self._check(routes, self.dropped))
        counts = reduce(operator.add, (each.chunks[0].counts for each in checked), Counts())
        if self._policy.max_missing_in_batch is not None:
            self._agreed(lambda: self._check_share(counts))
        self._plans = list(checked)
        self.counts = counts

    def _agreed(self, check: Callable[[], _T], setting: str = "") -> _T:
        """Give what a check of this rank's data gives; what it raises on one rank is raised on all."""
        group = self._session.group
        result: Any = None
        error: mt.Error | None = None
        try:
            result = check()
        except mt.Error as caught:
            error = caught
        except Exception as caught:  # whatever it is, other ranks wait for this one's verdict
            if agreement.is_alone(group):
                raise
            error = mt.InvalidArgumentError(f"routes: {type(caught).__name__}: {caught}")
        agreement.agree(error, group, same=setting)
        return cast("_T", result)

    def _check(
        self, routes: Sequence[MicroBatchRoutes], dropped: frozenset[tuple[int, int]]
    ) -> list[Checked]:
        if isinstance(routes, MicroBatchRoutes) or not isinstance(routes, Sequence):
            raise mt.WrongTypeError(
                f"routes: expected MicroBatchRoutes of every micro-batch, got {type(routes).__name__}"
            )
        session = self._session
        checked = []
        first_expert = _world_rank()
        for at, given in enumerate(routes):
            if not isinstance(given, MicroBatchRoutes):
                raise mt.WrongTypeError(
                    f"micro-batch {at}: expected MicroBatchRoutes, got {type(given).__name__}"
                )
            checked.append(
                plan_micro_batch(
                    given,
                    name=f"micro-batch {at}",
                    spec=session.spec,
                    chunks=[list(chunk.names) for chunk in session.chunks],
                    shard=session.shard,
                    policy=self._policy,
                    dropped={sequence for batch, sequence in dropped if batch == at},
                    first_expert=(first_expert + at) * session.spec.top_k,
                )
            )
        return checked

    def _check_share(self, counts: Counts) -> None:
        """Hold the missing rows of the whole step against the policy."""
        limit = self._policy.max_missing_in_batch
        num_real = counts.replayed + counts.missing + counts.beyond + counts.dropped
        num_missing = counts.missing + counts.dropped
        if limit is not None and num_missing / max(num_real, 1) > limit:
            raise mt.MissingRowsError(
                f"replay: expected at most {limit:.0%} of the step's {num_real} tokens here without a "
                f"recorded row, got {num_missing}"
            )

    # In the schedule.

    def __call__(self, data_iterator: Any, model: Any, *args: Any, **rest: Any) -> Any:
        """Run the step of the next micro-batch of the chunk `model`."""
        if self.is_live:
            with current.inside(None):
                return self._step(data_iterator, model, *args, **rest)
        chunk_index = self._session.chunk_of(model)
        micro_batch = self._begin(chunk_index)
        flights = self._session.chunks[chunk_index].flights
        flights.begin(micro_batch)
        try:
            output = self._step(data_iterator, model, *args, **rest)
        except BaseException:
            flights.end(micro_batch)
            raise
        finally:
            flights.end_forward(micro_batch)
        try:
            micro_batch.check_all_fired()
        except mt.Error as error:
            self._report(error)
        flights.release_after_backward(micro_batch, output)
        return output

    def _begin(self, chunk_index: int) -> RankMicroBatch:
        chunk = self._session.chunks[chunk_index]
        at = self._done[chunk_index]
        if at >= len(self._plans):
            raise mt.OutOfRangeError(
                f"replay: expected {len(self._plans)} micro-batches in chunk {chunk_index}, as routes were "
                "given; the schedule runs another"
            )
        self._done[chunk_index] += 1
        checked = self._plans[at]
        assert checked is not None
        planned = checked.chunks[chunk_index]
        recorded, replayed, real = planned.on(chunk.device)
        if all(done > at for done in self._done):
            self._plans[at] = None
        return RankMicroBatch(
            chunk,
            self._policy,
            self._report,
            chunk.names,
            recorded,
            replayed,
            planned.all_replayed,
            real if planned.has_padding else None,
        )

    def _report(self, error: mt.Error) -> None:
        """Raise at once where no other rank could wait for this one, else in finish()."""
        if agreement.is_alone(self._session.group):
            raise error
        self._session.late_errors.append(error)

    # After it.

    def finish(self) -> None:
        """Raise on all ranks what went wrong on one; all ranks of the group must call.

        Errors of routers, and micro-batches that the schedule never ran. Call it after the schedule and
        before the optimizer steps.
        """
        if self.is_live:
            return
        errors = self._session.take_late_errors()
        for chunk, done in enumerate(self._done):
            if done < len(self._plans):
                errors.append(
                    mt.NotCapturedError(
                        f"replay: expected the schedule to run {len(self._plans)} micro-batches in "
                        f"chunk {chunk}, got {done}"
                    )
                )
        agreement.agree(errors[0] if errors else None, self._session.group)

    def __enter__(self) -> ReplayedStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        for late in self._session.take_late_errors():  # of this step, which has failed anyway
            error.add_note(f"and before: {late}")


def _world_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _replica() -> int:
    """Which data this rank works on; ranks of one number hold parts of the same sequences."""
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return 0
    return int(parallel_state.get_data_parallel_rank(with_context_parallel=False))
