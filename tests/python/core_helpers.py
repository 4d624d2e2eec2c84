"""What the tests of the core share: a small spec, distinct ids, and a store that holds a run of steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import moetape as mt

Ids = npt.NDArray[np.int64]

SPEC = mt.RouteSpec(layers=[1, 2, 4], top_k=2, num_experts=8)


def distinct_ids(num_rows: int, spec: mt.RouteSpec = SPEC, seed: int | np.random.Generator = 0) -> Ids:
    """Random ids [rows, layers, k], different within a layer's row."""
    scores = np.random.default_rng(seed).random((num_rows, spec.num_moe_layers, spec.num_experts))
    return np.argsort(scores, axis=2)[:, :, : spec.top_k]


def capture_layers(rec: mt.Recorder, ids: Ids, lane: int = 0) -> None:
    """All layers of a step, one after another."""
    for column, layer in enumerate(rec.spec.layers):
        rec.capture(layer, ids[:, column], lane=lane)


def record(rec: mt.Recorder, slots: npt.ArrayLike | mt.Blocks, ids: Ids, version: int = 0) -> mt.Ticket:
    """One step of a forward over ids [rows, layers, k]."""
    rec.begin()
    capture_layers(rec, ids)
    return rec.commit(slots, version=version)


def new_store(
    num_slots: int = 32, max_rows: int = 16, lanes: int = 1, spec: mt.RouteSpec = SPEC
) -> tuple[mt.Store, mt.Recorder]:
    store = mt.Store(spec, num_slots=num_slots)
    return store, mt.Recorder(store, max_rows=max_rows, lanes=lanes)
