"""What goes wrong: a recorder that fails, KV that comes from elsewhere, a vLLM that is not known."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.layer import MoERunner

import moetape
from moetape.engines import vllm as engine
from moetape.engines.vllm import patches, plugin
from moetape.engines.vllm.capture import bind_routers
from moetape.engines.vllm.sources import TRIED, check_sources
from vllm_fixtures import random_tokens
from vllm_models import Reference, num_experts

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def generate(llm: Any, prompt: list[int]) -> tuple[list[int], Any]:
    [output] = llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)
    return [*prompt, *output.outputs[0].token_ids], output.outputs[0].routed_experts


def check_present(reference: Reference, tokens: list[int], ids: np.ndarray) -> None:
    """Rows that are there are right."""
    present = ids.min(axis=(1, 2)) >= 0
    dtype = np.uint8 if num_experts(reference.config) <= 256 else np.uint16
    for row in np.flatnonzero(present).tolist():
        reference.check(tokens[: row + 2], ids[row : row + 1].astype(dtype), start=row)


class Failing:
    """A recorder one of whose calls fails."""

    def __init__(self, recorder: moetape.Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            return self._fail
        return getattr(self._recorder, name)

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the recorder is broken")


@pytest.fixture(scope="module")
def llm(in_process: Callable[..., Any], plain_model: Path) -> Any:
    return in_process(plain_model, block_size=32, num_gpu_blocks_override=12)


@pytest.fixture
def recording(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker._moetape


# case H03
@pytest.mark.parametrize("call", ["begin", "capture", "commit"])
def test_a_failing_recorder_fails_no_request(
    llm: Any,
    recording: Any,
    plain_reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    prompt = random_tokens(np.random.default_rng(len(call)), 40)
    right, _ = generate(llm, prompt)
    llm.reset_prefix_cache()
    with monkeypatch.context() as patch:
        patch.setattr(recording, "_recorder", Failing(recording._recorder, call))
        patch.setattr(recording, "_num_faults", 0)  # the log tells of the first faults only
        patch.setattr(logging.getLogger("vllm"), "propagate", True)
        tokens, ids = generate(llm, prompt)
    assert tokens == right
    assert ids.shape[0] == len(tokens) - 1
    missing = engine.missing_rows(ids)
    if call == "begin":  # what was begun before goes on
        check_present(plain_reference, tokens, ids)
    else:
        assert sum(missing.values()) == len(ids)
    assert "the recorder is broken" in caplog.text
    llm.reset_prefix_cache()
    tokens, ids = generate(llm, prompt)
    plain_reference.check(tokens, ids)


def test_a_store_that_cannot_be_read_fails_no_request(
    llm: Any, recording: Any, plain_reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_tokens(np.random.default_rng(9), 20)
    with monkeypatch.context() as patch:
        patch.setattr(recording, "_read", lambda scheduled: 1 / 0)
        tokens, ids = generate(llm, prompt)
    assert engine.missing_rows(ids) == {"lost": len(tokens) - 1}
    tokens, ids = generate(llm, prompt)
    plain_reference.check(tokens, ids)


# case J03
def test_blocks_that_a_connector_loads_are_missing_and_never_stale(
    in_process: Callable[..., Any], plain_model: Path, plain_reference: Reference, tmp_path: Path
) -> None:
    connector = dict(
        kv_connector="ExampleConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"shared_storage_path": str(tmp_path)},
    )
    llm = in_process(plain_model, block_size=32, num_gpu_blocks_override=9, kv_transfer_config=connector)
    random = np.random.default_rng(3)
    prompts = [random_tokens(random, 70 + 10 * index) for index in range(4)]
    for prompt in prompts:
        tokens, ids = generate(llm, prompt)
        plain_reference.check(tokens, ids)
    num_missing = 0
    for _ in range(3):
        for index in random.permutation(4).tolist():
            tokens, ids = generate(llm, prompts[index])
            assert len(ids) == len(tokens) - 1
            check_present(plain_reference, tokens, ids)
            assert (ids[64 + 32 * (len(prompts[index]) > 96) :] >= 0).all()  # what was computed here
            num_missing += sum(engine.missing_rows(ids).values())
    assert num_missing > 0


# A vLLM that is not known, and what is refused.


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of a process whose vLLM is not patched yet; nothing may patch it."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.setattr(patches, "apply", lambda: pytest.fail("patched"))
    return caplog


def test_an_unknown_version_is_left_alone_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    plugin.register()
    assert "expected one of 0.32.0, got 0.33.1" in told.text


def test_an_older_version_without_these_modules_still_starts(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("vllm.distributed.aux_output_connector")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm.distributed.aux_output_connector", None)
    plugin.register()
    assert "expected its own vllm.distributed.aux_output_connector" in told.text
    monkeypatch.setattr(vllm, "__version__", "0.9.2")
    told.clear()
    plugin.register()
    assert "got 0.9.2" in told.text


@pytest.mark.parametrize("name", [*TRIED["0.32.0"]])
def test_a_changed_source_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sources("0.32.0+cpu")
    monkeypatch.setitem(TRIED["0.32.0"], name, "0" * 16)
    with pytest.raises(moetape.UnsupportedError, match=f"its own {re.escape(name)}, got another source"):
        check_sources("0.32.0+cpu")


def test_on_a_gpu_nothing_is_touched(monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(type(patches.current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    plugin.register()
    assert told.text == ""


# case J01
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(data_parallel_size=2), "data parallelism"),
        (dict(tensor_parallel_size=2, decode_context_parallel_size=2), "context parallelism"),
        (dict(runner="pooling"), "generate"),
        (dict(hf_overrides={"mlp_only_layers": [0, 1, 2, 3]}), "MoE layers"),
    ],
)
def test_what_cannot_be_recorded_is_refused_at_the_start(
    plain_model: Path, options: dict[str, Any], message: str
) -> None:
    args = EngineArgs(model=str(plain_model), dtype="float32", enable_return_routed_experts=True, **options)
    with pytest.raises(ValueError, match=message):
        args.create_engine_config()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(tensor_parallel_size=2, enable_expert_parallel=True, enable_eplb=True),
            "only supported on CUDA",
        ),
        (
            dict(
                speculative_config=dict(
                    method="ngram",
                    num_speculative_tokens=3,
                    prompt_lookup_max=3,
                    enable_adaptive_verification=True,
                )
            ),
            "V1 does not support: adaptive draft verification",
        ),
    ],
)
def test_what_vllm_itself_refuses_on_the_cpu(
    plain_model: Path, options: dict[str, Any], message: str
) -> None:
    args = EngineArgs(model=str(plain_model), dtype="float32", enable_return_routed_experts=True, **options)
    with pytest.raises(ValueError, match=message):
        args.create_engine_config()


def test_a_kernel_with_the_router_inside_is_refused_by_name(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    layer = next(module for module in model.modules() if isinstance(module, MoERunner))
    monkeypatch.setattr(type(layer._quant_method), "is_monolithic", True)
    with pytest.raises(moetape.UnsupportedError, match=r"layers\.0\..*: expected a kernel behind a router"):
        bind_routers(model)


def test_without_the_flag_nothing_is_recorded(plain_model: Path) -> None:
    config = EngineArgs(model=str(plain_model), dtype="float32").create_engine_config()
    assert not patches._is_ours(config)
