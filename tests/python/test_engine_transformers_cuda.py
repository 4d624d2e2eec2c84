"""Recording of models on a GPU: the routes that a recorder on the CPU gets from the same model there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch has no GPU here", allow_module_level=True)

from engine_helpers import assert_same_experts, fed_of, prompts  # noqa: E402
from moetape import models  # noqa: E402
from moetape.engines.transformers import record  # noqa: E402
from replay_helpers import received  # noqa: E402
from tiny_models import tiny  # noqa: E402

NAMES = ("qwen3_moe", "mixtral")


@pytest.fixture(autouse=True)
def cuda_build() -> None:
    """Skip where this build or machine has no device lanes: the recorder would quietly be on the CPU."""
    try:
        mt.Recorder(mt.Store(SPEC, num_slots=8), max_rows=8, device="cuda:0")
    except mt.UnsupportedError as error:
        pytest.skip(str(error))


def on_gpu(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    return tiny(name).cuda(), {key: value.cuda() for key, value in prompts().items()}


def generated(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    with record(model, version=5) as recording:
        output = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    return recording, output.cpu()


@pytest.mark.parametrize("name", NAMES)
def test_a_forward_records_what_the_experts_received(name: str) -> None:
    model, inputs = on_gpu(name)
    assert models.device_of(models.find_routers(model)) == "cuda:0"
    ids = inputs["input_ids"][:1]
    with torch.no_grad(), record(model) as recording, received(model) as expected:
        model(ids, use_cache=False)
    (routes,) = recording.routes
    assert routes.complete
    assert_same_experts(routes, np.stack([expected[layer] for layer in sorted(expected)], axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_generation_gives_the_routes_that_a_recorder_on_the_cpu_gets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = on_gpu(name)
    there, output = generated(model, inputs)
    monkeypatch.setattr(models, "device_of", lambda routers: "cpu")
    here, again = generated(model, inputs)
    assert torch.equal(output, again)
    fed = fed_of(output, {key: value.cpu() for key, value in inputs.items()})
    for routes, same, tokens in zip(there.routes, here.routes, fed, strict=True):
        assert routes.complete
        assert routes.tokens.tolist() == tokens
        assert routes.versions == [(0, len(tokens), 5)]
        assert routes == same


def test_streams_of_the_model_are_followed() -> None:
    model, inputs = on_gpu(NAMES[0])
    first, _ = generated(model, inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        second, _ = generated(model, inputs)
    assert all(a == b for a, b in zip(first.routes, second.routes, strict=True))
