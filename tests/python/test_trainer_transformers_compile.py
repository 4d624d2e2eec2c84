"""Replay in models under torch.compile: it works around the routers, and a whole graph is refused."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from moetape.models import num_intercepted
from moetape.trainers.transformers import Counts, attach
from replay_helpers import gradients, received, right_padded, wrong_routes
from tiny_models import tiny

BATCHES = [
    right_padded([[5, 9, 11, 40, 7], [3, 8, 60]]),
    right_padded([[60, 8, 31, 4, 4], [12, 13, 14]]),
]
FULL = "MOETAPE_TEST_FULL" in os.environ
BACKEND = "inductor" if FULL else "aot_eager"
HOW = [("layers", None), ("layers", False), ("layers", True), ("wrapped", False)]
if FULL:
    HOW += [("wrapped", None), ("wrapped", True), ("in place", None), ("in place", False)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    gc.collect()
    assert num_intercepted() == 0


def compiled(model: Any, how: str) -> Any:
    if how == "wrapped":
        return torch.compile(model, backend=BACKEND)
    for part in [model] if how == "in place" else model.model.layers:
        part.compile(backend=BACKEND)
    return model


@pytest.mark.parametrize(("how", "reentrant"), HOW)
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_replay_and_recompute(how: str, reentrant: bool | None) -> None:
    model = tiny("qwen3_moe", num_hidden_layers=2).train()
    session = attach(model)
    expected = []
    foreign = []
    for batch in BATCHES:
        with torch.no_grad(), session.record() as recording:
            plain = model(**batch).logits
        foreign.append([wrong_routes(one) for one in recording.routes])
        with session.replay(foreign[-1]):
            logits = model(**batch).logits
        logits.square().mean().backward()
        expected.append((logits.detach(), gradients(model)))
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    quick = compiled(model, how)
    torch.testing.assert_close(quick(**BATCHES[-1]).logits, plain)  # compiled before replay begins
    losses = []
    for batch, routes, (logits, _) in zip(BATCHES, foreign, expected, strict=True):
        with session.replay(routes) as replay, received(model) as ids:
            found = quick(**batch).logits
        losses.append(found.square().mean())
        assert replay.counts == Counts(replayed=8, padding=2)
        assert np.array_equal(ids[1][:5], routes[0].ids[:, 1])
        torch.testing.assert_close(found, logits)
    for loss, (_, wanted) in zip(reversed(losses), reversed(expected), strict=True):
        loss.backward()
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(gradient, wanted[name])
    torch.testing.assert_close(quick(**BATCHES[-1]).logits, plain)


@pytest.mark.parametrize("what", ["replay", "record"])
def test_a_whole_graph_is_refused(what: str) -> None:
    model = tiny("qwen3_moe", num_hidden_layers=1, experts_implementation="batched_mm").train()
    batch = BATCHES[0]
    session = attach(model)
    with torch.no_grad(), session.record() as recording:
        plain = model(**batch).logits
    whole = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(**batch).logits, plain)
    block: Any = session.replay(recording.routes) if what == "replay" else session.record()
    with (
        pytest.raises(torch._dynamo.exc.Unsupported, match="moetape works outside of compiled graphs"),
        block,
    ):
        whole(**batch)
    torch.testing.assert_close(whole(**batch).logits, plain)
