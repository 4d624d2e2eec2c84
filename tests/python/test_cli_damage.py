"""Damaged tapes, what is no tape, and several files of which some cannot be read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import moetape as mt
from cli_helpers import (
    PROGRAM,
    SPEC,
    moetape,
    refused,
    sample,
    succeed,
    succeed_json,
    write_spec,
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


@pytest.mark.parametrize("command", ["info", "stats", "compare", "merge", "slice"])
def test_damage_is_refused_with_its_place_and_nothing_is_written(
    command: str, tape: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.tape"
    whole = tape.read_bytes()
    arguments = [damaged] * (2 if command in ("compare", "merge") else 1)
    if command in ("merge", "slice"):
        arguments += ["-o", tmp_path / "out.tape"]
    for length in (len(whole) - 1, len(whole) // 2, 100):
        damaged.write_bytes(whole[:length])
        assert "damaged.tape" in refused(command, *arguments)
    (facts,) = succeed_json("info", tape)
    (ids,) = [tensor for tensor in facts["files"][0]["tensors"] if tensor["name"] == "ids"]
    flipped = bytearray(whole)
    flipped[ids["offset"] + 5] ^= 1
    damaged.write_bytes(flipped)
    if command != "info":  # which looks at no row
        assert "sequence 0" in refused(command, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.tape"]


def test_verify_finds_every_kind_of_damage_and_ends_with_1(tape: Path, tmp_path: Path) -> None:
    assert succeed("verify", tape) == f"{tape}: sound, 3 sequences\n"
    damaged = tmp_path / "damaged.tape"
    whole = tape.read_bytes()
    for place in range(0, len(whole), 97):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        damaged.write_bytes(flipped)
        run = moetape("verify", damaged, tape, "--json")
        assert (run.returncode, run.stderr) == (1, ""), place
        bad, good = json.loads(run.stdout)
        assert (bad["sound"], good["sound"], good["faults"]) == (False, True, [])
        for fault in bad["faults"]:
            assert "damaged.tape" in fault["message"]
    damaged.write_bytes(whole[:-1])
    assert succeed("verify", damaged, code=1).startswith("fault: ")


@pytest.mark.parametrize("content", [b"", b"not a tape at all", b"\x7fELF" + bytes(range(256)) * 300, b"{}"])
def test_what_is_no_tape_is_no_damaged_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for command in ("verify", "stats"):
        line = refused(command, path)
        assert line.startswith(f"{path}: expected a tape, got {'what begins with' if content else 'nothing'}")


def test_a_safetensors_file_of_another_kind_is_no_damaged_tape(tmp_path: Path) -> None:
    header = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(64)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    assert "got a safetensors file of no format" in refused("verify", path)


@pytest.mark.parametrize("command", READERS)
def test_of_several_files_the_good_ones_are_shown_and_the_others_named(
    command: str, tape: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"not a tape at all")
    gone = tmp_path / "gone"
    run = moetape(command, gone, tape, bad, tape)
    assert run.returncode == 2
    assert run.stdout == succeed(command, tape) * 2
    first, second = run.stderr.splitlines()
    assert first == f"moetape: {gone}: No such file or directory"
    assert second.startswith(f"moetape: {bad}: expected a tape, ")
    run = moetape(command, bad, tape, "--json")
    assert run.returncode == 2
    assert json.loads(run.stdout) == succeed_json(command, tape)
    assert refused(command, bad, "--json").startswith(f"{bad}: expected a tape")


def test_a_file_that_cannot_be_read_counts_more_than_damage(tape: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tape"
    damaged.write_bytes(tape.read_bytes()[:-1])
    run = moetape("verify", damaged, tmp_path / "gone", tape)
    assert run.returncode == 2
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["fault:", f"{tape}:"]
    assert "gone" in run.stderr


def test_a_pipe_is_read_as_a_file_is(tape: Path) -> None:
    for command in READERS:
        script = f"{PROGRAM} {command} <(cat {tape})"
        run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert (run.returncode, run.stderr) == (0, "")
        expected = succeed(command, tape)
        assert run.stdout.splitlines()[1:] == expected.splitlines()[1:]


def test_verify_holds_a_tape_against_a_spec(tape: Path, tmp_path: Path) -> None:
    assert succeed("verify", tape, "--spec", write_spec(tmp_path)) == f"{tape}: sound, 3 sequences\n"
    text = succeed("verify", tape, "--spec", write_spec(tmp_path, OTHER), code=1)
    assert f"{OTHER.fingerprint:016x}" in text
    assert f"{SPEC.fingerprint:016x}" in text


@pytest.mark.parametrize("command", ["compare", "diagnose", "report"])
def test_two_tapes_with_no_sequence_in_common_are_refused(command: str, tape: Path, tmp_path: Path) -> None:
    other = write_tape(tmp_path / "other.tape", {"third": sample(20, seed=1)})
    page = ["-o", tmp_path / "page.html"] if command == "report" else []
    message = refused(command, tape, other, *page)
    assert message == f"{tape} and {other}: expected a sequence that stands in both, paired by id, got none"
    assert not (tmp_path / "page.html").exists()


def test_diagnose_says_that_two_tapes_are_of_different_specs(
    records: dict[str, mt.Routes], tape: Path, tmp_path: Path
) -> None:
    wider = mt.RouteSpec([1, 2, 4], top_k=2, num_experts=9, num_layers=6, model="toy")
    first = records["first"]
    moved = mt.Routes.from_ids(wider, first.ids)
    other = write_tape(tmp_path / "other.tape", {"first": moved})
    found = succeed_json("diagnose", tape, other)
    assert found["spec_difference"] == "num_experts 8 and 9"
    assert "differ: num_experts 8 and 9" in succeed("diagnose", tape, other)
    assert succeed_json("diagnose", tape, tape)["spec_difference"] is None


def test_diagnose_names_the_tapes_that_it_calls_a_and_b(tape: Path, tmp_path: Path) -> None:
    narrow = mt.RouteSpec([1, 2, 4], top_k=1, num_experts=8, num_layers=6)
    other = write_tape(
        tmp_path / "other.tape", {"first": mt.Routes.from_ids(narrow, np.ones((20, 3, 1), np.uint8))}
    )
    message = refused("diagnose", tape, other)
    assert message == f"a is {tape}, b is {other}: b: expected top_k 2 as in a, got 1"
