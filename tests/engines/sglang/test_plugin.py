"""What the plug-in does in SGLang's processes, part by part; test_engine.py has the whole."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import types
from typing import Any

import numpy as np
import pytest
import torch

import moetape as mt
from moetape.engines import sglang as ours
from moetape.engines.sglang import answering, patches, plugin, scheduling
from moetape.engines.sglang.answers import Options, Shipment, arrived, shipped

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
        assert set(known) == set(plugin.HOOKS)


def test_a_version_that_was_not_tried_is_refused_and_nothing_changed() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    before = TokenizerManager.generate_request
    with pytest.raises(mt.UnsupportedError, match=r"9\.9\.9.*tried with 0\.5\.23"):
        patches.apply(plugin.HOOKS, version="9.9.9")
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
        patches.apply(plugin.HOOKS)
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


def guard() -> scheduling.GuardedCapturer:
    return scheduling.GuardedCapturer(ours.RoutedExpertsCapturer(SPEC, num_tokens=32, max_rows=8))


def batch_of(slots: list[int]) -> Any:
    return types.SimpleNamespace(out_cache_loc=torch.tensor(slots), out_cache_loc_virtual=None)


def record(guarded: scheduling.GuardedCapturer, slots: list[int]) -> None:
    for column, layer in enumerate(SPEC.layers):
        guarded.capture(layer, torch.from_numpy(IDS[: len(slots), column]))
    guarded.on_forward_end(batch_of(slots), False, None)


def missing(guarded: scheduling.GuardedCapturer, slots: list[int]) -> list[str]:
    reasons = guarded.capturer.store.read(slots).reasons
    return [mt.REASONS[reason] for reason in reasons]


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


def test_a_slot_with_a_new_owner_is_missing_until_it_is_written() -> None:  # case B02
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    guarded = guard()
    allocator = TokenToKVPoolAllocator(20, torch.int64, "cpu", None, need_sort=False)
    scheduling.follow_allocator(guarded, allocator)
    first = allocator.alloc(3)
    record(guarded, first.tolist())
    assert missing(guarded, first.tolist()) == ["valid"] * 3
    allocator.free(first)
    allocator.alloc(17)
    reused = allocator.alloc(3)
    assert sorted(reused.tolist()) == sorted(first.tolist())
    assert missing(guarded, reused.tolist()) == ["invalidated"] * 3  # KV may come from elsewhere
    record(guarded, reused.tolist())
    assert missing(guarded, reused.tolist()) == ["valid"] * 3
    allocator.clear()
    assert missing(guarded, reused.tolist()) == ["invalidated"] * 3


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
