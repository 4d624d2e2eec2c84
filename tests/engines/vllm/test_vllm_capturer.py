"""The drop-in capturer beside vLLM's own: the same calls, the same rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.model_executor.layers.fused_moe import routed_experts_capturer as original

import moetape
from moetape.engines import vllm as engine
from moetape.engines.vllm import capturer as drop_in
from vllm_models import KINDS
from vllm_ranks import run_ranks

MAX_ROWS = 32


def make_config(kind: str = "plain", dp_rank: int = 0, tp_size: int = 1) -> Any:
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(**KINDS[kind])
    model = SimpleNamespace(
        hf_text_config=config,
        get_total_num_hidden_layers=lambda: config.num_hidden_layers,
        get_num_experts=lambda: config.num_experts,
        get_num_experts_per_tok=lambda: config.num_experts_per_tok,
    )
    parallel = SimpleNamespace(data_parallel_rank=dp_rank, tensor_parallel_size=tp_size)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


class Both:
    """vLLM's capturer and moetape's, given the same calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
        self.theirs = original.RoutedExpertsCapturer(MAX_ROWS, config)
        self.ours = engine.RoutedExpertsCapturer(MAX_ROWS, config)
        self.metadata: Any = None
        for module in (original, drop_in):
            monkeypatch.setattr(
                module, "get_forward_context", lambda: SimpleNamespace(dp_metadata=self.metadata)
            )

    def forward(self, num_rows: int, seed: int, dtype: torch.dtype = torch.int32) -> None:
        random = np.random.default_rng(seed)
        spec = self.ours.spec
        for layer in spec.layers:
            rows = [random.permutation(spec.num_experts)[: spec.top_k] for _ in range(num_rows)]
            ids = torch.tensor(np.array(rows), dtype=dtype)
            self.theirs.capture(layer, ids)
            self.ours.capture(layer, ids)

    def assert_same(self, num_tokens: int) -> None:
        theirs, ours = (each.snapshot_routing_data(num_tokens) for each in (self.theirs, self.ours))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.to(torch.int32), theirs.to(torch.int32))


@pytest.fixture(params=["plain", "wide"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch, make_config(request.param))


def dp_metadata(counts: list[int], local_sizes: list[int] | None = None) -> Any:
    return SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(counts), local_sizes=local_sizes)


# case J05
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_forwards_one_after_the_other(both: Both, dtype: torch.dtype) -> None:
    for step, num_rows in enumerate([5, 32, 1, 7]):
        both.forward(num_rows, seed=step, dtype=dtype)
        both.assert_same(num_rows)
        both.assert_same(num_rows // 2)
        both.assert_same(0)


def test_shapes_and_types_have_their_names(both: Both) -> None:
    for name in ("shape_per_token", "output_dtype_name", "output_dtype", "dp_rank", "tp_size"):
        assert getattr(both.ours, name) == getattr(both.theirs, name)


def test_a_snapshot_is_not_changed_by_the_next_forward(both: Both) -> None:
    both.forward(4, seed=1)
    taken = both.ours.snapshot_routing_data(4)
    kept = taken.clone()
    both.forward(4, seed=2)
    assert torch.equal(taken, kept)


def test_a_forward_that_nobody_asked_for_leaves_nothing(both: Both) -> None:
    both.forward(9, seed=1)
    both.forward(3, seed=2)
    both.assert_same(3)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("counts", "local_sizes", "num_rows"),
    [
        ([5, 3, 7], None, "total"),
        ([5, 3, 7], None, "own"),
        ([5, 3, 7], [3, 3, 2, 2, 4, 4], "total of shards"),
        ([5, 0, 7], None, "total"),
    ],
)
def test_the_layouts_of_data_parallelism(
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    counts: list[int],
    local_sizes: list[int] | None,
    num_rows: str,
) -> None:
    both = Both(monkeypatch, make_config(dp_rank=rank))
    both.metadata = dp_metadata(counts, local_sizes)
    rows = {"total": sum(counts), "own": counts[rank], "total of shards": sum(local_sizes or [])}[num_rows]
    both.forward(rows, seed=rank)
    both.assert_same(counts[rank])


def test_the_shards_of_sequence_parallelism_are_gathered_by_the_engines_group() -> None:
    run_ranks("vllm_ranks:gathers_shards", 2)


# What differs on purpose: the table of docs/vllm.md.


# case H04
def test_a_layer_that_nobody_captured_is_an_error_and_not_an_old_row(both: Both) -> None:
    both.forward(4, seed=1)
    both.assert_same(4)
    layers = both.ours.spec.layers
    ids = torch.arange(both.ours.spec.top_k).expand(4, -1)
    for layer in layers[:-1]:
        both.ours.capture(layer, ids)
    with pytest.raises(moetape.NotCapturedError, match=str(layers[-1])):
        both.ours.snapshot_routing_data(4)
    with pytest.raises(moetape.NotCapturedError):
        both.ours.snapshot_routing_data(4)


def test_no_rows_before_the_first_forward(both: Both) -> None:
    assert not both.theirs.snapshot_routing_data(3).any()
    with pytest.raises(moetape.NotCapturedError, match="expected a forward"):
        both.ours.snapshot_routing_data(3)


def test_more_rows_than_the_forward_had_are_refused(both: Both) -> None:
    both.forward(4, seed=1)
    with pytest.raises(moetape.WrongShapeError, match="expected 0 to 4 tokens, got 5"):
        both.ours.snapshot_routing_data(5)


@pytest.mark.parametrize("bad", [-1, 16, 70000])
def test_an_id_that_is_no_expert_makes_its_row_missing(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    both = Both(monkeypatch, make_config())
    for layer in both.ours.spec.layers:
        ids = torch.arange(4).repeat(3, 1)
        if layer == 2:
            ids[1, 3] = bad
        both.ours.capture(layer, ids)
    rows = both.ours.snapshot_routing_data(3).numpy()
    assert engine.missing_rows(rows) == {"refused": 1}
    assert (rows[1] < 0).all()
    assert np.array_equal(rows[[0, 2]], np.arange(4) + np.zeros((2, 4, 1), np.int64))


# case H03
@pytest.mark.parametrize("layer", [-1, 6, 99])
def test_a_layer_that_the_model_has_not_is_an_error(both: Both, layer: int) -> None:
    ids = torch.arange(both.ours.spec.top_k)[None]
    with pytest.raises(IndexError):
        both.ours.capture(layer, ids)


# case A02
def test_more_rows_than_the_largest_step_are_refused_before_any_write(both: Both) -> None:
    ids = torch.arange(both.ours.spec.top_k).repeat(MAX_ROWS + 1, 1)
    with pytest.raises(moetape.CapacityError):
        both.ours.capture(both.ours.spec.layers[0], ids)
    both.forward(MAX_ROWS, seed=1)
    both.assert_same(MAX_ROWS)


def test_a_batch_of_no_layout_is_refused_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, make_config())
    both.metadata = dp_metadata([4, 4])
    ids = torch.arange(4).repeat(7, 1)
    with pytest.raises(AssertionError):
        both.theirs.capture(0, ids)
    with pytest.raises(moetape.WrongShapeError, match="7"):
        both.ours.capture(0, ids)


# case J01
def test_a_dense_model_is_refused_at_creation() -> None:
    config = make_config()
    config.model_config.hf_text_config.mlp_only_layers = [0, 1, 2, 3]
    with pytest.raises(moetape.InvalidArgumentError, match="MoE"):
        engine.RoutedExpertsCapturer(MAX_ROWS, config)


class Source(torch.nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer_id = layer
        self.capture_fn: Any = None


def test_modules_that_tell_their_choice_themselves_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, make_config())
    model = torch.nn.ModuleList([Source(layer) for layer in range(4)])
    assert isinstance(model[0], engine.RoutedExpertsCaptureSource)
    engine.bind_routed_experts_capturer(model, both.ours)
    for layer, module in enumerate(model):
        module.capture_fn(torch.tensor([[layer, layer + 1, layer + 2, layer + 3]]))
    assert both.ours.snapshot_routing_data(1)[0, :, 0].tolist() == [0, 1, 2, 3]


def test_a_model_without_routers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, make_config())
    with pytest.raises(moetape.InvalidArgumentError, match="expected routers"):
        engine.bind_routed_experts_capturer(torch.nn.Linear(2, 2), both.ours)


def test_the_sink_of_a_monolithic_kernel_forgets_a_forward() -> None:
    taken: list[torch.Tensor] = []
    moe_config = SimpleNamespace(
        use_ep=False, ep_size=1, dp_size=2, max_num_tokens=8, experts_per_token=3, device="cpu"
    )
    ours = engine.RoutedExpertsSink(moe_config, lambda ids: taken.append(ids.clone()))
    theirs = original.RoutedExpertsSink(moe_config, taken.append)
    assert (ours.buffer.shape, ours.buffer.dtype) == (theirs.buffer.shape, theirs.buffer.dtype)
    batch = ours.buffer[:4]
    batch[:3] = torch.arange(3, dtype=torch.int16)
    ours.capture_fn(batch)
    assert taken[0].tolist() == [[0, 1, 2]] * 3 + [[-1] * 3]  # the kernel left out a row: it is padding
    assert (ours.buffer == -1).all()


def test_the_routers_of_a_real_model_are_bound(
    in_process: Any, plain_model: Path, plain_reference: Any
) -> None:
    """A fork that has its own worker: the drop-in is bound by hand and gives what the router chose."""
    llm = in_process(plain_model, enable_return_routed_experts=False, enable_prefix_caching=False)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    capturer = engine.RoutedExpertsCapturer(64, worker.vllm_config)
    engine.bind_routed_experts_capturer(worker.model_runner.get_model(), capturer)
    from vllm import SamplingParams

    prompt = list(range(3, 43))
    [output] = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=1), use_tqdm=False)
    plain_reference.check([*prompt, *output.outputs[0].token_ids], capturer.snapshot_routing_data(40).numpy())
