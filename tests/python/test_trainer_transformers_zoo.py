"""Replay in every Mixture-of-Experts type of transformers: what counts is what the experts receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.models import num_intercepted, spec_of
from moetape.trainers.transformers import attach
from replay_helpers import deterministic, experts_input, gradients, same_gradients, wrong_routes
from tiny_zoo import EXCLUDED, REFUSED, TYPES, vision_language_model, zoo

BATCH = {"input_ids": torch.tensor([[5, 9, 11, 40, 7, 21], [3, 8, 60, 33, 34, 35]])}


def run(model: Any) -> torch.Tensor:
    output = model(**BATCH, use_cache=False)
    hidden = output.logits if "logits" in output else output.last_hidden_state
    hidden.square().mean().backward()
    return hidden.detach()


def routes_of(spec: mt.RouteSpec, received: dict[int, list[Any]]) -> list[mt.Routes]:
    stacked = np.stack([received[layer][0] for layer in spec.layers], axis=1)
    return [mt.Routes.from_ids(spec, stacked[first : first + 6]) for first in (0, 6)]


@pytest.mark.parametrize(("kind", "message"), REFUSED.items())
def test_two_routers_in_a_layer_are_refused_by_name(kind: str, message: str) -> None:
    with pytest.raises(mt.UnsupportedError, match=message):
        attach(zoo(kind))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in REFUSED])
def test_experts_receive_the_recorded_ids(kind: str) -> None:  # case G01, case I19
    model = zoo(kind)
    session = attach(model, excluded=EXCLUDED.get(kind))
    spec = session.spec
    assert spec.fingerprint == spec_of(model, excluded=EXCLUDED.get(kind)).fingerprint
    with deterministic():
        with session.record() as recording, experts_input(model, spec) as live:
            plain = run(model)
        plain_gradients = gradients(model)
        own = recording.routes
        assert [one.ids.tolist() for one in own] == [one.ids.tolist() for one in routes_of(spec, live)]
        with session.replay(own), experts_input(model, spec) as ids:
            again = run(model)
        assert torch.equal(again, plain)
        assert same_gradients(gradients(model), plain_gradients)
        assert all(np.array_equal(ids[layer][0], live[layer][0]) for layer in spec.layers)

        foreign = [wrong_routes(one) for one in own]
        with session.replay(foreign), experts_input(model, spec) as ids:
            other = run(model)
        for column, layer in enumerate(spec.layers):
            assert np.array_equal(ids[layer][0], np.concatenate([one.ids[:, column] for one in foreign]))
        assert torch.isfinite(other).all()
        assert not torch.equal(other, plain)
        other_gradients = gradients(model)
        modules = dict(model.named_modules())
        for name in session._names.values():
            weights = [f"{name}.{one}" for one, _ in modules[name].named_parameters() if "expert" not in one]
            assert any(other_gradients[one].abs().sum() > 0 for one in weights if one in other_gradients), (
                name
            )
        if model.supports_gradient_checkpointing:
            for reentrant in (False, True):
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                with session.replay(foreign), experts_input(model, spec) as ids:
                    assert torch.equal(run(model), other)
                assert same_gradients(gradients(model), other_gradients)
                assert all(len(ids[layer]) == 2 for layer in spec.layers)
                assert all(np.array_equal(*ids[layer]) for layer in spec.layers)
    assert num_intercepted() == 0


def test_a_vision_language_model_replays_with_its_images() -> None:
    model = vision_language_model()
    ids = torch.tensor([[5, 91, 90, 90, 90, 90, 92, 7, 8]])  # 90: a patch of the image
    batch = {
        "input_ids": ids,
        "pixel_values": torch.randn(16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == 90).int(),
    }
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        plain = model(**batch).logits
    with session.replay(recording.routes) as replay:
        assert torch.equal(model(**batch).logits, plain)
    assert replay.counts.replayed == 9
    foreign = wrong_routes(recording.routes[0])
    with session.replay([foreign]), experts_input(model, session.spec) as received:
        assert not torch.equal(model(**batch).logits, plain)
    for column, layer in enumerate(session.spec.layers):
        assert np.array_equal(received[layer][0], foreign.ids[:, column])
