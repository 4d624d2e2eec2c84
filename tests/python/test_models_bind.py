"""Binding a recorder to a model by walking it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import moetape
import toy_moe
from moetape import models
from toy_moe import Router, toy


class Source(nn.Module):
    """A fused layer that offers itself: no router in torch, ids come out of a kernel."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.capture_fn: Any = None
        self.experts = nn.Identity()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.capture_fn is not None:
            self.capture_fn(torch.arange(2).repeat(len(hidden_states), 1) + self.layer_id)
        return hidden_states


def recorder(
    layers: list[int], stack: str = "target", **options: Any
) -> tuple[moetape.Store, moetape.Recorder]:
    spec = moetape.RouteSpec(layers=layers, top_k=2, num_experts=8, stack=stack)
    store = moetape.Store(spec, num_slots=32)
    return store, moetape.Recorder(store, max_rows=16, **options)


def run(model: nn.Module, rec: moetape.Recorder, num_rows: int = 3) -> None:
    rec.begin()
    model(torch.randn(num_rows, 6))
    rec.commit(np.arange(num_rows))


def test_binds_routers_and_sources() -> None:
    model = toy(Router(), None, Router())
    model.layers[1].mlp = Source(1)
    store, rec = recorder([0, 1, 2])
    with models.bind(model, rec) as binding:
        assert binding.layers == [0, 1, 2]
        run(model, rec)
    routes = store.read(np.arange(3))
    assert routes.complete
    for layer in (0, 2):
        assert np.array_equal(routes.ids[:, layer], model.layers[layer].mlp.experts.received[0].numpy())
    assert routes.ids[:, 1].tolist() == [[1, 2]] * 3


def test_unbinding_leaves_nothing() -> None:
    model = toy(Router())
    model.layers.append(toy_moe.Layer(Source(1)))
    _, rec = recorder([0, 1])
    binding = models.bind(model, rec)
    with pytest.raises(moetape.ConflictError, match=r"layers\.1\.mlp.*bound already"):
        models.bind(model, rec)
    binding.unbind()
    binding.unbind()
    assert models.num_intercepted() == 0
    assert model.layers[1].mlp.capture_fn is None
    models.bind(model, rec).unbind()


def test_router_built_before_the_store_is_captured() -> None:  # case H02
    model = toy(Router())
    hook = models.interceptor(models.find_routers(model)[0])
    early: list[int] = []
    handle = hook.add_tap(lambda layer, ids: early.append(layer))
    store, rec = recorder([0])
    with models.bind(model, rec):
        run(model, rec)
    handle.remove()
    assert store.read(np.arange(3)).complete
    assert early == [0]


def test_physical_ids_become_logical() -> None:  # case H02, case H05
    model = nn.ModuleList([Source(0)])
    spec = moetape.RouteSpec(layers=[0], top_k=2, num_experts=10)
    store = moetape.Store(spec, num_slots=8)
    to_logical = [-1] * 13
    to_logical[12], to_logical[1] = 3, 9
    rec = moetape.Recorder(store, max_rows=8, id_maps={0: moetape.layout.IdMap(to_logical)})
    with models.bind(model, rec):
        rec.begin()
        model[0].capture_fn(torch.tensor([[12, 1]]))
        rec.commit(np.arange(1))
    assert store.read(np.arange(1)).ids.tolist() == [[[3, 9]]]


def test_layers_that_nobody_captures_are_listed() -> None:  # case H13
    _, rec = recorder([0, 1, 2, 3])
    with pytest.raises(moetape.NotCapturedError, match=r"\[2, 3\]"):
        models.bind(toy(Router(), Router()), rec)
    assert models.num_intercepted() == 0


def test_no_router_bound_is_an_error() -> None:
    _, rec = recorder([0])
    with pytest.raises(moetape.NotCapturedError, match=r"\[0\]"):
        models.bind(toy(None, None), rec)


def test_a_layer_outside_the_spec_is_an_error_not_a_write() -> None:
    store, rec = recorder([0])
    with pytest.raises(moetape.OutOfRangeError, match=r"layers\.1\.mlp\.gate.*got 1"):
        models.bind(toy(Router(), Router()), rec)
    assert store.read(np.arange(4)).missing == {"unwritten": 4}


def test_a_router_that_cannot_be_captured_is_named() -> None:
    _, rec = recorder([0, 1])
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.1\.mlp \(Block\)"):
        models.bind(toy(Router(), toy_moe.ArgmaxRouter()), rec)
    assert models.num_intercepted() == 0


def test_a_router_that_fails_half_way_leaves_nothing_bound() -> None:
    model = nn.ModuleList([Source(0), *toy(None, Router(), Router()).layers[1:]])
    *_, last = models.find_routers(model, without={model[0]})
    mistaken = models.interceptor(dataclasses.replace(last, layer=7)).add_tap(lambda *_: None)
    _, rec = recorder([0, 1, 2])
    with pytest.raises(moetape.InvalidArgumentError, match="as attached"):
        models.bind(model, rec)
    mistaken.remove()
    assert models.num_intercepted() == 0
    assert model[0].capture_fn is None
    models.bind(model, rec).unbind()


def test_two_sources_of_one_layer_are_refused() -> None:
    _, rec = recorder([0])
    with pytest.raises(moetape.AlreadyCapturedError, match="layer 0"):
        models.bind(nn.ModuleList([Source(0), Source(0)]), rec)


def test_a_draft_model_does_not_write_the_targets_rows() -> None:  # case G09
    target, draft = toy(Router()), toy(Router(), seed=1)
    store, rec = recorder([0])
    with models.bind(target, rec):
        with pytest.raises(moetape.SpecMismatchError, match=r"'draft'.*'target'"):
            models.bind(draft, rec, stack="draft")
        rec.begin()
        target(torch.randn(3, 6))
        draft(torch.randn(3, 6))
        rec.commit(np.arange(3))
    received = target.layers[0].mlp.experts.received[0].numpy()
    assert np.array_equal(store.read(np.arange(3)).ids[:, 0], received)


def test_lane_is_chosen_by_the_micro_batch() -> None:
    model = toy(Router())
    store, rec = recorder([0], lanes=2)
    under_way = 0
    with models.bind(model, rec, lane=lambda: under_way):
        for under_way in (0, 1):
            rec.begin(lane=under_way)
            model(torch.randn(2 + under_way, 6))
        rec.commit(np.arange(2), lane=0)
        rec.commit(np.arange(2, 5), lane=1)
    first, second = model.layers[0].mlp.experts.received
    assert np.array_equal(store.read(np.arange(5)).ids[:, 0], torch.cat([first, second]).numpy())
