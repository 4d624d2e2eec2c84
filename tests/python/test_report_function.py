"""moetape.report: from records to a page in a file. What the page shows is test_report.py's matter."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids


def routes(seed: int, num_rows: int = 20) -> mt.Routes:
    plain = mt.Routes.from_ids(SPEC, distinct_ids(num_rows, seed=seed))
    return plain.with_tokens(np.arange(num_rows, dtype=np.int32))


def data_in(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    return json.loads(text.split('id="data">', 1)[1].split("</script>", 1)[0])


def test_tapes_give_names_sizes_and_sequence_ids(tmp_path: Path) -> None:
    for name, seed in (("rollout", 0), ("training", 10)):
        mt.save(tmp_path / f"{name}.tape", [routes(seed), routes(seed + 1)], sequence_ids=["first", "second"])
    tapes = [mt.open(tmp_path / f"{name}.tape") for name in ("rollout", "training")]
    page = tmp_path / "report.html"
    mt.report(page, *tapes, token_text={3: "three", 4: b"\xe2\x82", 5: "\ud800"})
    data = data_in(page)
    assert data["title"] == "rollout.tape and training.tape"
    first = data["records"][0]
    assert first["sequences"] == 2
    assert first["file_bytes"] == (tmp_path / "rollout.tape").stat().st_size
    assert sum(size for _, size in first["parts"]) <= first["file_bytes"]
    assert np.sum(first["load"]) == 40 * 3 * SPEC.top_k
    assert {row["sequence"] for row in data["comparison"]["rows"]} == {"first", "second"}
    texts = {token: text for token, text, _ in data["comparison"]["tokens"]}
    assert texts[3] == "three"
    assert texts[4] == "\\xE2\\x82"
    assert texts[5] == "\\xED\\xA0\\x80"
    assert texts[6] is None


def test_the_page_about_reports_shows_python_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/report.md").read_text()
    [example] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert data_in(tmp_path / "report.html")["title"] == "rollout.tape and training.tape"


def test_routes_make_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    mt.report(page, routes(0))
    assert data_in(page)["records"][0]["file_bytes"] is None
    mt.report(str(page), [routes(0)], [routes(1)], names=["a", "b"], title="mine", overwrite=True)
    data = data_in(page)
    assert data["title"] == "mine"
    assert [record["name"] for record in data["records"]] == ["a", "b"]
    assert data["comparison"]["total"][0] == 20


def test_a_tape_of_several_files_has_the_name_of_its_index(tmp_path: Path) -> None:
    for name in ("rollout.tape", "training.tape"):
        mt.save(tmp_path / name, [routes(0), routes(1)], max_file_bytes=1)
    tapes = [mt.open(tmp_path / name) for name in ("rollout.tape", "training.tape")]
    assert len(tapes[0].files) == 2
    mt.report(tmp_path / "report.html", *tapes)
    names = [record["name"] for record in data_in(tmp_path / "report.html")["records"]]
    assert names == ["rollout.tape", "training.tape"]


def test_tapes_without_a_sequence_make_a_page(tmp_path: Path) -> None:
    with mt.TapeWriter(tmp_path / "empty.tape", SPEC):
        pass
    empty = mt.open(tmp_path / "empty.tape")
    mt.report(tmp_path / "report.html", empty, empty)
    data = data_in(tmp_path / "report.html")
    assert data["records"][0]["load"] == [None] * 3
    assert data["comparison"]["total"][0] == 0


def test_wrong_use_is_an_error_and_the_old_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    other = mt.RouteSpec(layers=[1, 2], top_k=2, num_experts=8)
    foreign = mt.Routes.from_ids(other, distinct_ids(20, spec=other))
    with pytest.raises(mt.InvalidArgumentError, match="names: expected one for each of 1 records, got 2"):
        mt.report(page, routes(0), names=["a", "b"])
    with pytest.raises(mt.SpecMismatchError):
        mt.report(page, routes(0), foreign, overwrite=True)
    with pytest.raises(mt.WrongShapeError):
        mt.report(page, [routes(0)], [routes(0), routes(1)], overwrite=True)
    assert page.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_tapes_of_different_specs_are_refused(tmp_path: Path) -> None:
    for name, layers in (("a", [0]), ("b", [0, 1])):
        mt.save(tmp_path / name, [], spec=mt.RouteSpec(layers=layers, top_k=2, num_experts=8))
    with pytest.raises(mt.SpecMismatchError, match="report: record b: expected fingerprint"):
        mt.report(tmp_path / "report.html", mt.open(tmp_path / "a"), mt.open(tmp_path / "b"))


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(mt.IoError, match=r"report\.html: cannot be made: No such file"):
        mt.report(tmp_path / "missing" / "report.html", routes(0))
    with pytest.raises(mt.InvalidArgumentError, match="path: expected the name of a file"):
        mt.report("", routes(0))
    (tmp_path / "report.html").mkdir()
    with pytest.raises(
        mt.InvalidArgumentError, match=r"report\.html: expected .* regular file, got a folder"
    ):
        mt.report(tmp_path / "report.html", routes(0), overwrite=True)
    assert os.listdir(tmp_path) == ["report.html"]
