"""Whole answers, sniffing, and rows that come in parts, as Python sees them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids
from moetape import wire

IDS = distinct_ids(6)
ROUTES = mt.Routes.from_ids(SPEC, IDS)
FULL = np.zeros((6, 5, 2), np.int32)
FULL[:, [1, 2, 4]] = IDS
SGLANG = base64.b64encode(FULL.tobytes()).decode()


def vllm(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def test_an_answer_has_its_choices() -> None:
    body = {
        "id": "cmpl-1",
        "choices": [
            {"index": 1, "text": 'a "quoted" \\ text', "routed_experts": vllm(FULL.astype(np.uint8))},
            {"index": 0, "message": {"content": "ü"}, "routed_experts": vllm(FULL[:2].astype(np.uint8))},
        ],
    }
    for data in (
        json.dumps(body),
        json.dumps(body, ensure_ascii=False).encode(),
        bytearray(json.dumps(body), "ascii"),
    ):
        first, second = wire.read_answer(data, spec=SPEC)
        assert (first.index, first.dialect) == (1, "vllm")
        assert first.routes == ROUTES
        assert second.routes == ROUTES.slice(0, 2)
    assert repr(second).startswith("Choice(0, Routes([0, 2)")


def test_one_request_on_three_endpoints() -> None:
    # case E12
    answers = [
        {"text": "a", "meta_info": {"routed_experts": SGLANG}},
        {"choices": [{"index": 0, "message": {}}], "sglext": {"routed_experts": SGLANG}},
        {"choices": [{"index": 0, "text": ""}], "sglext": {"routed_experts": SGLANG}},
    ]
    for answer in answers:
        [choice] = wire.read_answer(json.dumps(answer), spec=SPEC, start=0, rows=6, version=3)
        assert choice.dialect == "sglang"
        assert choice.routes is not None
        assert choice.routes.versions == [(0, 6, 3)]
        assert np.array_equal(choice.routes.ids, IDS)
    batch = wire.read_answer(json.dumps([answers[0], answers[0]]), spec=SPEC)
    assert [choice.routes for choice in batch] == [ROUTES, ROUTES]


def test_absent_empty_and_missing_are_three_things() -> None:
    # case J04
    missing = mt.Routes.from_ids(SPEC, IDS, valid=[1, 1, 0, 1, 1, 1])
    body = {
        "choices": [
            {"routed_experts": None},
            {"routed_experts": vllm(FULL[:0].astype(np.uint8))},
            {"routed_experts": mt.encode(missing, "nemo-rl")},
        ]
    }
    absent, empty, holes = wire.read_answer(json.dumps(body), spec=SPEC, asked=False)
    assert absent.routes is None
    assert absent.dialect is None
    assert empty.routes is not None
    assert len(empty.routes) == 0
    assert empty.routes.complete
    assert holes.routes is not None
    assert holes.routes.missing == {"not_sent": 1}


def test_what_was_asked_for_and_lost_names_the_hop() -> None:
    # case E01
    with pytest.raises(mt.MissingRowsError, match=r"router-1: choice 0: expected routes.*routed_experts"):
        wire.read_answer('{"choices":[{"index":0}]}', spec=SPEC, hop="router-1")
    with pytest.raises(
        mt.WrongShapeError, match=r"vllm-3: choice 0: routed_experts: vllm: rows: expected 9, got 6"
    ):
        wire.read_answer(
            json.dumps({"choices": [{"routed_experts": vllm(FULL.astype(np.uint8))}]}),
            spec=SPEC,
            hop="vllm-3",
            rows=9,
        )


def test_wrong_arguments_of_read_answer_are_named() -> None:
    with pytest.raises(mt.WrongTypeError, match="data: expected str, bytes or bytearray, got dict"):
        wire.read_answer({}, spec=SPEC)  # type: ignore[arg-type]
    with pytest.raises(mt.WrongTypeError, match="asked"):
        wire.read_answer("{}", spec=SPEC, asked=1)  # type: ignore[arg-type]
    with pytest.raises(mt.InvalidArgumentError, match="dialect: expected one of"):
        wire.read_answer("{}", spec=SPEC, dialect="x")


def test_sniffing() -> None:
    assert wire.sniff(mt.encode(ROUTES, "vllm")).dialects == ["vllm"]
    assert wire.sniff(mt.encode(ROUTES, "npy")).dialects == ["npy"]
    assert wire.sniff(SGLANG).dialects == ["sglang"]
    assert wire.sniff(mt.encode(ROUTES, "lightllm")).dialects == ["lightllm", "skyrl"]
    assert wire.sniff('{"choices": []}').answer
    assert repr(wire.sniff(SGLANG)) == "Sniffed(sglang)"
    with pytest.raises(mt.UnsupportedError, match="got a gzip file"):
        wire.sniff(b"\x1f\x8b\x08")


def test_prefill_and_decode_are_spliced() -> None:
    # case B11; trap 17: prompt 4, 3 generated; the decode worker sends zeros for the prompt, and wide.
    decoded = FULL.astype(np.uint16)
    decoded[:4] = 0
    later = mt.decode(vllm(decoded), "vllm", spec=SPEC, known_from=4)
    prefill = mt.decode(vllm(FULL[:4].astype(np.uint8)), "vllm", spec=SPEC)
    assert wire.splice(prefill, later, 4) == ROUTES
    other = mt.Routes.from_ids(SPEC, distinct_ids(6, seed=1))
    with pytest.raises(mt.ConflictError, match="position 0"):
        wire.splice(prefill, other, 4)
    with pytest.raises(mt.WrongShapeError, match="prefill"):
        wire.splice(prefill, later, 5)


def test_a_stream_takes_new_rows_only() -> None:
    # case C12, E10
    stream = wire.RouteStream(SPEC, prompt_tokens=3)
    stream.add(1, mt.decode(FULL[:3], "verl", spec=SPEC, start=stream.next))
    stream.add(1)
    with pytest.raises(mt.WrongShapeError, match="sent before"):
        stream.add(2, mt.decode(FULL, "verl", spec=SPEC, start=stream.next))
    stream.add(2, mt.decode(FULL[3:5], "verl", spec=SPEC, start=stream.next))
    with pytest.raises(mt.MissingRowsError, match="up to position 6 of 7 tokens, got up to 5"):
        stream.finish()
    stream.add(0, mt.decode(FULL[5:], "verl", spec=SPEC, start=stream.next))
    assert stream.finish() == ROUTES
    with pytest.raises(mt.WrongTypeError, match="rows: expected Routes"):
        stream.add(0, FULL)  # type: ignore[arg-type]


def test_a_resumed_request_keeps_its_history() -> None:
    # case C15
    newer = mt.Routes.from_ids(SPEC, distinct_ids(9, seed=2))
    joined = wire.resume(ROUTES, newer)
    assert joined.slice(0, 6) == ROUTES
    assert joined.slice(6, 9) == newer.slice(6, 9)
    assert wire.resume(ROUTES, newer.slice(0, 5)) == ROUTES
    with pytest.raises(mt.WrongShapeError, match="expected 5 rows or more"):
        wire.resume(ROUTES, newer.slice(0, 4))


def test_rows_are_held_against_tokens() -> None:
    # case C14, C17
    assert repr(wire.align(ROUTES, 9, start=1)) == "Alignment(expected=7, found=5, missing=2, surplus=1)"
    assert wire.align(ROUTES, 7).complete
    assert wire.fit(ROUTES.slice(1, 3), 5).missing == {"gap": 2}
    with pytest.raises(mt.WrongShapeError, match=r"expected some of \[0, 4\), got \[0, 6\)"):
        wire.fit(ROUTES, 5)


def test_sequences_are_packed_without_padding() -> None:
    # case E07
    rows, offsets = wire.pack([ROUTES.slice(0, 3), ROUTES.slice(2, 2), ROUTES.slice(1, 6)])
    assert offsets.tolist() == [0, 3, 3, 8]
    assert len(rows.slice(int(offsets[1]), int(offsets[2]))) == 0
    assert np.array_equal(mt.encode(rows, "verl")[3:], FULL[1:6])
