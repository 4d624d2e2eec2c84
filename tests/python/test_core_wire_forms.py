"""Every dialect against NumPy, json and base64 themselves."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store, record
from moetape import wire

IDS = distinct_ids(5)
ROUTES = mt.Routes.from_ids(SPEC, IDS)
WIDE = mt.RouteSpec(layers=[1, 2, 4], top_k=2, num_experts=512)

Array = npt.NDArray[Any]


def all_layers(ids: Array, spec: mt.RouteSpec = SPEC) -> Array:
    full = np.zeros((len(ids), spec.num_layers, spec.top_k), ids.dtype)
    full[:, list(spec.layers)] = ids
    return full


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def plain(dialect: str, ids: Array, spec: mt.RouteSpec, start: int) -> Any:
    """What NumPy, json and base64 make of it."""
    narrow: Any = np.uint8 if spec.num_experts <= 256 else np.uint16
    signed: Any = np.int8 if spec.num_experts <= 128 else np.int16
    full = all_layers(ids, spec)
    smallest: Any = np.uint8 if ids.max(initial=0) < 256 else np.int16

    def fields(array: Array, *names: str) -> str:
        values = {
            "data": b64(array.tobytes()),
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "start": start,
        }
        return json.dumps({name: values[name] for name in names}, separators=(",", ":"))

    return {
        "sglang": lambda: b64(full.astype(np.int32).tobytes()),
        "vllm": lambda: b64(npy(full.astype(narrow))),
        "vllm-split": lambda: json.dumps(
            {
                "prompt_routed_experts": b64(npy(full[:2].astype(np.int16))),
                "routed_experts": b64(npy(np.concatenate([full[2:], 0 * full[:1]]).astype(np.int16))),
            },
            separators=(",", ":"),
        ),
        "lightllm": lambda: fields(
            ids.astype(np.uint8 if narrow is np.uint8 else np.int16), "shape", "dtype", "data"
        ),
        "prime-rl": lambda: fields(full.astype(narrow), "data", "shape", "start", "dtype"),
        "skyrl": lambda: fields(full.astype(smallest), "data", "shape", "dtype"),
        "nemo-rl": lambda: (
            f"nrlre1:{np.dtype(signed).name}:{'x'.join(map(str, full.shape))}:"
            + b64(full.astype(signed).tobytes())
        ),
        "megatron": lambda: json.dumps(ids.tolist(), separators=(",", ":")),
        "trtllm": lambda: ids.astype(np.int16),
        "verl": lambda: full.astype(np.int16),
        "slime": lambda: full.astype(np.int32),
        "miles": lambda: full.astype(np.int32),
        "npy": lambda: npy(full.astype(narrow)),
    }[dialect]()


# Tapes: test_a_tape_is_a_form_too.
FORMS = [dialect for dialect in wire.DIALECTS if not dialect.startswith("tape")]


@pytest.mark.parametrize("dialect", FORMS)
@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(2, 60),
    num_experts=st.sampled_from([8, 128, 200, 256, 300, 512]),
    seed=st.integers(0, 2**32),
    start=st.integers(0, 1000),
)
def test_forms_are_those_of_numpy(dialect: str, rows: int, num_experts: int, seed: int, start: int) -> None:
    spec = mt.RouteSpec(layers=[1, 2, 4], top_k=3, num_experts=num_experts, num_layers=6)
    ids = distinct_ids(rows, spec, seed)
    routes = mt.Routes.from_ids(spec, ids, start=start)
    form = mt.encode(routes, dialect, prompt_rows=2 if dialect == "vllm-split" else 0)
    expected = plain(dialect, ids, spec, start)
    assert type(form) is type(expected)
    if isinstance(expected, np.ndarray):
        assert form.dtype == expected.dtype
        assert np.array_equal(form, expected)
    else:
        assert form == expected
    assert mt.decode(form, dialect, spec=spec, start=start, rows=rows) == routes


def test_every_dialect_takes_what_a_store_holds() -> None:
    store, rec = new_store()
    record(rec, range(5), IDS)
    for dialect in FORMS:
        from_store, from_routes = mt.encode(store.rows(range(5)), dialect), mt.encode(ROUTES, dialect)
        assert (
            np.array_equal(from_store, from_routes)
            if isinstance(from_store, np.ndarray)
            else (from_store == from_routes)
        )


def test_sglang_in_the_type_that_the_request_names() -> None:
    # case D12
    for dtype in ("uint8", "uint16", "int32", np.uint8, np.dtype(np.int32)):
        text = mt.encode(ROUTES, "sglang", dtype=dtype)
        assert base64.b64decode(text) == all_layers(IDS).astype(dtype).tobytes()
        assert mt.decode(text, "sglang", spec=SPEC, dtype=dtype) == ROUTES
    with pytest.raises(mt.UnsupportedError, match="sglang: type: expected int32, uint16 or uint8, got int8"):
        mt.encode(ROUTES, "sglang", dtype="int8")
    with pytest.raises(mt.WrongTypeError, match="dtype"):
        mt.encode(ROUTES, "sglang", dtype="float32")


def test_ids_widen_exactly_or_not_at_all() -> None:
    # case D02
    ids = np.array([511, 2, 255, 256, 0, 300]).reshape(1, 3, 2)
    routes = mt.Routes.from_ids(WIDE, ids)
    for dtype in ("int16", "uint16", "int32", "int64"):
        array = np.load(io.BytesIO(mt.encode(routes, "npy", dtype=dtype, layers="moe")))
        assert array.dtype == dtype
        assert np.array_equal(array, ids)
    assert mt.encode(routes, "verl", dtype="int32").dtype == np.int32
    many = mt.RouteSpec(layers=[0], top_k=1, num_experts=40001)
    largest = mt.Routes.from_ids(many, np.array([[[40000]]]))
    with pytest.raises(mt.UnsupportedError, match="40001 experts, got int16"):
        mt.encode(largest, "verl", dtype="int16")
    assert mt.encode(largest, "verl").tolist() == [[[40000]]]


def test_layers_where_a_dialect_has_both() -> None:
    assert json.loads(mt.encode(ROUTES, "megatron", layers="all")) == all_layers(IDS).tolist()
    assert np.array_equal(np.load(io.BytesIO(mt.encode(ROUTES, "npy", layers="moe"))), IDS)
    with pytest.raises(mt.UnsupportedError, match="layers: expected all, got MoE layers only"):
        mt.encode(ROUTES, "vllm", layers="moe")
    with pytest.raises(mt.InvalidArgumentError, match="layers: expected all, moe or None"):
        mt.encode(ROUTES, "npy", layers="dense")


def test_nemo_rl_says_missing() -> None:
    # case J04, D04
    routes = mt.Routes.from_ids(SPEC, IDS, valid=[True, False, True, True, True])
    text = mt.encode(routes, "nemo-rl")
    array = np.frombuffer(base64.b64decode(text.rsplit(":", 1)[1]), np.int8).reshape(5, 5, 2)
    assert (array[1] == -1).all()
    assert (np.delete(array, 1, axis=0) >= 0).all()
    back = mt.decode(text, "nemo-rl", spec=SPEC)
    assert back.missing == {"not_sent": 1}
    assert back == routes
    signed = all_layers(IDS)
    signed[3] = -1
    assert mt.decode(signed.astype(np.int16), "nemo-rl", spec=SPEC).missing == {"not_sent": 1}
    # No type without a sign has a -1.
    last = mt.RouteSpec([0], 1, 256)
    assert mt.decode(np.full((1, 1, 1), 255, np.uint8), "nemo-rl", spec=last).complete


def test_a_tape_is_a_form_too() -> None:
    routes = mt.Routes.from_ids(
        SPEC, IDS, start=3, valid=[1, 0, 1, 1, 1], version=4, tokens=np.arange(5, dtype=np.int32)
    )
    file = mt.encode(routes, "tape")
    assert type(file) is bytes
    text = mt.encode(routes, "tape-base64")
    assert text == b64(file)
    for form, dialect in ((file, "tape"), (text, "tape-base64")):
        back = mt.decode(form, dialect, spec=SPEC)
        assert back == routes
        assert back.missing == {"not_sent": 1}
        assert wire.sniff(form).dialects[0] == dialect
    [choice] = wire.read_answer(json.dumps({"choices": [{"routed_experts": text}]}), spec=SPEC)
    assert (choice.dialect, choice.routes) == ("tape-base64", routes)
    store, rec = new_store()
    record(rec, range(5), IDS)
    assert mt.decode(mt.encode(store.rows(range(5)), "tape"), "tape", spec=SPEC) == ROUTES
    with pytest.raises(mt.SpecMismatchError, match="tape: expected routes of spec"):
        mt.decode(file, "tape", spec=WIDE)
    with pytest.raises(mt.UnsupportedError, match="a tape says which rows are missing"):
        mt.encode(routes, "tape", missing="zeros")


def test_rows_that_the_sender_does_not_know() -> None:
    # case B11
    full = all_layers(IDS).astype(np.int32)
    full[:2] = 0
    text = b64(full.tobytes())
    with pytest.raises(mt.InvalidArgumentError, match="expected 2 different ids"):
        mt.decode(text, "sglang", spec=SPEC)
    routes = mt.decode(text, "sglang", spec=SPEC, known_from=2)
    assert routes.missing == {"not_sent": 2}
    assert np.array_equal(routes.ids[2:], IDS[2:])
    surplus = mt.decode(full, "verl", spec=SPEC, known_from=2, surplus_rows=1, rows=4)
    assert surplus == routes.slice(0, 4)


def test_the_older_layer_major_array_is_turned_by_numpy() -> None:
    older = np.ascontiguousarray(IDS.transpose(1, 0, 2)).astype(np.int8)
    assert mt.decode(older.transpose(1, 0, 2), "lightllm", spec=SPEC) == ROUTES


def test_split_arrays_are_two() -> None:
    full = all_layers(IDS).astype(np.int16)
    prompt, generated = full[:2], np.concatenate([full[2:], full[:1]])
    joined = mt.decode(prompt, "vllm", spec=SPEC).extend(
        mt.decode(generated, "vllm", spec=SPEC, start=2, surplus_rows=1)
    )
    assert joined == ROUTES
    with pytest.raises(mt.UnsupportedError, match="vllm-split: array: expected text"):
        mt.decode(full, "vllm-split", spec=SPEC)


def test_arrays_are_new_and_may_be_written() -> None:
    array = mt.encode(ROUTES, "miles")
    array[:] = 7
    assert np.array_equal(ROUTES.ids, IDS)


@pytest.mark.parametrize(
    ("dialect", "data"),
    [
        ("nemo-rl", "nrlre1:int8:5x5x2:AAAA"),
        ("nemo-rl", "nrlre1:int8"),
        ("prime-rl", '{"data":"","shape":[0,5,2],"dtype":"uint8"}'),
        ("skyrl", '{"data":"","shape":[1,5,2],"dtype":"uint8"}'),
        ("megatron", "[[[1, 2], [3, 4], [5, 6]]"),
        ("vllm-split", '{"routed_experts":""}'),
        ("npy", b"\x93NUMPY\x01\x00\x76\x00{"),
        ("npy", b"PK\x03\x04"),
    ],
)
def test_what_is_not_what_it_claims_is_refused(dialect: str, data: str | bytes) -> None:
    with pytest.raises(mt.CorruptDataError, match=dialect):
        mt.decode(data, dialect, spec=SPEC)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(mt.WrongTypeError, match="known_from"):
        mt.decode("", "sglang", spec=SPEC, known_from="2")  # type: ignore[arg-type]
    with pytest.raises(mt.WrongTypeError, match="surplus_rows"):
        mt.decode("", "sglang", spec=SPEC, surplus_rows=None)  # type: ignore[arg-type]
    with pytest.raises(mt.WrongTypeError, match="layers: expected str or None"):
        mt.encode(ROUTES, "npy", layers=True)  # type: ignore[arg-type]
    with pytest.raises(mt.OutOfRangeError, match="prompt_rows: expected 0 to 5, got 6"):
        mt.encode(ROUTES, "vllm-split", prompt_rows=6)


def test_a_long_sample_is_small() -> None:
    # case D12, E04: 30,000 tokens x 48 x 8, less than half of the nested lists.
    spec = mt.RouteSpec(range(48), top_k=8, num_experts=128)
    ids = np.broadcast_to(np.arange(8, dtype=np.uint8) * 16, (30_000, 48, 8))
    routes = mt.Routes.from_ids(spec, ids)
    assert len(mt.encode(routes, "prime-rl")) == pytest.approx(15.36e6, rel=1e-4)
    lists = mt.encode(routes, "megatron")
    assert len(lists) > 2 * 15.36e6
    assert mt.decode(lists, "megatron", spec=spec) == routes
