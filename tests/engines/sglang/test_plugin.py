"""What the plug-in does in SGLang's processes, part by part; test_engine.py has the whole."""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import pickle
import pkgutil
import types
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.engines import sglang as ours
from moetape.engines.sglang import answering, patches, plugin, scheduling
from moetape.engines.sglang.answers import Options, Shipment, arrived, shipped
from moetape.engines.sglang.staging import MAX_UNTOLD, DeviceStaging

SPEC = mt.RouteSpec([1, 2], top_k=2, num_experts=8, num_layers=4)
IDS = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 0]], [[0, 1], [2, 3]]])


def routes(valid: list[bool] | None = None) -> mt.Routes:
    return mt.Routes.from_ids(SPEC, IDS, valid=valid, version=3, tokens=[10, 11, 12])


def wide(valid: list[bool] | None = None) -> np.ndarray:
    ids = np.zeros((3, 4, 2), np.int32)
    ids[:, [1, 2]] = IDS
    if valid is not None:
        ids[~np.array(valid)] = -1
    return ids


# Patches


def test_the_table_has_every_function_that_is_replaced() -> None:
    assert "0.5.23" in patches.sources()
    for known in patches.sources().values():
        assert set(known) == {*plugin.HOOKS, *plugin.WATCHED}


def test_a_version_that_was_not_tried_is_refused_and_nothing_changed() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    before = TokenizerManager.generate_request
    with pytest.raises(mt.UnsupportedError, match=r"9\.9\.9.*tried with 0\.5\.23"):
        patches.apply(plugin.HOOKS, plugin.WATCHED, version="9.9.9")
    assert TokenizerManager.generate_request is before


def test_a_fork_with_other_sources_is_refused_by_name_and_nothing_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    def another(self: Any) -> None:
        return None

    monkeypatch.setattr(DetokenizerManager, "_b64_encode_per_request", another)
    before = TokenizerManager.generate_request
    with pytest.raises(mt.UnsupportedError, match=r"DetokenizerManager\._b64_encode_per_request"):
        patches.apply(plugin.HOOKS, plugin.WATCHED)
    assert TokenizerManager.generate_request is before


def test_a_fork_that_hands_out_slots_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.mem_cache.allocator import token

    class Another:
        """Whose new method nobody follows."""

    monkeypatch.setattr(token, "TokenToKVPoolAllocator", Another)
    before = TokenizerManager.generate_request
    with pytest.raises(mt.UnsupportedError, match=r"token\.TokenToKVPoolAllocator"):
        patches.apply(plugin.HOOKS, plugin.WATCHED)
    assert TokenizerManager.generate_request is before


# Options and forms


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, {"moetape": {}}, {"moetape": None}])
def test_without_options_the_form_is_sglangs(given: Any) -> None:
    assert Options.of(given) == Options("int32", last_row=False)


def test_the_server_can_have_another_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOETAPE_SGLANG_FORM", "tape")
    assert Options.of(None).form == "tape"
    assert Options.of({"moetape": {"form": "int32"}}).form == "int32"


@pytest.mark.parametrize("given", ["tape", {"form": "int8"}, {"last_row": 1}, {"rows": 3}, {"form": None}])
def test_wrong_options_are_refused(given: Any) -> None:
    with pytest.raises(mt.InvalidArgumentError, match="expected"):
        Options.of({"moetape": given})


@pytest.mark.parametrize("by_pickle", [True, False])
def test_the_scheduler_ships_narrow_rows(by_pickle: bool) -> None:
    sent = shipped(Shipment(routes(), "int32"), by_pickle)
    assert isinstance(sent, torch.Tensor) != by_pickle
    got = arrived(pickle.loads(pickle.dumps(sent)))
    assert got == Shipment(routes(), "int32")
    assert base64.b64decode(got.text()) == wide().tobytes()
    assert got.notes() == {}


def test_a_missing_row_is_minus_one_and_said() -> None:
    valid = [True, False, True]
    for form in ("int32", "narrow"):
        shipment = Shipment(routes(valid), form)
        assert base64.b64decode(shipment.text()) == wide(valid).tobytes()
        notes = shipment.notes()
        assert notes.pop("routed_experts_missing") == {"not_sent": 1}
        assert notes == ({} if form == "int32" else {"routed_experts_dtype": "int32"})
        answer = {"meta_info": {"routed_experts": shipment.text(), **notes}}
        assert ours.extract_routed_experts_from_meta_info(answer).tolist() == wide(valid).ravel().tolist()


def test_a_tape_says_itself_what_is_missing() -> None:
    shipment = Shipment(routes([True, False, True]), "tape")
    back = mt.Tape.from_bytes(base64.b64decode(shipment.text()))[0]
    assert back.valid.tolist() == [True, False, True]
    assert (back.tokens.tolist(), back.versions) == ([10, 11, 12], [(0, 1, 3), (2, 3, 3)])
    assert shipment.notes()["routed_experts_dtype"] == "tape"


def test_ids_are_extracted_as_sglang_does() -> None:
    from sglang.srt.state_capturer.routed_experts import extract_routed_experts_from_meta_info as theirs

    answer = {"meta_info": {"routed_experts": Shipment(routes(), "int32").text()}}
    assert np.array_equal(ours.extract_routed_experts_from_meta_info(answer), theirs(answer))
    narrow = Shipment(routes(), "narrow")
    answer = {"meta_info": {"routed_experts": narrow.text(), **narrow.notes()}}
    got = ours.extract_routed_experts_from_meta_info(answer)
    assert (got.dtype, got.tolist()) == (np.int32, wide().ravel().tolist())


def test_an_answer_without_routes_says_why() -> None:  # cases E01 J04
    with pytest.raises(mt.MissingRowsError, match="OSError: full"):
        ours.extract_routed_experts_from_meta_info({"meta_info": {"routed_experts_error": "OSError: full"}})
    with pytest.raises(mt.MissingRowsError, match="hop"):
        ours.extract_routed_experts_from_meta_info({"meta_info": {}})
    with pytest.raises(mt.UnsupportedError, match="tape"):
        ours.extract_routed_experts_from_meta_info(
            {"meta_info": {"routed_experts": "AAAA", "routed_experts_dtype": "tape"}}
        )


# The scheduler


def guard(place: str = "host") -> scheduling.GuardedCapturer:
    """place: where ids wait; a device's buffer is one that a test can hold on the CPU."""
    capturer = ours.RoutedExpertsCapturer(SPEC, num_tokens=32, max_rows=8)
    if place == "device":
        capturer.staging = DeviceStaging(capturer.store, 8, "cpu")
    return scheduling.GuardedCapturer(capturer)


def batch_of(slots: list[int]) -> Any:
    return types.SimpleNamespace(out_cache_loc=torch.tensor(slots), out_cache_loc_virtual=None)


def record(guarded: scheduling.GuardedCapturer, slots: list[int]) -> None:
    launch(guarded, slots, later=False)


def launch(guarded: scheduling.GuardedCapturer, slots: list[int], later: bool = True) -> Any:
    """A forward; with overlap scheduling its result comes later."""
    for column, layer in enumerate(SPEC.layers):
        guarded.capture(layer, torch.from_numpy(IDS[: len(slots), column]))
    return guarded.on_forward_end(batch_of(slots), False, None, no_copy_to_cpu=later)


def arrive(output: Any) -> None:
    output.map_device_tensors(torch.clone)
    output.finalize()


def pool_of(slots: Any) -> Any:
    return types.SimpleNamespace(req_to_token=torch.as_tensor(slots, dtype=torch.int32)[None])


def missing(guarded: scheduling.GuardedCapturer, slots: list[int]) -> list[str]:
    """What the rows of a request in these slots are: valid, or why they are not."""
    routes = guarded.capturer.read(0, 0, len(slots), pool_of(slots))
    return [mt.REASONS[reason] for reason in routes.reasons]


def test_a_lost_forward_leaves_no_older_row(monkeypatch: pytest.MonkeyPatch) -> None:  # case H03
    guarded = guard()
    record(guarded, [3, 4, 5])
    assert guarded.fault is None

    def broken(*args: Any) -> None:
        raise RuntimeError("no layout")

    monkeypatch.setattr(guarded.capturer, "on_forward_end", broken)
    assert guarded.on_forward_end(batch_of([4, 5]), False, None) is None
    assert guarded.fault == "RuntimeError: no layout"
    assert missing(guarded, [3, 4, 5]) == ["valid", "invalidated", "invalidated"]


class KVPool:
    """SGLang's, of which only the moving is looked at."""

    def move_kv_cache(self, target: torch.Tensor, source: torch.Tensor) -> None:
        return None


def followed(guarded: scheduling.GuardedCapturer, size: int = 20) -> Any:
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    allocator = TokenToKVPoolAllocator(size, torch.int64, "cpu", KVPool(), need_sort=False)
    scheduling.follow_allocator(guarded, allocator)
    return allocator


PLACES = pytest.mark.parametrize("place", ["host", "device"])


@PLACES
def test_a_slot_with_a_new_owner_is_missing_until_it_is_written(place: str) -> None:  # case B02
    guarded = guard(place)
    allocator = followed(guarded)
    first = allocator.alloc(3).tolist()
    record(guarded, first)
    assert missing(guarded, first) == ["valid"] * 3
    allocator.free(torch.tensor(first))
    allocator.alloc(17)
    reused = allocator.alloc(3).tolist()
    assert sorted(reused) == sorted(first)
    record(guarded, [reused[0]])  # the KV of the others comes from elsewhere
    assert missing(guarded, reused) == ["valid", "invalidated", "invalidated"]
    record(guarded, reused)
    assert missing(guarded, reused) == ["valid"] * 3
    allocator.clear()
    assert missing(guarded, reused) == ["invalidated"] * 3
    assert guarded.fault is None


def test_a_late_result_does_not_revive_rows_of_the_older_owner() -> None:  # case B02
    guarded = guard("device")
    allocator = followed(guarded)
    slots = allocator.alloc(2).tolist()
    overshoot = launch(guarded, slots)  # of a request that has ended, as the scheduler learns only now
    allocator.free(torch.tensor(slots))
    allocator.alloc(18)
    loaded = allocator.alloc(2).tolist()
    assert sorted(loaded) == sorted(slots)
    arrive(overshoot)
    step = launch(guarded, [30])
    assert missing(guarded, loaded) == ["invalidated"] * 2
    arrive(step)
    assert missing(guarded, loaded) == ["invalidated"] * 2
    arrive(launch(guarded, loaded))
    assert missing(guarded, loaded) == ["valid"] * 2


def test_new_owners_are_known_where_the_engine_drops_its_results() -> None:  # case B10
    guarded = guard("device")
    allocator = followed(guarded)
    slots = allocator.alloc(2).tolist()
    record(guarded, slots)
    for _ in range(600):
        allocator.free(torch.tensor(slots))
        allocator.alloc(18)
        allocator.clear()
        assert allocator.alloc(2).tolist() == slots
        launch(guarded, slots)
    assert len(guarded.capturer.staging._untold) <= MAX_UNTOLD  # type: ignore[attr-defined]
    assert missing(guarded, slots) == ["invalidated"] * 2


@PLACES
@pytest.mark.parametrize("later", [False, True])
def test_rows_go_with_kv_that_is_moved(place: str, later: bool) -> None:
    """A tree of drafts is verified in one forward; what is accepted moves to the front."""
    guarded = guard(place)
    allocator = followed(guarded)
    slots = allocator.alloc(3).tolist()
    output = launch(guarded, slots, later)
    root, _, accepted = slots
    pad = torch.zeros(1, dtype=torch.int64)
    target, source = torch.tensor([root, slots[1]]), torch.tensor([root, accepted])
    allocator.get_kvcache().move_kv_cache(torch.cat([target, pad]), torch.cat([source, pad]))
    if output is not None:
        arrive(output)
    routes = guarded.capturer.read(0, 0, 2, pool_of(slots))
    assert np.array_equal(routes.ids, IDS[[0, 2]])
    assert guarded.fault is None


def test_sglang_moves_accepted_drafts_by_the_call_that_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # case G09
    """Two requests verify three drafts each; of the second, the first and the third are accepted."""
    from sglang.srt.speculative import spec_utils

    def front(counts: torch.Tensor, window: torch.Tensor, out: torch.Tensor) -> None:
        """SGLang's kernel of this name, which no wheel has for a CPU."""
        places = [places[:count] for places, count in zip(window.view(2, -1), counts, strict=True)]
        out[: int(counts.sum())] = torch.cat(places)

    def chosen(index: torch.Tensor, places: torch.Tensor, out: torch.Tensor, size: int) -> None:
        picked = index[index >= 0]
        out[: len(picked)] = places[picked]

    monkeypatch.setattr(spec_utils, "fill_front_out_cache_loc_func", front)
    monkeypatch.setattr(spec_utils, "fill_accept_out_cache_loc_func", chosen)
    guarded = guard()
    allocator = followed(guarded)
    slots = allocator.alloc(6)
    ids = np.random.default_rng(2).permuted(np.tile(np.arange(8), (6, 2, 1)), axis=2)[:, :, :2]
    for column, layer in enumerate(SPEC.layers):
        guarded.capture(layer, torch.from_numpy(np.ascontiguousarray(ids[:, column])))
    guarded.on_forward_end(batch_of(slots.tolist()), False, None)
    batch = types.SimpleNamespace(seq_lens=torch.tensor([5, 9]), out_cache_loc=slots)
    index = torch.tensor([[0, 1, -1], [3, 5, -1]])
    spec_utils.move_accept_tokens_to_target_kvcache(batch, index, torch.tensor([1, 1]), allocator)
    assert guarded.fault is None
    first, second = slots[:2].tolist(), slots[3:5].tolist()
    assert np.array_equal(guarded.capturer.read(0, 0, 2, pool_of(first)).ids, ids[:2])
    assert np.array_equal(guarded.capturer.read(0, 0, 2, pool_of(second)).ids, ids[[3, 5]])


@PLACES
def test_a_move_that_fails_leaves_no_older_row(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard(place)
    allocator = followed(guarded)
    slots = allocator.alloc(3).tolist()
    record(guarded, slots)
    allocator.get_kvcache().move_kv_cache(torch.tensor(slots[:2]), torch.tensor([1000, slots[2]]))
    assert "1000" in str(guarded.fault)
    assert missing(guarded, slots) == ["invalidated", "invalidated", "valid"]


@PLACES
def test_slots_that_there_are_not_leave_no_older_row_anywhere(place: str) -> None:  # case H03
    guarded = guard(place)
    allocator = followed(guarded, size=40)  # of 32
    slots = allocator.alloc(3).tolist()
    record(guarded, slots)
    allocator.alloc(37)
    record(guarded, [30])
    assert missing(guarded, slots) == ["invalidated"] * 3
    assert "32" in str(guarded.fault)


def test_every_road_on_which_sglang_hands_out_slots_is_known() -> None:
    """A method of its allocators that is in none of these lists needs a look."""
    from sglang.srt.mem_cache import allocator as package

    others = {
        "alloc_device_buffer": "of HiSparse, physical places behind slots that have their owner",
        "alloc_with_virtual": "the other side of slots that have their owner",
        "alloc_physical": "as alloc_with_virtual",
        "alloc_group_begin": "of Mamba's states, which are no tokens",
        "alloc_group_end": "as alloc_group_begin",
    }
    found = {
        name
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
        for _, each in inspect.getmembers(importlib.import_module(info.name), inspect.isclass)
        for name in vars(each)
        if f"{name}_".startswith("alloc_") and callable(vars(each)[name])
    }
    assert found - set(others) == set(scheduling.HANDING_OUT)


def test_the_inner_allocator_is_followed_too() -> None:
    """HiCache asks the full-attention half of a hybrid cache by itself."""
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    guarded = guard()
    inner = TokenToKVPoolAllocator(20, torch.int64, "cpu", None, need_sort=False)
    outer = TokenToKVPoolAllocator(20, torch.int64, "cpu", None, need_sort=False)
    outer.full_attn_allocator = inner
    scheduling.follow_allocator(guarded, outer)
    record(guarded, [1, 2])
    assert inner.alloc(2).tolist() == [1, 2]
    assert missing(guarded, [1, 2]) == ["invalidated"] * 2


def finished(**more: Any) -> Any:
    fields: dict[str, Any] = {
        "return_routed_experts": True,
        "routed_experts_start_len": 0,
        "origin_input_ids": [10, 11],
        "output_ids_through_stop": [12, 13],
        "kv": types.SimpleNamespace(req_pool_idx=0),
        "sampling_params": types.SimpleNamespace(custom_params=None),
        "rid": "r",
        "finished": lambda: True,
    }
    return types.SimpleNamespace(**{**fields, **more})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's, whose requests' tokens stand in slots 3, 4 and 5, with a guard around our capturer."""
    guarded = guard()
    record(guarded, [3, 4, 5])
    monkeypatch.setattr(scheduling, "get_global_experts_capturer", lambda: guarded)
    pool = types.SimpleNamespace(req_to_token=torch.tensor([[3, 4, 5, 9]], dtype=torch.int32))
    return types.SimpleNamespace(req_to_token_pool=pool, guard=guarded)


def collected(processor: Any, request: Any) -> tuple[Any, Any]:
    scheduling.collect(lambda *args: pytest.fail("SGLang's own was called"), processor, request)
    return request.routed_experts, getattr(request, "_moetape_notes", None)


def test_a_finished_request_gets_the_rows_of_its_fed_tokens(processor: Any) -> None:
    shipment, notes = collected(processor, finished())
    assert np.array_equal(shipment.routes.ids, IDS)
    assert notes == {}


def test_an_aborted_request_keeps_what_was_computed(processor: Any) -> None:
    shipment, _ = collected(processor, finished(output_ids_through_stop=[12]))
    assert np.array_equal(shipment.routes.ids, IDS[:2])


def test_a_request_that_asked_for_nothing_gets_nothing(processor: Any) -> None:  # case J09
    calls: list[Any] = []
    scheduling.collect(lambda *args: calls.append(args), processor, finished(return_routed_experts=False))
    assert len(calls) == 1


def test_what_cannot_be_read_is_said_in_the_answer(processor: Any) -> None:  # case H03
    shipment, notes = collected(processor, finished(kv=None))
    assert shipment is None
    assert notes["routed_experts_error"].startswith("AttributeError")


def test_rows_that_were_lost_come_with_the_last_fault(processor: Any) -> None:
    processor.guard.fault = "RuntimeError: a layer"
    processor.guard.capturer.store.invalidate([4])
    shipment, notes = collected(processor, finished())
    assert shipment.routes.valid.tolist() == [True, False, True]
    assert notes == {
        "routed_experts_missing": {"invalidated": 1},
        "routed_experts_error": "RuntimeError: a layer",
    }


def test_notes_ride_with_the_requests_that_end() -> None:
    requests = [
        finished(_moetape_notes={"a": 1}),
        finished(),
        finished(_moetape_notes={"b": 1}, finished=bool),
    ]
    accumulator = types.SimpleNamespace(
        return_routed_experts=True, rust_server_mode=False, output_reqs=requests, customized_info={}
    )
    assert scheduling.to_payload(lambda acc: acc.customized_info, accumulator) == {
        scheduling.NOTES: [{"a": 1}, None, None]
    }


# Answers


def test_notes_become_fields_of_the_answer() -> None:
    meta_info: dict[str, Any] = {}
    seen: list[Any] = []
    info = {scheduling.NOTES: [None, {"routed_experts_missing": {"torn": 1}}], "other": [[1], [2]]}
    answering.update_request_meta_info(lambda *args: seen.append(args), None, meta_info, None, info, 1, None)
    assert meta_info == {"routed_experts_missing": {"torn": 1}}
    assert seen[0][3] == {"other": [[1], [2]]}


def test_a_text_that_cannot_be_made_fails_no_answer() -> None:  # case E01
    broken = Shipment(None, "int32")  # type: ignore[arg-type]
    whole = Shipment(routes(), "int32")
    texts = answering.encode_per_request(lambda items: items, [broken, None, whole])
    assert texts[1:] == [None, whole.text()]
    batch = types.SimpleNamespace(routed_experts=texts, customized_info=None)

    async def own(manager: Any, batch: Any) -> Any:
        return batch

    got = asyncio.run(answering.handle_batch_output(own, None, batch))
    assert got.routed_experts == [None, None, whole.text()]
    notes = got.customized_info[scheduling.NOTES]
    assert notes[1:] == [None, None]
    assert "AttributeError" in notes[0]["routed_experts_error"]


def test_sglangs_own_tensors_are_left_to_sglang() -> None:
    tensor = torch.zeros((2, 4, 2), dtype=torch.int32)
    assert answering.encode_per_request(lambda items: ["own" for _ in items], [tensor]) == ["own"]


def test_a_stream_of_several_choices_has_them_all() -> None:
    chunk = 'data: {"choices":[],"sglext":{"routed_experts":"AA"}}\n\n'
    one, two = {"routed_experts": "AA"}, {"routed_experts": "BB", "routed_experts_dtype": "uint8"}
    assert answering._extended(chunk, {0: one}) == chunk
    extended = answering._extended(chunk, {1: two, 0: one})
    assert json.loads(extended.removeprefix("data: "))["sglext"] == {
        "routed_experts": "AA",
        "routed_experts_choices": [one, two],
    }
