"""All that the capturers of SGLang, vLLM and LightLLM can do, line by line, against plain models of them."""

import base64
import functools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

import moetape as mt
from core_helpers import Ids, capture_layers, distinct_ids, new_store
from engine_helpers import assert_untouched
from tiny_models import tiny

LAYERS = [1, 2, 4]  # of six; the others are dense
NUM_LAYERS = 6
TOP_K = 2
EXPERTS = 16


SPEC = mt.RouteSpec(LAYERS, TOP_K, EXPERTS, num_layers=NUM_LAYERS)
make = functools.partial(new_store, num_slots=64, max_rows=32, spec=SPEC)


def ids_of(rng: np.random.Generator, rows: int) -> Ids:
    return distinct_ids(rows, SPEC, rng)


class SglangModel:
    """A device buffer by batch row, host rows by KV slot; base64 of int32 [rows, all layers, k]."""

    def __init__(self, num_slots: int, max_batch: int, shared: int = 0) -> None:
        self.device = np.zeros((max_batch, NUM_LAYERS, TOP_K + shared), np.int32)
        self.host = np.zeros((num_slots, NUM_LAYERS, TOP_K), np.int32)

    def step(self, ids: Ids, slots: NDArray[np.int64], first: int = 0) -> None:
        for layer, layer_ids in zip(LAYERS, ids.swapaxes(0, 1), strict=True):
            self.device[: len(layer_ids), layer, : layer_ids.shape[1]] = layer_ids
        self.host[slots] = self.device[first : first + len(slots), :, :TOP_K]

    def text(self, slots: NDArray[np.int64], start: int = 0) -> str:
        return base64.b64encode(self.host[slots[start:]].tobytes()).decode()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# SGLang


def test_sglang_capture_by_batch_row_and_host_rows_by_kv_slot(rng: np.random.Generator) -> None:  # case J05
    store, recorder = make()
    model = SglangModel(64, 32)
    written: set[int] = set()
    for _ in range(200):
        slots = rng.choice(64, rng.integers(1, 20), replace=False)
        ids = ids_of(rng, len(slots))
        capture_layers(recorder, ids)
        recorder.commit(slots)
        model.step(ids, slots)
        written.update(slots.tolist())
        request = rng.choice(sorted(written), min(len(written), 10), replace=False)
        assert mt.encode(store.read(request), "sglang") == model.text(request)


def test_sglang_shared_expert_columns_are_cut_from_what_is_kept(rng: np.random.Generator) -> None:  # case A12
    spec = mt.RouteSpec(LAYERS, TOP_K, EXPERTS, num_layers=NUM_LAYERS, shared_columns=1)
    store, recorder = make(spec=spec)
    ids = ids_of(rng, 5)
    with_shared = np.concatenate([ids, np.full((5, len(LAYERS), 1), EXPERTS)], axis=2)
    capture_layers(recorder, with_shared)
    recorder.commit(np.arange(5))
    model = SglangModel(64, 32, shared=1)
    model.step(with_shared, np.arange(5))
    assert mt.encode(store.read(np.arange(5)), "sglang") == model.text(np.arange(5))


@pytest.mark.parametrize("padded", [None, 8])
def test_sglang_slice_of_this_data_parallel_rank(
    rng: np.random.Generator, padded: int | None
) -> None:  # case A01
    counts, rank = [3, 5, 2], 1
    store, recorder = make()
    rows = sum(counts) if padded is None else padded * len(counts)
    first = counts[0] if padded is None else padded * rank
    layout = (
        mt.layout.dp_concat(counts, rank) if padded is None else mt.layout.dp_padded(counts, padded, rank)
    )
    ids = ids_of(rng, rows)
    capture_layers(recorder, ids)
    recorder.commit(np.arange(10, 15), layout=layout)
    model = SglangModel(64, 32)
    model.step(ids, np.arange(10, 15), first)
    assert mt.encode(store.read(np.arange(10, 15)), "sglang") == model.text(np.arange(10, 15))


def test_sglang_gathered_local_batches_are_not_sliced_again(rng: np.random.Generator) -> None:  # case A05
    store, recorder = make()
    ids = ids_of(rng, 5)
    capture_layers(recorder, ids)
    with pytest.raises(mt.WrongShapeError, match=r"8.*5|5.*8"):
        recorder.commit(np.arange(5), layout=mt.layout.dp_concat([3, 5], rank=1))
    capture_layers(recorder, ids)
    recorder.commit(np.arange(5))
    assert np.array_equal(store.read(np.arange(5)).ids, ids)


def test_sglang_draft_models_are_opted_out() -> None:  # case G09
    draft = torch.nn.Module()
    draft.layer_id = 1  # type: ignore[assignment]
    draft.capture_fn = None  # type: ignore[assignment]
    _, recorder = make()
    with pytest.raises(mt.Error, match="draft"):
        mt.models.bind(draft, recorder, stack="draft")
    assert draft.capture_fn is None


def test_sglang_off_is_no_object_and_no_cost() -> None:  # case K03
    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model = tiny("qwen3_moe")
    tokens = torch.arange(5).reshape(1, 5)
    with torch.no_grad(), Counter() as before:
        model(tokens)
    with torch.no_grad(), mt.engines.transformers.record(model):
        model(tokens)
    with torch.no_grad(), Counter() as after:
        model(tokens)
    assert before.calls == after.calls > 0
    assert_untouched(model)


def test_sglang_base64_and_its_inverse_with_a_start_offset(rng: np.random.Generator) -> None:  # case C20
    store, recorder = make()
    capture_layers(recorder, ids_of(rng, 9))  # ten tokens, nine fed
    recorder.commit(np.arange(9))
    whole = store.read(np.arange(9))
    for start, rows in [(0, 9), (8, 1), (9, 0)]:
        part = whole.slice(start, 9)
        text = mt.encode(part, "sglang")
        array = np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, NUM_LAYERS, TOP_K)
        assert len(array) == len(part) == rows
        back = mt.decode(text, "sglang", spec=store.spec, start=start, rows=rows, version=0)
        assert back == part
    for start in (10, -1):
        with pytest.raises(mt.OutOfRangeError):
            whole.slice(start, 10)


# vLLM


@pytest.mark.parametrize(("experts", "dtype"), [(256, np.uint8), (257, np.uint16)])
def test_vllm_narrowest_width_from_the_number_of_experts(experts: int, dtype: type) -> None:  # cases D01 D05
    store = mt.Store(mt.RouteSpec([0], 2, experts), 4)
    recorder = mt.Recorder(store, 4)
    recorder.capture(0, np.array([[experts - 1, 0]]))
    recorder.commit([0])
    routes = store.read([0])
    assert routes.ids.dtype == dtype
    assert routes.ids.tolist() == [[[experts - 1, 0]]]


def test_vllm_results_do_not_change_with_later_steps(rng: np.random.Generator) -> None:
    store, recorder = make()
    first = ids_of(rng, 4)
    capture_layers(recorder, first)
    recorder.commit(np.arange(4))
    snapshot = store.read(np.arange(4))
    capture_layers(recorder, ids_of(rng, 4))
    recorder.commit(np.arange(4))
    assert np.array_equal(snapshot.ids, first)


@pytest.mark.parametrize(
    ("rows", "first", "count"),
    [
        (8, 3, 5),  # naive dispatch: all ranks' tokens
        (5, 0, 5),  # modular kernel: this rank's
        (10, 4, 5),  # DP+EP: shards of both ranks, padded
    ],
)
def test_vllm_batch_layouts_by_row_count(
    rng: np.random.Generator, rows: int, first: int, count: int
) -> None:  # case A06
    store, recorder = make()
    ids = ids_of(rng, rows)
    capture_layers(recorder, ids)
    layout = mt.layout.infer(rows, [3, 5], rank=1, shard_sizes=[2, 2, 3, 3], tp_size=2)
    recorder.commit(np.arange(5), layout=layout)
    assert np.array_equal(store.read(np.arange(5)).ids, ids[first : first + count])


def test_vllm_sequence_parallel_shards_by_row_count(rng: np.random.Generator) -> None:  # case A09
    store, _ = make()
    ids = ids_of(rng, 6)  # five tokens and one of padding, in two shards
    for tp_rank in range(2):
        recorder = mt.Recorder(store, 8)
        capture_layers(recorder, ids[3 * tp_rank : 3 * tp_rank + 3])
        layout = mt.layout.infer(3, [4, 5], rank=1, tp_size=2, tp_rank=tp_rank)
        recorder.commit(np.arange(5), layout=layout)
    assert np.array_equal(store.read(np.arange(5)).ids, ids[:5])


def test_vllm_any_other_row_count_is_refused_with_the_numbers() -> None:  # case A06
    with pytest.raises(mt.WrongShapeError, match="6") as refusal:
        mt.layout.infer(6, [3, 5], rank=1, tp_size=2)
    for number in ("8", "5", "3"):
        assert number in str(refusal.value)


def test_vllm_an_explicit_layout_wins(rng: np.random.Generator) -> None:
    store, recorder = make()
    ids = ids_of(rng, 8)
    capture_layers(recorder, ids)
    recorder.commit(np.arange(3), layout=mt.layout.dp_concat([3, 5], rank=0))
    assert np.array_equal(store.read(np.arange(3)).ids, ids[:3])


class Source(torch.nn.Module):
    """A router inside a kernel that offers itself."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.capture_fn = None


def test_vllm_any_module_may_offer_itself_as_a_capture_source() -> None:
    store, recorder = make()
    model = torch.nn.ModuleList([Source(layer) for layer in LAYERS])
    with pytest.raises(mt.Error):
        mt.models.bind(torch.nn.Linear(2, 2), recorder)  # no router bound is an error
    binding = mt.models.bind(model, recorder)
    for source in model:
        source.capture_fn(torch.tensor([[3, 5]]))
    recorder.commit([7])
    assert store.read([7]).ids.tolist() == [[[3, 5]] * 3]
    binding.unbind()


def test_vllm_a_layer_outside_the_spec_is_an_error_not_a_write() -> None:  # case H03
    store, recorder = make()
    for layer in (-1, 0, 3, 6):
        with pytest.raises(mt.OutOfRangeError, match=str(layer)):
            recorder.capture(layer, np.array([[1, 2]]))
    assert recorder.counters["failed_captures"] == 4
    assert store.read([0]).missing == {"unwritten": 1}


# LightLLM


def test_lightllm_lanes_of_overlapped_micro_batches_and_extraction_by_kv_index(
    rng: np.random.Generator,
) -> None:
    store, recorder = make(lanes=2)
    host = np.zeros((len(LAYERS), 64, TOP_K), np.int8)  # layer-major, by KV index
    for step in range(20):
        batches = [ids_of(rng, 4), ids_of(rng, 6)]
        slots = rng.permutation(64)[:10]
        indexes = [slots[:4], slots[4:]]
        for position, layer in enumerate(LAYERS):  # the micro-batches take turns, layer by layer
            for lane in (0, 1):
                recorder.capture(layer, batches[lane][:, position], lane=lane)
        for lane in (1, 0):
            recorder.commit(indexes[lane], step=2 * step + 2 - lane, lane=lane)
            host[:, indexes[lane], :] = batches[lane].swapaxes(0, 1)
        extracted = store.read(slots).ids
        assert isinstance(extracted, np.ndarray)
        assert np.array_equal(extracted, host[:, slots, :].transpose(1, 0, 2))


def test_lightllm_dense_models_get_a_warning_and_no_recorder() -> None:  # case J01
    model = torch.nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="dense model"), mt.engines.transformers.record(model) as recording:  # type: ignore[arg-type]
        pass
    assert recording.routes is None


def test_lightllm_captures_larger_than_the_buffer_are_refused(
    rng: np.random.Generator,
) -> None:  # cases A03 A04
    _, recorder = make(max_rows=4)
    with pytest.raises(mt.CapacityError, match=r"needs 9 rows, the lane has 4"):
        recorder.capture(1, ids_of(rng, 9)[:, 0])


# All


def test_no_tensor_operation_runs_in_a_step(rng: np.random.Generator) -> None:  # case F04
    class Forbid(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise AssertionError(f"{func} ran")

    store, recorder = make()
    ids = [torch.from_numpy(layer_ids) for layer_ids in ids_of(rng, 4).swapaxes(0, 1)]
    slots = torch.arange(4)
    with Forbid():
        for layer, layer_ids in zip(LAYERS, ids, strict=True):
            recorder.capture(layer, layer_ids)
        recorder.commit(slots, layout=mt.layout.graph_padded(4, 4))
    assert store.read(slots).complete


def test_a_second_request_with_the_same_prefix_reads_the_same_rows(
    rng: np.random.Generator,
) -> None:  # case B16
    store, recorder = make()
    capture_layers(recorder, ids_of(rng, 8))
    recorder.commit(np.arange(8))
    capture_layers(recorder, ids_of(rng, 2))
    recorder.commit([20, 21])
    first = store.read(np.arange(8))
    second = store.read([*range(8), 20, 21])
    assert second.slice(0, 8) == first


def test_a_preempted_request_says_what_is_left_of_it(rng: np.random.Generator) -> None:  # case B04
    store, recorder = make()
    capture_layers(recorder, ids_of(rng, 4))
    recorder.commit(np.arange(4))
    saved = store.read(np.arange(4))
    store.invalidate(np.arange(4))
    capture_layers(recorder, ids_of(rng, 2))
    recorder.commit([2, 3])
    assert saved.complete
    partial = store.read(np.arange(4))
    assert not partial.complete
    assert partial.missing == {"invalidated": 2}
    store.reset()
    lost = store.read(np.arange(4))
    assert lost.missing == {"invalidated": 4}


def test_a_stage_collects_its_own_layers_only(rng: np.random.Generator) -> None:  # case G14
    ids = ids_of(rng, 3)
    parts = []
    for layers in ([1, 2], [4]):
        store = mt.Store(SPEC.with_layers(layers), 8)
        recorder = mt.Recorder(store, 8)
        for layer, layer_ids in zip(LAYERS, ids.swapaxes(0, 1), strict=True):
            if layer in layers:
                recorder.capture(layer, layer_ids)
            else:
                with pytest.raises(mt.OutOfRangeError):
                    recorder.capture(layer, layer_ids)
        recorder.commit(np.arange(3))
        parts.append(store.read(np.arange(3)))
        assert parts[-1].spec.layers == tuple(layers)
    assert np.array_equal(mt.merge_layers(parts).ids, ids)


def test_two_trainers_get_the_same_rows(rng: np.random.Generator) -> None:  # case J10
    store, recorder = make()
    capture_layers(recorder, ids_of(rng, 6))
    recorder.commit(np.arange(6))
    routes = [store.read([0, 1, 2]), store.read([3, 4, 5])]
    batch_major = np.array([[mt.replay.row_ids(s, np.arange(3))] for s in range(2)]).reshape(-1)
    sequence_major = batch_major.reshape(2, 3).T.reshape(-1).copy()
    hf, _ = mt.replay.Plan.from_row_ids(batch_major).apply(routes)
    megatron, _ = mt.replay.Plan.from_row_ids(sequence_major).apply(routes)
    assert np.array_equal(hf.reshape(3, 2, 3, TOP_K), megatron.reshape(3, 3, 2, TOP_K).swapaxes(1, 2))
