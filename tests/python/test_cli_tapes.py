"""info, verify, stats, compare, merge and slice: on good tapes, and on whatever else they are given."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import moetape as mt
from cli_helpers import (
    PROGRAM,
    SPEC,
    read_tape,
    refused,
    sample,
    spec_of,
    succeed,
    succeed_json,
    write_tape,
)

OTHER = mt.RouteSpec([1, 2, 4], top_k=2, num_experts=9, num_layers=6)
READERS = ["info", "verify", "stats"]


@pytest.fixture(scope="module")
def records() -> dict[str, mt.Routes]:
    return {
        "first": sample(20, seed=1, version=7),
        "second": sample(6, seed=2, start=3, version=8, missing=[1, 4]),
        "empty": sample(0, start=5),
    }


@pytest.fixture(scope="module")
def tape(records: dict[str, mt.Routes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tape(tmp_path_factory.mktemp("tapes") / "run.tape", records)


def test_info_tells_what_a_tape_holds(tape: Path) -> None:
    text = succeed("info", tape, "--sequences")
    for line in [
        "sequences    3",
        "rows         26, 2 missing",
        "versions     2 from 7 to 8",
        "experts      top 2 of 8",
        "     1  second      3    9        2  no      8",
    ]:
        assert line in text.splitlines(), text
    (facts,) = succeed_json("info", tape)
    assert (facts["kind"], facts["num_sequences"], facts["num_rows"]) == ("tape", 3, 26)
    assert (facts["num_missing"], facts["versions"], facts["codec"]) == (2, [7, 8], "none")
    assert spec_of(facts) == SPEC
    assert {tensor["name"] for tensor in facts["files"][0]["tensors"]} >= {"ids", "offsets", "valid"}
    assert "sequences" not in facts
    (facts,) = succeed_json("info", tape, "--sequences")
    assert facts["sequences"][1] == {
        "id": "second",
        "meta": "",
        "start": 3,
        "end": 9,
        "num_missing": 2,
        "has_tokens": False,
        "versions": [
            {"start": 3, "end": 4, "version": 8},
            {"start": 5, "end": 7, "version": 8},
            {"start": 8, "end": 9, "version": 8},
        ],
    }


def test_stats_count_what_numpy_counts(tape: Path, records: dict[str, mt.Routes]) -> None:
    (stats,) = succeed_json("stats", tape, "--load")
    ids = np.concatenate([routes.ids[routes.valid] for routes in records.values()])
    assert (stats["num_sequences"], stats["num_rows"]) == (3, 26)
    assert (stats["rows_by_reason"]["valid"], stats["rows_by_reason"]["not_sent"]) == (24, 2)
    assert stats["rows_by_version"] == [{"version": 7, "num_rows": 20}, {"version": 8, "num_rows": 4}]
    for column, layer in enumerate(stats["layers"]):
        load = np.bincount(ids[:, column].ravel(), minlength=8)
        assert layer["load"] == load.tolist()
        assert layer["balance"]["max_over_mean"] == pytest.approx(load.max() / load.mean())
    assert [layer["layer"] for layer in stats["layers"]] == [1, 2, 4]
    text = succeed("stats", tape)
    assert "versions   7: 20 rows, 8: 4 rows" in text
    assert f"{stats['layers'][2]['balance']['gini']:.3f}" in text.splitlines()[-1]


def test_an_empty_tape_has_nothing_to_divide(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "empty.tape", {"empty": sample(0)})
    (stats,) = succeed_json("stats", tape)
    assert stats["layers"][0] == {"layer": 1, "balance": None, "overlap_with_previous_row": None}
    assert " - " in succeed("stats", tape)


def test_compare_counts_what_differs(tape: Path, records: dict[str, mt.Routes], tmp_path: Path) -> None:
    # case J06
    ids = records["first"].ids.astype(int)
    ids[4, 1] = ids[4, 1, ::-1]  # another order
    ids[9, 2, 0] = next(expert for expert in range(8) if expert not in ids[9, 2])
    changed = mt.Routes.from_ids(SPEC, ids, version=9)
    other = write_tape(
        tmp_path / "other.tape", {"new": sample(1), "first": changed, "second": records["second"]}
    )
    result = succeed_json("compare", tape, other)
    assert (result["paired_by"], result["num_sequences"]) == ("id", 2)
    assert (result["sequences_only_in_a"], result["sequences_only_in_b"]) == ([2], [0])
    total = result["total"]
    assert (total["num_rows"], total["num_unequal_rows"], total["num_rerouted_rows"]) == (24, 2, 1)
    assert total["unequal_rows_rate"] == pytest.approx(2 / 24)
    assert [layer["num_rerouted_rows"] for layer in result["by_layer"]] == [0, 0, 1]
    assert result["num_rows_in_neither"] == 2
    assert result["rerouted_rows"] == [
        {"sequence": 0, "position": 9, "token": None, "num_rerouted_routers": 1, "num_unequal_routers": 1}
    ]
    assert {(v["version_a"], v["version_b"]) for v in result["by_version"]} == {(7, 9), (8, 8)}
    text = succeed("compare", tape, other)
    assert "sequences  2 compared by id, 1 only in a, 1 only in b" in text
    assert "all      24    8.33%     4.17%             1.39%   99.31%" in text


def test_without_ids_sequences_are_paired_by_number(tmp_path: Path) -> None:
    for name in ("a.tape", "b.tape"):
        mt.save(tmp_path / name, [sample(5), sample(6)])
    result = succeed_json("compare", tmp_path / "a.tape", tmp_path / "b.tape")
    assert (result["paired_by"], result["num_sequences"]) == ("number", 2)


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (["--max-rerouted-rows", "0.05"], 0),
        (["--max-rerouted-rows", "0.04"], 1),
        (["--max-rerouted-routers", "0.014"], 0),
        (["--max-rerouted-routers", "0.013"], 1),
        (["--max-unequal-rows", "0.09"], 0),
        (["--max-unequal-rows", "0.08"], 1),
        (["--max-unequal-routers", "0.028"], 0),
        (["--max-unequal-routers", "0.027"], 1),
        (["--min-overlap", "0.99"], 0),
        (["--min-overlap", "1"], 1),
        (["--min-overlap", "0.5", "--max-unequal-rows", "0"], 1),
        (["--complete"], 1),
    ],
)
def test_a_check_that_fails_ends_with_1(
    check: list[str], code: int, tape: Path, records: dict[str, mt.Routes], tmp_path: Path
) -> None:
    ids = records["first"].ids.astype(int)
    ids[4, 1] = ids[4, 1, ::-1]
    ids[9, 2, 0] = next(expert for expert in range(8) if expert not in ids[9, 2])
    changed = {**records, "first": mt.Routes.from_ids(SPEC, ids, version=9)}
    other = write_tape(tmp_path / "other.tape", changed)
    text = succeed("compare", tape, other, *check, code=code)
    assert ("failed: " in text) == (code == 1)
    result = json.loads(succeed("compare", tape, other, *check, "--json", code=code))
    assert {entry["check"] for entry in result["checks"] if not entry["passed"]} == (
        {check[-2] if len(check) > 1 else check[0]} if code else set()
    )


def test_a_rate_of_nothing_passes_no_check(tmp_path: Path) -> None:
    empty = write_tape(tmp_path / "a.tape", {"x": sample(0)})
    assert "nothing was compared" in succeed("compare", empty, empty, "--max-rerouted-rows", "1", code=1)
    text = succeed("compare", empty, empty, "--complete", code=1)
    assert "failed: --complete: nothing was compared" in text
    succeed("compare", empty, empty)


def test_what_is_not_complete_is_counted(tmp_path: Path) -> None:
    a = write_tape(tmp_path / "a.tape", {"x": sample(9, missing=[1]), "y": sample(3), "z": sample(2)})
    b = write_tape(tmp_path / "b.tape", {"x": sample(9, missing=[1, 2, 3])})
    text = succeed("compare", a, b, "--complete", code=1)
    assert "failed: --complete: 2 sequences only in a, 2 rows only in a, 1 row in neither\n" in text
    text = succeed("compare", b, a, "--complete", code=1)
    assert "failed: --complete: 2 sequences only in b, 2 rows only in b, 1 row in neither\n" in text


def test_equal_tapes_pass_every_check(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "a.tape", {"x": sample(9)})
    succeed("compare", tape, tape, "--max-unequal-routers", "0", "--min-overlap", "1", "--complete")


def test_merge_keeps_order_and_contents(tape: Path, records: dict[str, mt.Routes], tmp_path: Path) -> None:
    more = {"third": sample(30, seed=9, version=3)}
    other = write_tape(tmp_path / "other.tape", more)
    merged = tmp_path / "merged.tape"
    assert succeed("merge", tape, other, "-o", merged) == f"{merged}: 4 sequences, 56 rows\n"
    assert list(read_tape(merged).items()) == [*records.items(), *more.items()]
    packed = succeed_json("merge", tape, other, "-o", tmp_path / "packed.tape", "--codec", "bitpack")
    assert packed == {"output": f"{tmp_path}/packed.tape", "num_sequences": 4, "num_rows": 56}
    assert succeed_json("info", tmp_path / "packed.tape")[0]["codec"] == "bitpack"
    assert read_tape(tmp_path / "packed.tape") == records | more


def test_merge_may_replace_one_of_its_own_tapes(records: dict[str, mt.Routes], tmp_path: Path) -> None:
    path = write_tape(tmp_path / "run.tape", records)
    assert refused("merge", path, path, "-o", path) == f"{path}: stands there already; --force replaces it"
    assert read_tape(path) == records
    succeed("merge", path, path, "-o", path, "--force")
    assert succeed_json("info", path)[0]["num_sequences"] == 6
    succeed("verify", path)


def test_slice_takes_sequences_positions_and_layers(
    tape: Path, records: dict[str, mt.Routes], tmp_path: Path
) -> None:
    part = tmp_path / "part.tape"
    succeed("slice", tape, "-o", part, "--sequences", "1,0", "--positions", "4:8", "--layers", "2,4")
    spec = SPEC.with_layers([2, 4])
    (facts,) = succeed_json("info", part, "--sequences")
    assert spec_of(facts).fingerprint == spec.fingerprint
    assert [entry["id"] for entry in facts["sequences"]] == ["second", "first"]
    cut = read_tape(part)
    for name in ("first", "second"):
        expected = records[name].slice(4, 8)
        assert np.array_equal(cut[name].ids, expected.ids[:, 1:])
        assert np.array_equal(cut[name].valid, expected.valid)
        assert cut[name].versions == expected.versions
    succeed("slice", tape, "-o", part, "-f", "--id", "second")
    assert read_tape(part) == {"second": records["second"]}
    succeed("slice", tape, "-o", part, "-f", "--positions", "100:")
    assert [len(routes) for routes in read_tape(part).values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sequences", "3"], "--sequences: expected numbers up to 2, got 3"),
        (["--sequences", "2-1"], "--sequences: expected the lower number first, got '2-1'"),
        (["--sequences", "x"], "--sequences: expected a number or range such as 0-5,7, got 'x'"),
        (["--sequences", "1,"], "--sequences: expected a number or range such as 0-5,7, got '1,'"),
        (["--id", "none"], "--id: the tape has no sequence 'none'"),
        (["--positions", "5"], "--positions: expected START:END, got '5'"),
        (["--positions", "5:4"], "--positions: expected START up to END, got '5:4'"),
        (["--layers", "3"], "--layers: "),
        (["--layers", "2,1"], "--layers: expected ascending layers, got '2,1'"),
        (["--layer-group", "1-2"], "layer"),
        (["--codec", "zip"], "--codec: zip not in {none,bitpack}"),
    ],
)
def test_a_part_that_is_not_there_is_refused(
    flags: list[str], message: str, tape: Path, tmp_path: Path
) -> None:
    assert message in refused("slice", tape, "-o", tmp_path / "part.tape", *flags)
    assert list(tmp_path.iterdir()) == []


def test_layer_groups_and_files_are_written_as_told(
    tape: Path, records: dict[str, mt.Routes], tmp_path: Path
) -> None:
    grouped = tmp_path / "grouped.tape"
    succeed("merge", tape, "-o", grouped, "--layer-group", "1", "--layer-group", "2,4")
    assert succeed_json("info", grouped)[0]["layer_groups"] == [[1], [2, 4]]
    assert read_tape(grouped) == records
    succeed("slice", grouped, "-o", tmp_path / "stage.tape", "--layers", "1-2")
    assert succeed_json("info", tmp_path / "stage.tape")[0]["layer_groups"] == [[1], [2]]
    many = tmp_path / "many.tape"
    succeed("merge", *[tape] * 40, "-o", many, "--max-file-bytes", "8k")
    (facts,) = succeed_json("info", many)
    assert facts["num_sequences"] == 120
    assert len(facts["files"]) > 1
    assert all(file["num_bytes"] <= 8000 for file in facts["files"])
    succeed("verify", many)


def test_standard_input_and_output_are_tapes_too(tape: Path, records: dict[str, mt.Routes]) -> None:
    bytes_in = tape.read_bytes()
    for command in READERS:
        assert succeed(command, "-", stdin=bytes_in)
    with subprocess.Popen(
        [PROGRAM, "slice", "-", "--id", "second", "-o", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        part, _ = run.communicate(bytes_in, timeout=60)
    assert run.returncode == 0
    (facts,) = succeed_json("info", "-", "--sequences", stdin=part)
    assert [entry["id"] for entry in facts["sequences"]] == ["second"]
    assert "--json: standard output" in refused("slice", tape, "-o", "-", "--json")


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_file_is_refused(command: str, tmp_path: Path) -> None:
    line = refused(command, tmp_path / "gone.tape")
    assert "gone.tape" in line
    assert "No such file or directory" in line
    assert str(tmp_path) in refused(command, tmp_path)


def test_tapes_of_two_specs_do_not_go_together(tape: Path, tmp_path: Path) -> None:
    other = write_tape(tmp_path / "other.tape", {"x": sample(3, spec=OTHER)})
    expected = (
        f"{other}: expected a tape of the spec of {tape}, {SPEC.fingerprint:016x}, got "
        f"{OTHER.fingerprint:016x}: num_experts 8 and 9"
    )
    assert refused("compare", tape, other) == expected
    for command in ("merge", "report"):
        assert refused(command, tape, other, "-o", tmp_path / "out") == expected
    line = refused("convert", tape, other, "-o", tmp_path / "out.tape")
    assert line.startswith(f"{other}: expected a tape of the spec {SPEC.fingerprint:016x}, got")
    assert [path.name for path in tmp_path.iterdir()] == ["other.tape"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("folder", "folder: expected the name of a file, got a folder"),
        ("gone/out.tape", "No such file or directory"),
        ("run.tape", "run.tape: stands there already; --force replaces it"),
        ("link.tape", "link.tape: stands there already; --force replaces it"),
    ],
)
def test_targets_that_cannot_be_written_are_named(
    target: str, message: str, tape: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    shutil.copy(tape, tmp_path / "run.tape")
    (tmp_path / "link.tape").symlink_to("run.tape")
    before = sorted(tmp_path.rglob("*"))
    for command in ("merge", "slice", "report"):
        assert message in refused(command, tape, "-o", tmp_path / target)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "run.tape").read_bytes() == tape.read_bytes()


def run_on_a_terminal(*arguments: object, **environment: str) -> str:
    main, terminal = pty.openpty()
    command = [str(PROGRAM), *map(str, arguments)]
    env = {**os.environ, "TERM": "xterm", **environment}
    env.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
    subprocess.run(command, stdout=terminal, stderr=terminal, env=env, check=False, timeout=60)
    os.close(terminal)
    text = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # how a terminal says that nobody writes to it any more
            break
        if not chunk:
            break
        text += chunk
    os.close(main)
    return text.decode()


def test_colours_and_progress_are_for_terminals(tape: Path, tmp_path: Path) -> None:
    colour = "\x1b[32m"
    assert colour in run_on_a_terminal("verify", tape)
    assert "\x1b" not in run_on_a_terminal("verify", tape, NO_COLOR="1")
    assert "\x1b" not in run_on_a_terminal("verify", tape, TERM="dumb")
    assert "\x1b" not in succeed("verify", tape)
    shown = run_on_a_terminal("merge", tape, tape, "-o", tmp_path / "out.tape")
    assert "merge [=====" in shown
    assert shown.rstrip().endswith("out.tape: 6 sequences, 52 rows")
    assert "standard output is a terminal" in run_on_a_terminal("slice", tape, "-o", "-")
