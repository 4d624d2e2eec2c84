"""Routes on Ray: out of rollout workers' hands into trainers', without passing through the driver.

    ref = moetape.ray.put(routes, layer_groups=stages)     # in the rollout actor; the batch carries `ref`
    plan, routes = moetape.ray.fetch(plan, refs)           # in a trainer's worker: what its plan needs
    ids, uses = plan.apply(routes)

Ray keeps each piece once a node, and workers of the node read it where it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import moetape as mt
from moetape import pieces
from moetape.pieces import Piece, Want

try:
    import ray
except ImportError as error:
    raise ImportError("moetape.ray needs Ray: pip install ray") from error

__all__ = ["RoutesRef", "fetch", "put"]


@dataclass(frozen=True, slots=True)
class RoutesRef:
    """Where the routes of one sequence lie: a small value that travels in the batch.

    As long as a copy of it lives somewhere in the cluster, so do its objects, if their owner does: the worker
    that called `put`.
    """

    spec: mt.RouteSpec
    start: int
    end: int
    missing: dict[str, int]  # rows by reason, as Routes.missing
    node: str  # where they were put
    objects: tuple[tuple[Piece, Any], ...]  # with the ray.ObjectRef of each

    @property
    def num_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(piece.num_bytes for piece, _ in self.objects)

    def __len__(self) -> int:
        return self.end - self.start


def put(
    routes: mt.Routes,
    *,
    layer_groups: Iterable[Sequence[int]] | None = None,
    rows_per_object: int | None = None,
) -> RoutesRef:
    """Put routes into this node's object store, one object a layer group; give the reference.

    layer_groups: a partition of the spec's layers. With the layers of the trainer's pipeline stages
    (moetape.replay.pipeline_layers) a worker fetches no layer that it does not use. rows_per_object: cut
    by positions too. With the rows of a chunk, such as padded length / (2 * cp) under zig-zag, a worker
    fetches no row that it does not use.

    Raises InvalidArgumentError, and Ray's ObjectStoreFullError.
    """
    objects = [
        (piece, ray.put(np.frombuffer(data, np.uint8)))
        for piece, data in pieces.cut(routes, layer_groups, rows_per_object)
    ]
    node = ray.get_runtime_context().get_node_id()
    return RoutesRef(routes.spec, routes.start, routes.end, routes.missing, node, tuple(objects))


def fetch(
    plan: mt.replay.Plan,
    refs: Sequence[RoutesRef],
    *,
    timeout_s: float | None = None,
    on_lost: Literal["error", "missing"] = "error",
) -> tuple[mt.replay.Plan, list[mt.Routes]]:
    """Fetch what plan.needs() names; give it, and the plan of the same rows over it.

    refs[s] is sequence s. Of each (sequence, start, end) that is needed there is one Routes, in this order,
    of the plan's layers; row ids of the new plan name them. So a sequence that is needed whole is one, and a
    share under zig-zag two; where nothing is needed there is one without rows, so that the plan applies.
    Objects that the plan does not touch are not fetched. Routes may be views of the object store and keep
    their objects alive.

    on_lost: what becomes of an object that is gone (its owner died, it was evicted) or damaged: "error", or
    its rows are "missing". Raises IoError and CorruptDataError naming sequence, rows and layers;
    TimeoutError, where not all objects came within timeout_s; SpecMismatchError; WrongTypeError for what is
    no reference; OutOfRangeError for a sequence without one or a layer that is not recorded.
    """
    if on_lost not in ("error", "missing"):
        raise mt.InvalidArgumentError(f'on_lost: expected "error" or "missing", got {on_lost!r}')
    if len(refs) == 0:  # a batch's column may be an array
        if plan.needs():
            raise mt.OutOfRangeError(f"refs: expected one for sequence {plan.needs()[0][0]}, got 0")
        return plan, []
    for sequence, ref in enumerate(refs):
        if not isinstance(ref, RoutesRef):
            raise mt.WrongTypeError(f"refs: expected a RoutesRef for sequence {sequence}, got {ref!r}")
    spec = refs[0].spec
    for sequence, ref in enumerate(refs):
        if ref.spec.fingerprint != spec.fingerprint:
            raise mt.SpecMismatchError(
                f"sequence {sequence}: expected {spec}, as of sequence 0, got {ref.spec}"
            )
    new_plan, wants = pieces.wants(plan, spec)
    if wants and wants[-1].sequence >= len(refs):
        raise mt.OutOfRangeError(f"refs: expected one for sequence {wants[-1].sequence}, got {len(refs)}")
    _wait(wants, refs, timeout_s)
    routes = [_read(want, refs[want.sequence], on_lost) for want in wants]
    return new_plan, routes or [pieces.no_rows(spec, spec.layers)]


def _read(want: Want, ref: RoutesRef, on_lost: str) -> mt.Routes:
    parts = []
    for piece, one in ref.objects:
        if not want.touches(piece):
            continue
        name = f"sequence {want.sequence}, {piece}, put on node {ref.node}"
        try:
            parts.append(pieces.read(piece, _get(one, name), want, name))
        except (mt.IoError, mt.CorruptDataError):
            if on_lost == "error":
                raise
            parts.append(pieces.missing(ref.spec, piece, want))
    return pieces.join(ref.spec, want, parts)


def _wait(wants: list[Want], refs: Sequence[RoutesRef], timeout_s: float | None) -> None:
    """Until all objects are on this node, or known to be lost: all at once, as Ray fetches best."""
    names = {
        one: f"sequence {want.sequence}, {piece}"
        for want in wants
        for piece, one in refs[want.sequence].objects
        if want.touches(piece)
    }
    if not names:
        return
    _, late = ray.wait(list(names), num_returns=len(names), timeout=timeout_s, fetch_local=True)
    if late:
        _, not_made = ray.wait(late, num_returns=len(late), timeout=0, fetch_local=False)
        name, came = names[(not_made or late)[0]], len(names) - len(late)
        raise mt.TimeoutError(f"{name}: expected within {timeout_s} s, got {came} of {len(names)} objects")


def _get(ref: Any, name: str) -> memoryview:
    try:
        return memoryview(ray.get(ref))
    except ray.exceptions.ObjectStoreFullError:
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        raise mt.IoError(f"{name}: lost: {type(error).__name__}: {reason}") from error
