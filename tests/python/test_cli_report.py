"""report: one page, with the texts of tokens, and what is no such text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import moetape as mt
from cli_helpers import refused, sample, succeed, write_tape


@pytest.fixture
def records() -> dict[str, mt.Routes]:
    return {"first": sample(20, seed=1), "second": sample(6, seed=2, missing=[1, 4])}


@pytest.fixture
def tape(records: dict[str, mt.Routes], tmp_path: Path) -> Path:
    return write_tape(tmp_path / "run.tape", records)


def test_a_report_is_one_page(tape: Path, records: dict[str, mt.Routes], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert succeed("report", tape, "-o", page) == f"{page}: 2 sequences, 26 rows\n"
    assert page.read_text().startswith("<!doctype html>")
    assert "run.tape" in page.read_text()
    other = write_tape(tmp_path / "other.tape", records)
    assert "another title" in succeed("report", tape, other, "--title", "another title", "-o", "-")
    assert "stands there already" in refused("report", tape, "-o", page)
    assert "file" in refused("report", tape, other, tape, "-o", tmp_path / "x.html")


@pytest.mark.parametrize(
    "texts",
    [
        {"5": " héllo", "6": "x"},
        {"\u0120h\u00c3\u00a9llo": 5, "x": 6},
        {"model": {"vocab": {"\u0120": 1}}, "added_tokens": [{"id": 5, "content": " héllo"}]},
    ],
)
def test_a_report_shows_the_texts_of_tokens(texts: dict[str, Any], tmp_path: Path) -> None:
    tokens = [5, 6, 5, 6]
    for name, seed in (("a.tape", 1), ("b.tape", 2)):
        mt.save(tmp_path / name, [sample(4, seed=seed, tokens=tokens)])
    (tmp_path / "tokens.json").write_text(json.dumps(texts))
    page = succeed(
        *["report", tmp_path / "a.tape", tmp_path / "b.tape", "-o", "-"],
        *["--token-text", tmp_path / "tokens.json"],
    )
    assert " héllo" in page


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("[]", "expected a JSON object of tokens, got array"),
        ("{}", "expected a JSON object of tokens, got an empty one"),
        ('{"1": "a", "x": "b"}', 'expected the id of a token, got "x"'),
        ('{"1": "a", "1": "b"}', 'expected every key once, got "1" twice'),
        ('{"1": "a", "2": 3}', "expected a text for token 2, got 3"),
        ('{"a": 1.5}', "expected the id of a token, got 1.5"),
        ('{"a": 1, "b": "' + "x" * 999 + '"}', 'expected the id of a token, got "xxx'),
        ('{"model": {"vocab": 1}}', "expected model.vocab to be an object"),
        ('{"model": {"vocab": {"a": 1}}, "added_tokens": 5}', "added_tokens: expected a list, got number"),
        (
            '{"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": 1, "content": 5}]}',
            "added_tokens: expected objects with id and content, got ",
        ),
        ("{", "expected JSON"),
    ],
)
def test_what_is_no_token_text_is_refused(tokens: str, message: str, tape: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(tokens)
    line = refused("report", tape, "--token-text", tmp_path / "tokens.json", "-o", tmp_path / "report.html")
    assert len(line) < len(str(tmp_path)) + 200
    assert line.startswith(f"{tmp_path}/tokens.json: {message}")
