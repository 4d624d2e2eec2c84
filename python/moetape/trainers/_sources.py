"""What trainers ask of the routes that they are given: a model's own, and at their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

import moetape as mt
from moetape.replay import Plan


def no_rows(spec: mt.RouteSpec) -> mt.Routes:
    """Give Routes without rows, for a sequence that is routed live."""
    return mt.Routes.from_ids(spec, np.empty((0, spec.num_moe_layers, spec.top_k), np.uint8))


def check_spec(source: mt.Routes | mt.RowSource, what: str, spec: mt.RouteSpec) -> None:
    """Refuse routes of another model, and those whose rows may repeat an expert."""
    if source.spec.fingerprint != spec.fingerprint:
        raise mt.SpecMismatchError(f"{what}: expected those of {spec}, got those of {source.spec}")
    if spec.distinct and not source.spec.distinct:
        raise mt.SpecMismatchError(
            f"{what}: expected distinct ids, as the model's routers pick; got a spec that lets a row "
            "repeat one"
        )


def rows_of(plan: Plan, sequence: int) -> Plan:
    """Give a plan without the rows of other sequences."""
    row_ids = plan.row_ids
    return Plan.from_row_ids(np.where((row_ids >> 32) - 1 == sequence, row_ids, 0), layers=plan.layers)


def other_tokens(
    plan: Plan, routes: Sequence[mt.Routes], tokens: npt.NDArray[np.int32]
) -> Iterator[tuple[int, mt.ConflictError]]:
    """Yield (sequence, error) where routes carry other tokens than the batch; one look where none do."""
    try:
        plan.verify(routes, tokens)
    except mt.ConflictError:
        for sequence in range(len(routes)):
            try:
                rows_of(plan, sequence).verify(routes, tokens)
            except mt.ConflictError as error:
                yield sequence, error
