"""LightLLM's names over moetape's core, call by call against a plain model of LightLLM's own behaviour."""

from __future__ import annotations

import base64
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import moetape as mt
from core_helpers import distinct_ids
from moetape.engines import lightllm

LAYERS, TOP_K, EXPERTS, SLOTS, ROWS = 3, 2, 16, 64, 16


class Model:
    """What LightLLM's manager does: layer-major buffers that begin as zeros."""

    def __init__(self, num_experts: int = EXPERTS, overlap: bool = False) -> None:
        self.dtype = np.int8 if num_experts <= 127 else np.int16
        self.num_slots = 2 if overlap else 1
        self.staging = np.zeros((self.num_slots, LAYERS, ROWS, TOP_K), self.dtype)
        self.kept = np.zeros((LAYERS, SLOTS, TOP_K), self.dtype)

    def capture(self, layer: int, ids: NDArray[np.int64], microbatch: int = 0) -> None:
        self.staging[microbatch, layer, : len(ids)] = ids

    def flush(self, indexes: NDArray[np.int64], microbatch: int) -> None:
        self.kept[:, indexes] = self.staging[microbatch % self.num_slots, :, : len(indexes)]

    def extract(self, indexes: NDArray[np.int64]) -> NDArray[Any]:
        return self.kept[:, indexes]


def manager_of(num_experts: int = EXPERTS, overlap: bool = False, **more: Any) -> Any:
    more.setdefault("device", "cpu")
    return lightllm.RoutingCaptureManager(LAYERS, TOP_K, num_experts, ROWS, SLOTS, overlap, **more)


def step(manager: Any, indexes: NDArray[np.int64], ids: NDArray[np.int64], microbatch: int = 0) -> None:
    for layer in range(LAYERS):
        manager.capture(layer, torch.from_numpy(ids[:, layer]), microbatch)
    manager.flush_to_cpu_async(torch.from_numpy(indexes), microbatch)


def ids_of(rows: int, rng: np.random.Generator, num_experts: int = EXPERTS) -> NDArray[np.int64]:
    return distinct_ids(rows, mt.RouteSpec(range(LAYERS), TOP_K, num_experts), rng)


@pytest.fixture(autouse=True)
def no_global() -> Iterator[None]:
    yield
    lightllm.destroy_routing_capture_manager()


@pytest.mark.parametrize(("num_experts", "dtype"), [(127, np.int8), (128, np.int16), (384, np.int16)])
def test_random_calls_give_what_lightllm_gives(num_experts: int, dtype: type) -> None:  # case J05
    rng = np.random.default_rng(3)
    manager, model = manager_of(num_experts), Model(num_experts)
    written: set[int] = set()
    for _ in range(100):
        indexes = rng.choice(SLOTS, rng.integers(1, ROWS + 1), replace=False)
        ids = ids_of(len(indexes), rng, num_experts)
        step(manager, indexes, ids)
        for layer in range(LAYERS):
            model.capture(layer, ids[:, layer])
        model.flush(indexes, 0)
        written.update(indexes.tolist())
        request = rng.choice(sorted(written), min(len(written), 20), replace=False)
        got = manager.extract_for_request(torch.from_numpy(request))
        assert got.dtype == dtype
        assert np.array_equal(got, model.extract(request))
        assert np.array_equal(manager.extract_for_request_no_sync(torch.from_numpy(request)), got)


def test_micro_batches_in_flight_do_not_mix() -> None:
    rng = np.random.default_rng(4)
    manager, model = manager_of(overlap=True), Model(overlap=True)
    for _ in range(30):
        slots = rng.permutation(SLOTS)[:9]
        parts = [slots[:4], slots[4:]]
        ids = [ids_of(len(part), rng) for part in parts]
        for layer in range(LAYERS):
            for lane in (0, 1):
                manager.capture(layer, torch.from_numpy(ids[lane][:, layer]), lane)
                model.capture(layer, ids[lane][:, layer], lane)
        for lane in (1, 0):
            manager.flush_to_cpu_async(torch.from_numpy(parts[lane]), lane)
            model.flush(parts[lane], lane)
        manager.sync_events()
        assert np.array_equal(
            manager.extract_for_request_no_sync(torch.from_numpy(slots)), model.extract(slots)
        )


def test_an_empty_flush_does_nothing() -> None:
    rng = np.random.default_rng(5)
    manager = manager_of()
    ids = ids_of(3, rng)
    for layer in range(LAYERS):
        manager.capture(layer, torch.from_numpy(ids[:, layer]))
    manager.flush_to_cpu_async(torch.empty(0, dtype=torch.int64), 0)
    manager.flush_to_cpu_async(torch.tensor([4, 5, 6]), 0)
    assert np.array_equal(manager.extract_for_request(torch.tensor([4, 5, 6])), ids.swapaxes(0, 1))


def test_a_warm_up_that_was_never_flushed_leaves_nothing() -> None:
    rng = np.random.default_rng(6)
    manager = manager_of()
    warm_up = ids_of(ROWS, rng)
    for layer in range(LAYERS):
        manager.capture(layer, torch.from_numpy(warm_up[:, layer]))
    ids = ids_of(2, rng)
    step(manager, np.array([0, 1]), ids)
    assert np.array_equal(manager.extract_for_request(torch.tensor([0, 1])), ids.swapaxes(0, 1))


# Where moetape differs on purpose: docs/lightllm.md has the table.


def test_what_was_never_written_is_missing_and_not_expert_0() -> None:  # case H01
    manager, model = manager_of(), Model()
    assert (model.extract(np.array([7])) == 0).all()
    assert (manager.extract_for_request(torch.tensor([7])) == lightllm.MISSING_ID).all()
    assert manager.read(torch.tensor([7])).missing == {"unwritten": 1}


def test_kv_from_elsewhere_has_no_row_of_an_older_owner() -> None:  # case B02
    manager = manager_of()
    ids = ids_of(2, np.random.default_rng(3))
    step(manager, np.array([4, 5]), ids)
    manager.store.invalidate(torch.tensor([4]))
    assert manager.read(torch.tensor([4, 5])).missing == {"invalidated": 1}
    assert (manager.extract_for_request(torch.tensor([4])) == lightllm.MISSING_ID).all()
    step(manager, np.array([4]), ids[1:])
    assert np.array_equal(manager.extract_for_request(torch.tensor([4])), ids[1:].swapaxes(0, 1))


def test_a_layer_that_nobody_captured_is_named() -> None:  # case H04
    manager = manager_of()
    manager.capture(0, torch.tensor([[1, 2]]))
    manager.capture(2, torch.tensor([[1, 2]]))
    with pytest.raises(mt.NotCapturedError, match="1"):
        manager.flush_to_cpu_async(torch.tensor([3]), 0)
    assert (manager.extract_for_request(torch.tensor([3])) == lightllm.MISSING_ID).all()


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_that_there_is_not_is_refused(layer: int) -> None:  # case H03
    with pytest.raises(mt.OutOfRangeError, match=rf"0 to 2, got {layer}"):
        manager_of().capture(layer, torch.tensor([[1, 2]]))


def test_more_rows_than_the_batch_holds_are_refused_with_both_figures() -> None:  # case A04
    ids = torch.from_numpy(ids_of(ROWS + 1, np.random.default_rng(0))[:, 0])
    with pytest.raises(mt.CapacityError, match=r"17.*16"):
        manager_of().capture(0, ids)


def test_an_id_that_is_no_expert_makes_its_row_missing() -> None:
    manager = manager_of()
    ids = np.array([[[1, 2]] * LAYERS, [[1, 200]] * LAYERS])  # in int8, 200 would be -56
    step(manager, np.array([8, 9]), ids)
    assert manager.extract_for_request(torch.tensor([8, 9]))[:, :, 0].tolist() == [[1, -1]] * LAYERS


def test_memory_is_that_of_narrow_rows_up_to_256_experts() -> None:
    wide = lightllm.RoutingCaptureManager(58, 8, 256, 64, 1000, device="cpu")
    theirs = 58 * 1000 * 8 * 2  # int16
    assert wide.store.memory_bytes < 0.53 * theirs


def test_the_real_layers_of_a_model_can_be_named() -> None:
    spec = mt.RouteSpec([2, 3, 5], TOP_K, EXPERTS, num_layers=6)
    manager = manager_of(spec=spec)
    ids = ids_of(2, np.random.default_rng(1))
    step(manager, np.array([0, 1]), ids)
    assert manager.read(torch.tensor([0, 1])).spec == spec
    assert np.array_equal(manager.extract_for_request(torch.tensor([0, 1])), ids.swapaxes(0, 1))
    with pytest.raises(mt.InvalidArgumentError, match="3 layers"):
        manager_of(spec=mt.RouteSpec([1, 2], TOP_K, EXPERTS))


# Answers


@pytest.mark.parametrize(("num_experts", "dtype"), [(256, "uint8"), (257, "int16")])
def test_the_answer_is_todays(num_experts: int, dtype: str) -> None:
    manager = manager_of(num_experts)
    ids = ids_of(3, np.random.default_rng(2), num_experts)
    step(manager, np.array([0, 1, 2]), ids)
    answer = lightllm.answer(manager.read(torch.tensor([0, 1, 2])))
    assert list(answer) == ["shape", "dtype", "data"]
    assert (answer["shape"], answer["dtype"]) == ([3, LAYERS, TOP_K], dtype)
    assert base64.b64decode(answer["data"]) == ids.astype(dtype).tobytes()


def test_an_answer_says_what_is_missing() -> None:
    manager = manager_of()
    ids = ids_of(2, np.random.default_rng(2))
    step(manager, np.array([0, 2]), ids)
    answer = lightllm.answer(manager.read(torch.tensor([0, 1, 2])))
    assert answer["missing"] == {"unwritten": 1}
    assert answer["dtype"] == "int16"
    rows = np.frombuffer(base64.b64decode(answer["data"]), np.int16).reshape(answer["shape"])
    assert (rows[1] == -1).all()
    assert np.array_equal(rows[[0, 2]], ids)


# The process's manager


def test_a_second_create_is_refused() -> None:
    arguments = (LAYERS, TOP_K, EXPERTS, ROWS, SLOTS)
    lightllm.create_routing_capture_manager(*arguments, device="cpu")
    first = lightllm.g_routing_capture_manager
    with pytest.raises(mt.ConflictError, match="already exists"):
        lightllm.create_routing_capture_manager(*arguments, device="cpu")
    assert lightllm.g_routing_capture_manager is first
    lightllm.destroy_routing_capture_manager()
    assert lightllm.g_routing_capture_manager is None


@pytest.fixture
def in_lightllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules of LightLLM that init_routing_capture calls, by their names there."""
    state: dict[str, Any] = {"rank": 0, "arrays": {}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    class SharedArray:
        def __init__(self, name: str, shape: tuple[int, ...], dtype: type) -> None:
            self.arr = state["arrays"].setdefault(name, np.zeros(shape, dtype))

    modules = {
        "lightllm.utils.dist_utils": {"get_current_rank_in_dp": lambda: state["rank"]},
        "lightllm.utils.envs_utils": {"get_unique_server_name": lambda: "server-1"},
        "lightllm.server.router.dynamic_prompt.shared_arr": {"SharedArray": SharedArray},
    }
    for name, contents in modules.items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            parent = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent) or types.ModuleType(parent))
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return state


def loaded(**config: int) -> Any:
    return types.SimpleNamespace(
        config=config,
        args=types.SimpleNamespace(enable_decode_microbatch_overlap=True),
        max_total_token_num=ROWS,
        mem_manager=types.SimpleNamespace(size=SLOTS - 1),
    )


@pytest.mark.parametrize("name", ["n_routed_experts", "num_experts"])
def test_init_tells_other_processes_the_shape(in_lightllm: dict[str, Any], name: str) -> None:
    lightllm.init_routing_capture(loaded(**{name: EXPERTS}, num_experts_per_tok=TOP_K), LAYERS)
    manager = lightllm.g_routing_capture_manager
    assert manager is not None
    assert (manager.num_moe_layers, manager.topk, manager.num_experts) == (LAYERS, TOP_K, EXPERTS)
    assert (manager.kv_cache_size, manager.batch_max_tokens, manager.num_slots) == (SLOTS, ROWS, 2)
    assert in_lightllm["arrays"]["server-1_routing_config"].tolist() == [LAYERS, TOP_K]
    assert lightllm.get_routing_config_shm().arr.tolist() == [LAYERS, TOP_K]


def test_only_rank_0_of_a_group_records(in_lightllm: dict[str, Any]) -> None:
    in_lightllm["rank"] = 1
    lightllm.init_routing_capture(loaded(num_experts=EXPERTS, num_experts_per_tok=TOP_K), LAYERS)
    assert lightllm.g_routing_capture_manager is None
    assert not in_lightllm["arrays"]


def test_a_dense_model_gets_a_warning_and_no_manager(
    in_lightllm: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:  # case J01
    with caplog.at_level(logging.WARNING):
        lightllm.init_routing_capture(loaded(), 0)
    assert "no MoE layers" in caplog.text
    assert lightllm.g_routing_capture_manager is None


def test_a_configuration_without_experts_is_refused(in_lightllm: dict[str, Any]) -> None:  # case J01
    with pytest.raises(mt.InvalidArgumentError, match="got 0 and 2"):
        lightllm.init_routing_capture(loaded(num_experts_per_tok=TOP_K), LAYERS)
