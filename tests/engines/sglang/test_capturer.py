"""SGLang's names over moetape's core, call by call against SGLang's own class."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from sglang.srt.layers.moe import topk as sglang_topk
from sglang.srt.runtime_context import get_context
from sglang.srt.state_capturer import routed_experts as own

import moetape as mt
from moetape.engines import sglang as ours
from moetape.engines.sglang.spec import captured_layers, spec_of
from moetape.engines.sglang.staging import DeviceStaging

NUM_LAYERS, LAYERS, TOP_K, EXPERTS, SLOTS = 6, [1, 2, 4, 5], 4, 16, 64
MISSING = ours.MISSING_ID
SETTINGS = {"enable_return_routed_experts": True, "chunked_prefill_size": 32, "device": "cpu"}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from sglang.srt.mem_cache.pool_host import common

    plain = lambda dims, dtype, device, *a, **k: torch.empty(dims, dtype=dtype, device=device)  # noqa: E731
    monkeypatch.setitem(common.ALLOC_MEMORY_FUNCS, "cpu", plain)
    with get_context().override_server_args(**SETTINGS):
        yield
        own.set_global_experts_capturer(None)


def config(**over: Any) -> Any:
    fields = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": NUM_LAYERS,
        "num_experts_per_tok": TOP_K,
        "num_experts": EXPERTS,
        "mlp_only_layers": [layer for layer in range(NUM_LAYERS) if layer not in LAYERS],
        "decoder_sparse_step": 1,
        **over,
    }
    return types.SimpleNamespace(hf_text_config=types.SimpleNamespace(**fields), context_len=128)


def pair(num_shared: int = 0, num_tokens: int = SLOTS, **over: Any) -> tuple[Any, ours.RoutedExpertsCapturer]:
    """SGLang's capturer and ours, made by the same call."""
    arguments = {
        "model": Model(num_shared),
        "model_config": config(**over),
        "num_tokens": num_tokens,
        "max_running_requests": 8,
        "device": "cpu",
    }
    mine = ours.RoutedExpertsCapturer.create(**arguments)
    assert mine is not None
    return own.RoutedExpertsCapturer.create(**arguments), mine


class Model(torch.nn.Module):
    def __init__(self, num_shared: int = 0) -> None:
        super().__init__()
        self.shared_experts_config = types.SimpleNamespace(num_fused_shared_experts=num_shared)


class Pool:
    """SGLang's table of a request's slots."""

    def __init__(self, *requests: Any) -> None:
        self.req_to_token = torch.zeros((len(requests), 100), dtype=torch.int32)
        for row, slots in zip(self.req_to_token, requests, strict=True):
            row[: len(slots)] = torch.as_tensor(np.asarray(slots), dtype=torch.int32)


def batch_of(slots: Any, **more: Any) -> Any:
    fields = {"out_cache_loc": torch.as_tensor(np.asarray(slots)), "out_cache_loc_virtual": None, **more}
    return types.SimpleNamespace(**fields)


def ids_of(rows: int, rng: np.random.Generator) -> torch.Tensor:
    scores = rng.random((rows, len(LAYERS), EXPERTS))
    return torch.from_numpy(np.argsort(scores, axis=2)[:, :, :TOP_K].astype(np.int32))


def step(capturer: Any, ids: torch.Tensor, slots: Any, later: bool = False, **more: Any) -> Any:
    for column, layer in enumerate(LAYERS):
        capturer.capture(layer_id=layer, topk_indices=ids[:, column])
    output = capturer.on_forward_end(
        forward_batch=batch_of(slots, **more),
        can_run_graph=False,
        cuda_graph_batch=None,
        no_copy_to_cpu=later,
    )
    if output is not None:
        output.map_device_tensors(torch.clone)
        output.finalize()
    return output


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("num_shared", [0, 1])
def test_random_calls_give_what_sglang_gives(later: bool, num_shared: int) -> None:  # cases J05 A12
    rng = np.random.default_rng(1)
    theirs, mine = pair(num_shared)
    written: set[int] = set()
    for _ in range(100):
        slots = 1 + rng.permutation(SLOTS - 1)[: rng.integers(1, 30)]
        ids = ids_of(len(slots), rng)
        if num_shared and rng.random() < 0.5:  # a router that writes the shared expert behind its choice
            ids = torch.cat([ids, torch.full((*ids.shape[:2], 1), EXPERTS, dtype=torch.int32)], dim=2)
        for capturer in (theirs, mine):
            step(capturer, ids, slots, later)
        written.update(slots.tolist())
        request = rng.choice(sorted(written), min(len(written), 12), replace=False)
        start = int(rng.integers(0, 14))
        expected = theirs.get_topk(0, len(request) + 1, Pool(request), start_len=start)
        got = mine.get_topk(0, len(request) + 1, Pool(request), start_len=start)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_a_negative_start_is_refused_as_sglang_does() -> None:  # case C20
    for capturer in pair():
        with pytest.raises(ValueError, match="-1"):
            capturer.get_topk(0, 5, Pool([1, 2, 3]), start_len=-1)


def test_virtual_slots_count_where_there_are_some() -> None:
    rng = np.random.default_rng(2)
    ids = ids_of(5, rng)  # the kernel's batch is padded
    for capturer in pair():
        step(capturer, ids, np.arange(40, 45), out_cache_loc_virtual=torch.tensor([7, 8, 9]))
        got = capturer.get_topk(0, 4, Pool([7, 8, 9]))
        assert torch.equal(got[:, LAYERS], ids[:3])


@pytest.mark.parametrize("graph_batch", [None, 8])
def test_rows_of_this_data_parallel_rank(
    monkeypatch: pytest.MonkeyPatch, graph_batch: int | None
) -> None:  # cases A01 A02
    from sglang.srt.layers import dp_attention

    counts, rank = [3, 5, 2], 1
    for module in (dp_attention, own):
        monkeypatch.setattr(module, "is_dp_attention_enabled", lambda: True)
    monkeypatch.setattr(dp_attention, "dp_slot_in", lambda counts: rank)
    first = counts[0] if graph_batch is None else graph_batch * rank
    ids = ids_of(sum(counts) if graph_batch is None else graph_batch * len(counts), np.random.default_rng(3))
    slots = np.arange(20, 25)
    for capturer in pair():
        for column, layer in enumerate(LAYERS):
            capturer.capture(layer, ids[:, column])
        batch = batch_of(slots, global_num_tokens_cpu=counts)
        capturer.on_forward_end(batch, graph_batch is not None, graph_batch)
        assert torch.equal(capturer.get_topk(0, 6, Pool(slots))[:, LAYERS], ids[first : first + 5])


def test_drafts_in_a_graph_of_several_ranks_are_missing_and_no_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # cases A02 G09
    from sglang.srt.layers import dp_attention

    for module in (dp_attention, own):
        monkeypatch.setattr(module, "is_dp_attention_enabled", lambda: True)
    monkeypatch.setattr(dp_attention, "dp_slot_in", lambda counts: 1)
    ids = ids_of(
        16, np.random.default_rng(18)
    )  # two ranks of up to eight tokens, as a graph for two requests of four has them
    theirs, mine = pair()
    for capturer in (theirs, mine):
        for column, layer in enumerate(LAYERS):
            capturer.capture(layer, ids[:, column])
    batch = batch_of([20, 21, 22, 23], global_num_tokens_cpu=[4, 4], spec_info=object())
    theirs.on_forward_end(batch, True, 4)
    assert torch.equal(theirs.get_topk(0, 5, Pool([20, 21, 22, 23]))[:, LAYERS], ids[4:8])  # of rank 0
    with pytest.raises(mt.UnsupportedError, match="rank 1"):
        mine.on_forward_end(batch, True, 4)
    assert (mine.get_topk(0, 5, Pool([20, 21, 22, 23])) == MISSING).all()


def deep_ep_rank(rank: int, port: int, expected: torch.Tensor) -> None:
    """One attention-TP rank of two: its shard in, the whole batch out."""
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers import moe as sglang_moe

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    dp_attention.attn_tp_all_gather_into_tensor = torch.distributed.all_gather_into_tensor
    backend = types.SimpleNamespace(is_deepep=lambda: True, is_deepep_v2=lambda: False)
    sglang_moe.get_moe_a2a_backend = lambda: backend
    with get_context().override_server_args(**SETTINGS):
        import sglang.srt.runtime_context as context

        context.get_parallel = lambda: types.SimpleNamespace(attn_tp_size=2, num_dp_ranks=1)
        mine = ours.RoutedExpertsCapturer.create(
            model=Model(), model_config=config(), num_tokens=SLOTS, max_running_requests=8, device="cpu"
        )
        half = len(expected) // 2
        step(mine, expected[rank * half : (rank + 1) * half], np.arange(1, 6))
        got = mine.get_topk(0, 6, Pool(np.arange(1, 6)))
        assert torch.equal(got[:, LAYERS], expected[:5])
    torch.distributed.destroy_process_group()


def test_deep_ep_shards_are_gathered_through_the_engines_group(
    unused_tcp_port_factory: Callable[[], int],
) -> None:  # case A05
    ids = ids_of(6, np.random.default_rng(4))  # five tokens and one of padding, three a rank
    torch.multiprocessing.spawn(deep_ep_rank, (unused_tcp_port_factory(), ids), nprocs=2)


@pytest.fixture
def unused_tcp_port_factory() -> Callable[[], int]:
    import socket

    def port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return port


def test_sglangs_routers_find_it_and_drafts_stay_out() -> None:  # cases H02 G09
    _, mine = pair()
    ours.set_global_experts_capturer(mine)
    assert own.get_global_experts_capturer() is mine
    assert ours.get_global_experts_capturer() is mine
    ids = ids_of(2, np.random.default_rng(5))
    allowed = sglang_topk.TopKConfig(top_k=TOP_K)
    draft = sglang_topk.TopKConfig(top_k=TOP_K, allow_routed_experts_capture=False)
    for column, layer in enumerate(LAYERS):
        sglang_topk.capture_routed_experts_if_allowed(allowed, layer, ids[:, column])
        sglang_topk.capture_routed_experts_if_allowed(draft, layer, ids[:, 0])
    mine.on_forward_end(batch_of([3, 4]), False, None)
    assert torch.equal(mine.get_topk(0, 3, Pool([3, 4]))[:, LAYERS], ids)
    ours.destroy_global_experts_capturer()
    assert ours.get_global_experts_capturer() is None
    with pytest.raises(mt.ClosedError):
        mine.get_topk(0, 3, Pool([3, 4]))


def test_draft_routers_are_opted_out_and_not_part_of_the_spec() -> None:  # case G09
    model = Model()
    model.routers = torch.nn.ModuleList(sglang_topk.TopK(TOP_K, layer_id=layer) for layer in (1, 4))
    assert captured_layers(model) == [1, 4]
    ours.disable_routed_experts_capture_for_draft(model)
    assert captured_layers(model) == []


class HashTopK(torch.nn.Module):
    """By this name SGLang's routers that choose by a table."""

    layer_id = 5


def test_the_layers_are_those_of_the_configuration_and_of_the_routers() -> None:
    model = Model()
    model.routers = torch.nn.ModuleList(sglang_topk.TopK(TOP_K, layer_id=layer) for layer in (1, 2, 3))
    model.hashed = HashTopK()
    spec = spec_of(config(), model)
    assert spec.layers == (1, 2, 3, 4)  # 4 has no router here: its rows will be missing, not zero
    assert spec.excluded == {5: "hash-routed"}


def test_the_older_signature_is_taken_too() -> None:
    assert ours.RoutedExpertsCapturer.create(False, config(), 0, SLOTS, 8, "cpu") is None
    mine = ours.RoutedExpertsCapturer.create(True, config(), 1, SLOTS, 8, "cpu")
    assert mine is not None
    assert (mine.spec.layers, mine.spec.shared_columns) == (tuple(LAYERS), 1)


def test_off_is_no_object() -> None:  # case K03
    with get_context().override_server_args(enable_return_routed_experts=False):
        assert ours.RoutedExpertsCapturer.create(model=Model(), model_config=config(), device="cpu") is None


@pytest.mark.parametrize(
    ("layers", "experts", "top_k"),
    [(48, 128, 8), (61, 256, 8)],  # Qwen3-30B-A3B; DeepSeek-V3, three of whose layers are dense
)
def test_host_memory_is_less_than_a_3_8th_of_sglangs(
    layers: int, experts: int, top_k: int, record_property: Callable[[str, object], None]
) -> None:
    dense = [0, 1, 2] if layers == 61 else []
    over = {"num_hidden_layers": layers, "num_experts": experts, "num_experts_per_tok": top_k}
    theirs, mine = pair(num_tokens=20_000, mlp_only_layers=dense, **over)
    sizes = theirs.host_cache.get_buffer_size_bytes(), mine.get_buffer_size_bytes()
    record_property("bytes", sizes)
    print(
        f"{layers} layers of {experts} experts, 20,000 slots: SGLang {sizes[0]:,} bytes, moetape {sizes[1]:,}"
    )
    assert sizes[0] >= 3.8 * sizes[1], sizes


# Where moetape differs on purpose: docs/sglang.md has the table.


def test_what_was_never_written_is_missing_and_not_expert_0() -> None:  # case H01
    theirs, mine = pair()
    assert (theirs.get_topk(0, 3, Pool([5, 6])) == 0).all()
    assert (mine.get_topk(0, 3, Pool([5, 6])) == MISSING).all()
    assert mine.read(0, 0, 2, Pool([5, 6])).missing == {"unwritten": 2}


def test_a_layer_that_nobody_captured_leaves_no_older_row() -> None:  # case H04
    rng = np.random.default_rng(6)
    old, new = ids_of(2, rng), ids_of(2, rng)
    theirs, mine = pair()
    for capturer in (theirs, mine):
        step(capturer, old, [3, 4])
        for column, layer in list(enumerate(LAYERS))[:-1]:
            capturer.capture(layer, new[:, column])
    theirs.on_forward_end(batch_of([3, 4]), False, None)
    assert torch.equal(theirs.get_topk(0, 3, Pool([3, 4]))[:, LAYERS[-1]], old[:, -1])  # of another token
    with pytest.raises(mt.NotCapturedError, match="5"):
        mine.on_forward_end(batch_of([3, 4]), False, None)
    assert (mine.get_topk(0, 3, Pool([3, 4])) == MISSING).all()


def test_an_id_that_is_no_expert_makes_its_row_missing() -> None:
    ids = ids_of(2, np.random.default_rng(7))
    ids[1, 2, 0] = EXPERTS
    _, mine = pair()
    step(mine, ids, [3, 4])
    got = mine.get_topk(0, 3, Pool([3, 4]))
    assert torch.equal(got[0, LAYERS], ids[0])
    assert (got[1] == MISSING).all()
    assert mine.counters["rows_refused"] == 1


def test_tokens_at_the_padding_slot_are_not_kept() -> None:
    ids = ids_of(3, np.random.default_rng(8))
    _, mine = pair()
    step(mine, ids, [3, 0, 0])
    assert torch.equal(mine.get_topk(0, 2, Pool([3]))[0, LAYERS], ids[0])


def test_a_layer_that_there_is_not_is_refused() -> None:  # case H03
    _, mine = pair()
    ids = ids_of(2, np.random.default_rng(17))
    for layer in (0, 3, -1, NUM_LAYERS):
        step(mine, ids, [3, 4])
        with pytest.raises(mt.OutOfRangeError, match=str(layer)):
            mine.capture(layer, ids[:, 0])
        with pytest.raises(mt.OutOfRangeError, match=str(layer)):  # rows would look whole without it
            step(mine, ids, [3, 4])
        assert mine.read(0, 0, 2, Pool([3, 4])).missing == {"invalidated": 2}


def test_a_forward_larger_than_sglangs_buffer_is_taken() -> None:  # case A04
    with get_context().override_server_args(**{**SETTINGS, "chunked_prefill_size": -1}):
        theirs, mine = pair(num_tokens=2000)
        ids = ids_of(500, np.random.default_rng(9))
        with pytest.raises(RuntimeError):
            step(theirs, ids, np.arange(1, 501))
        step(mine, ids, np.arange(1, 501))
        assert mine.read(0, 0, 90, Pool(np.arange(1, 91))).complete


def test_what_a_warm_up_captured_is_dropped() -> None:
    rng = np.random.default_rng(10)
    warm_up, ids = ids_of(30, rng), ids_of(2, rng)
    _, mine = pair()
    for column, layer in enumerate(LAYERS):
        mine.capture(layer, warm_up[:, column])
    step(mine, ids, [3, 4])
    assert torch.equal(mine.get_topk(0, 3, Pool([3, 4]))[:, LAYERS], ids)


def test_a_result_that_nobody_finalized_loses_nothing_on_a_cpu() -> None:  # case B10
    ids = ids_of(2, np.random.default_rng(11))
    for capturer, kept in zip(pair(), (False, True), strict=True):
        for column, layer in enumerate(LAYERS):
            capturer.capture(layer, ids[:, column])
        capturer.on_forward_end(batch_of([3, 4]), False, None, no_copy_to_cpu=True)
        assert torch.equal(capturer.get_topk(0, 3, Pool([3, 4]))[:, LAYERS], ids) == kept


def test_a_dense_model_is_refused_at_once() -> None:  # case J01
    with pytest.raises(mt.InvalidArgumentError, match="MoE layers"):
        pair(num_experts_per_tok=None)
    with pytest.raises(mt.InvalidArgumentError, match="MoE layers"):
        pair(mlp_only_layers=list(range(NUM_LAYERS)))


# Ids that are on a device, whose buffer a test can hold on the CPU


def on_device() -> ours.RoutedExpertsCapturer:
    _, mine = pair()
    mine.staging = DeviceStaging(mine.store, 32, "cpu")
    return mine


@pytest.mark.parametrize("num_shared", [0, 1])
def test_device_buffers_give_what_sglang_gives(num_shared: int) -> None:
    rng = np.random.default_rng(12)
    theirs, _ = pair(num_shared)
    mine = on_device()
    for _ in range(50):
        slots = 1 + rng.permutation(SLOTS - 1)[: rng.integers(1, 30)]
        ids = ids_of(len(slots), rng)
        if num_shared:
            ids = torch.cat([ids, torch.full((*ids.shape[:2], 1), EXPERTS, dtype=torch.int32)], dim=2)
        outputs = []
        for capturer in (theirs, mine):
            for column, layer in enumerate(LAYERS):
                capturer.capture(layer, ids[:, column])
            outputs.append(capturer.on_forward_end(batch_of(slots), False, None, no_copy_to_cpu=True))
        for capturer, column in ((theirs, 0), (mine, 0)):  # the next forward before these are finalized
            capturer.capture(LAYERS[column], ids_of(len(slots), rng)[:, column])
        for output in outputs:
            output.map_device_tensors(torch.clone)
            output.finalize()
        mine.begin()
        request = Pool(slots)
        size = len(slots) + 1
        assert torch.equal(mine.get_topk(0, size, request), theirs.get_topk(0, size, request))


def test_what_a_graph_left_out_is_missing_and_no_older_row() -> None:  # cases H08 H09
    rng = np.random.default_rng(13)
    mine = on_device()
    step(mine, ids_of(4, rng), [1, 2, 3, 4])
    for column, layer in list(enumerate(LAYERS))[:-1]:
        mine.capture(layer, ids_of(4, rng)[:, column])
    mine.on_forward_end(batch_of([3, 4, 5, 6]), False, None)
    missing = mine.read(0, 0, 6, Pool([1, 2, 3, 4, 5, 6])).valid.tolist()
    assert missing == [True, True, False, False, False, False]


def test_a_device_result_that_nobody_finalized_is_missing() -> None:  # case B10
    mine = on_device()
    for column, layer in enumerate(LAYERS):
        mine.capture(layer, ids_of(2, np.random.default_rng(14))[:, column])
    mine.on_forward_end(batch_of([3, 4]), False, None, no_copy_to_cpu=True)
    assert mine.read(0, 0, 2, Pool([3, 4])).missing == {"unwritten": 2}


def test_the_device_buffer_refuses_what_does_not_fit() -> None:  # cases A02 A04
    mine = on_device()
    with pytest.raises(mt.CapacityError, match=r"33 rows.*32"):
        mine.capture(1, ids_of(33, np.random.default_rng(15))[:, 0])
    with pytest.raises(mt.OutOfRangeError, match="3"):
        mine.capture(3, ids_of(2, np.random.default_rng(15))[:, 0])
    mine.begin()
    with pytest.raises(mt.CapacityError, match="40"):
        mine.on_forward_end(batch_of(np.arange(1, 41)), False, None)
