"""The array in an answer of vLLM: its own where all rows are there, else a signed one that says why not."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

import moetape
from moetape.engines import vllm
from moetape.engines.vllm.answer import answer_ids, missing_answer

SMALL = moetape.RouteSpec(layers=[1, 2], top_k=2, num_experts=8, num_layers=4)
LARGE = moetape.RouteSpec(layers=[1, 2], top_k=2, num_experts=300, num_layers=4)


def some_routes(spec: moetape.RouteSpec, valid: list[bool]) -> moetape.Routes:
    ids = np.arange(len(valid) * 4).reshape(len(valid), 2, 2) % spec.num_experts
    return moetape.Routes.from_ids(spec, ids, valid=valid)


@pytest.mark.parametrize(("spec", "dtype"), [(SMALL, np.uint8), (LARGE, np.uint16)])
def test_complete_rows_are_vllms_array(spec: moetape.RouteSpec, dtype: type) -> None:
    routes = some_routes(spec, [True] * 3)
    ids = answer_ids(routes)
    assert ids.dtype == dtype
    assert ids.shape == (3, 4, 2)
    assert np.array_equal(ids[:, [1, 2]], routes.ids)
    assert not ids[:, [0, 3]].any()
    assert vllm.missing_rows(ids) == {}
    assert vllm.routes_of(ids, spec) == routes


# case J04
@pytest.mark.parametrize(("spec", "dtype"), [(SMALL, np.int16), (LARGE, np.int32)])
def test_a_missing_row_says_why_in_all_columns(spec: moetape.RouteSpec, dtype: type) -> None:
    routes = some_routes(spec, [True, False, True])
    ids = answer_ids(routes)
    assert ids.dtype == dtype
    assert set(ids[1].reshape(-1).tolist()) == {-moetape.REASONS.index("not_sent")}
    assert vllm.missing_rows(ids) == {"not_sent": 1}
    back = vllm.routes_of(ids, spec, start=5)
    assert (back.start, back.end) == (5, 8)
    assert back.valid.tolist() == [True, False, True]
    assert np.array_equal(back.ids[back.valid], routes.ids[routes.valid])


@pytest.mark.parametrize("spec", [SMALL, LARGE])
def test_joined_parts_keep_what_is_missing(spec: moetape.RouteSpec) -> None:
    joined = np.concatenate([answer_ids(some_routes(spec, [True] * 2)), missing_answer(spec, 3, "lost")])
    assert vllm.missing_rows(joined) == {"lost": 3}
    assert vllm.routes_of(joined, spec).valid.tolist() == [True, True, False, False, False]


def test_the_text_of_a_choice_is_read() -> None:
    routes = some_routes(SMALL, [True, False])
    file = io.BytesIO()
    np.save(file, answer_ids(routes))
    text = base64.b64encode(file.getvalue()).decode()
    assert vllm.missing_rows(text) == {"not_sent": 1}
    assert vllm.routes_of(text, SMALL).valid.tolist() == [True, False]
    assert vllm.routes_of(moetape.encode(routes.slice(0, 1), "vllm"), SMALL).complete


def npy_text(ids: np.ndarray, told: str = "", lie: str = "") -> str:
    file = io.BytesIO()
    np.save(file, ids)
    return base64.b64encode(file.getvalue().replace(told.encode(), lie.encode())).decode()


def test_rows_carry_the_weights_that_computed_them() -> None:
    spans = [
        {"version": "default", "start": 0, "end": 1},
        {"version": "7", "start": 1, "end": 3},
        {"version": "8", "start": 3, "end": 4},
    ]
    versions = vllm.versions_of(spans, num_prompt_tokens=3)
    assert versions == [(3, 5, 7), (5, 6, 8)]
    whole = some_routes(SMALL, [True] * 6)  # three of the prompt, and three of four that were sampled
    routes = vllm.routes_of(answer_ids(whole), SMALL, versions=versions)
    assert routes.versions == [(3, 5, 7), (5, 6, 8)]
    assert np.array_equal(routes.ids, whole.ids)
    assert vllm.routes_of(answer_ids(whole), SMALL).versions == []


def test_versions_of_rows_that_are_missing_or_left_out() -> None:
    ids = answer_ids(some_routes(SMALL, [True, False, True]))
    routes = vllm.routes_of(ids, SMALL, start=4, versions=[(0, 5, 1), (5, 9, 2)])
    assert (routes.start, routes.end) == (4, 7)
    assert routes.versions == [(4, 5, 1), (6, 7, 2)]
    assert routes.valid.tolist() == [True, False, True]


def test_a_label_that_is_no_number_is_no_version() -> None:
    assert vllm.versions_of(None, 3) == []
    with pytest.raises(moetape.InvalidArgumentError, match="'step-9'"):
        vllm.versions_of([{"version": "step-9", "start": 0, "end": 1}], 3)


def test_no_rows_are_no_missing_rows() -> None:
    ids = answer_ids(some_routes(SMALL, []))
    assert vllm.missing_rows(ids) == {}
    assert len(vllm.routes_of(ids, SMALL)) == 0


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda ids: ids[:, 0], moetape.CorruptDataError, "expected integers"),
        (lambda ids: ids.astype(np.float32), moetape.CorruptDataError, "expected integers"),
        (lambda ids: ids[:, :3], moetape.WrongShapeError, r"got \[3, 3, 2\]"),
        (lambda ids: np.where(np.arange(2) == 1, 3, ids), moetape.CorruptDataError, "one reason"),
        (lambda ids: np.where(ids < 0, -100, ids), moetape.CorruptDataError, "one reason"),
        (lambda ids: np.where(ids == 0, 1, ids), moetape.CorruptDataError, "without experts"),
        (lambda ids: "no base64", moetape.CorruptDataError, "base64"),
        (lambda ids: "AAAA", moetape.CorruptDataError, "npy"),
        (
            lambda ids: npy_text(np.zeros((2, 2, 2), np.uint8), "(2, 2, 2)", "(9, 9, 9)"),
            moetape.CorruptDataError,
            "8 bytes",
        ),
    ],
)
def test_what_is_no_such_answer_is_refused(spoil, error, message) -> None:
    ids = answer_ids(some_routes(SMALL, [True, False, True]))
    with pytest.raises(error, match=message):
        vllm.routes_of(spoil(ids), SMALL)
