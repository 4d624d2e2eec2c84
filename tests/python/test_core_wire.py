"""encode and decode as Python sees them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store, record

DIALECTS = ["sglang", "vllm", "vllm-split", "lightllm", "prime-rl", "skyrl", "megatron"]
IDS = distinct_ids(5)
ROUTES = mt.Routes.from_ids(SPEC, IDS)

# The published vectors: ids 0 1 2 3 4 5 6 0 1 2 3 4 as [3, 2, 2].
VECTOR_SPEC = mt.RouteSpec([0, 1], top_k=2, num_experts=8)
VECTOR = mt.Routes.from_ids(VECTOR_SPEC, np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]).reshape(3, 2, 2))


def test_published_vectors() -> None:
    assert mt.encode(VECTOR, "sglang") == "AAAAAAEAAAACAAAAAwAAAAQAAAAFAAAABgAAAAAAAAABAAAAAgAAAAMAAAAEAAAA"
    assert mt.encode(VECTOR, "lightllm") == '{"shape":[3,2,2],"dtype":"uint8","data":"AAECAwQFBgABAgME"}'
    vllm = mt.encode(VECTOR, "vllm")
    assert vllm.startswith("k05VTVBZAQB2AHsn")
    assert vllm.endswith("IAoAAQIDBAUGAAECAwQ=")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_encoded_is_decoded(dialect: str) -> None:
    text = mt.encode(ROUTES, dialect)
    assert type(text) is str
    assert text.isascii()
    for data in (text, text.encode(), bytearray(text.encode())):
        start = 0 if dialect == "prime-rl" else 4
        again = mt.decode(data, dialect, spec=SPEC, start=start, rows=5, version=3)
        assert np.array_equal(again.ids, IDS)
        assert (again.start, again.versions) == (start, [(start, start + 5, 3)])
    with pytest.raises(mt.WrongShapeError, match=r"6.*5|5.*6"):  # case C06
        mt.decode(text, dialect, spec=SPEC, rows=6)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_store_is_encoded_in_one_pass(dialect: str) -> None:
    store, rec = new_store()
    record(rec, range(5), IDS)
    assert mt.encode(store.rows(range(5)), dialect) == mt.encode(ROUTES, dialect)


def test_forms_are_those_of_the_field() -> None:
    full = np.zeros((5, 5, 2), np.int32)
    full[:, [1, 2, 4]] = IDS
    assert base64.b64decode(mt.encode(ROUTES, "sglang")) == full.tobytes()
    light = json.loads(mt.encode(ROUTES, "lightllm"))
    assert light["shape"] == [5, 3, 2]
    assert base64.b64decode(light["data"]) == IDS.astype(np.uint8).tobytes()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_missing_rows_need_a_fill(dialect: str) -> None:
    # case C17, J04
    routes = mt.Routes.from_ids(SPEC, IDS, valid=[True, False, True, True, True])
    with pytest.raises(mt.MissingRowsError, match="1"):
        mt.encode(routes, dialect)
    distinct = mt.decode(mt.encode(routes, dialect, missing="distinct"), dialect, spec=SPEC)
    assert distinct.ids[1].tolist() == [[0, 1]] * 3
    with pytest.raises(mt.InvalidArgumentError):  # case B12
        mt.decode(mt.encode(routes, dialect, missing="zeros"), dialect, spec=SPEC)
    with pytest.raises(mt.InvalidArgumentError, match="missing: expected zeros, distinct or None"):
        mt.encode(routes, dialect, missing="ones")


def test_empty_routes_are_text_too() -> None:
    empty = mt.Routes.from_ids(SPEC, np.zeros((0, 3, 2), int))
    for dialect in DIALECTS:
        assert len(mt.decode(mt.encode(empty, dialect), dialect, spec=SPEC)) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_arrays_are_decoded_as_they_are(dtype: str) -> None:
    full = np.zeros((5, 5, 2), dtype)
    full[:, [1, 2, 4]] = IDS
    for array in (full, np.asfortranarray(full)):
        assert mt.decode(array, "vllm", spec=SPEC) == ROUTES
    assert mt.decode(IDS.astype(dtype), "lightllm", spec=SPEC) == ROUTES
    full[2, 0, 1] = 1
    with pytest.raises(mt.CorruptDataError):  # case G11
        mt.decode(full, "vllm", spec=SPEC)
    with pytest.raises(mt.WrongShapeError):
        mt.decode(full[0], "vllm", spec=SPEC)


@pytest.mark.parametrize(
    ("data", "dialect", "error"),
    [
        ("", "vllm", mt.CorruptDataError),
        ("AAA", "sglang", mt.CorruptDataError),
        ("AAAA", "sglang", mt.WrongShapeError),
        ("ä", "sglang", mt.CorruptDataError),
        ("\ud800", "sglang", mt.InvalidArgumentError),
        ("{}", "lightllm", mt.CorruptDataError),
        ('{"shape":[1,3,2],"dtype":"uint8","data":"AAEC"}', "lightllm", mt.CorruptDataError),
        (b"\xff\xfe", "vllm", mt.CorruptDataError),
        (None, "vllm", mt.WrongTypeError),
        (7, "vllm", mt.WrongTypeError),
        (np.zeros((1, 5, 2)), "vllm", mt.WrongTypeError),
        ("AAAA", "trtllm2", mt.InvalidArgumentError),
        ("AAAA", None, mt.WrongTypeError),
    ],
)
def test_what_is_not_what_it_claims_is_refused(data: Any, dialect: Any, error: type[mt.Error]) -> None:
    with pytest.raises(error):
        mt.decode(data, dialect, spec=SPEC)


def test_truncated_text_is_refused() -> None:
    # case E03
    for dialect in DIALECTS:
        text = mt.encode(ROUTES, dialect)
        for cut in (1, 4, len(text) // 2):
            with pytest.raises((mt.CorruptDataError, mt.WrongShapeError)):
                mt.decode(text[:-cut], dialect, spec=SPEC, rows=5)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (dict(spec=None), "spec: expected RouteSpec"),
        (dict(spec=SPEC, start="0"), "start"),
        (dict(spec=SPEC, rows=1.5), "rows: expected int or None, got float"),
        (dict(spec=SPEC, version=[1]), "version"),
    ],
)
def test_wrong_arguments_of_decode_are_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(mt.WrongTypeError, match=names):
        mt.decode(mt.encode(ROUTES, "sglang"), "sglang", **arguments)


def test_wrong_arguments_of_encode_are_named() -> None:
    for routes in (None, "text", IDS):
        with pytest.raises(mt.WrongTypeError, match="routes: expected Routes or RowSource"):
            mt.encode(routes, "sglang")  # type: ignore[arg-type]
    with pytest.raises(mt.InvalidArgumentError, match=r"sglang.*vllm.*lightllm"):
        mt.encode(ROUTES, "sgl")
    with pytest.raises(mt.WrongTypeError, match="missing: expected str or None"):
        mt.encode(ROUTES, "sglang", missing=0)  # type: ignore[arg-type]
