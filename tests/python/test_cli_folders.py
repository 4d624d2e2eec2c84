"""convert of folders and of many files: what is read, what is refused, and what sequences are called."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import moetape as mt
from cli_helpers import PROGRAM, read_tape, refused, sample, succeed, write_spec, write_tape


def write_form(path: Path, seed: int = 0) -> mt.Routes:
    routes = sample(3 + seed, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mt.encode(routes, "sglang"))
    return routes


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_spec(tmp_path)


@pytest.fixture
def forms(tmp_path: Path) -> Path:
    write_form(tmp_path / "forms/a.txt")
    return tmp_path / "forms"


@pytest.mark.parametrize("name", ["z", "sub/z"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dead link", "a link that leads nowhere"),
        ("link to a folder", "a link to a folder, which is not followed; name the files that are meant"),
        ("loop", "Too many levels of symbolic links"),
        ("pipe", "expected a file or folder, got a pipe or device"),
        ("device", "expected a file or folder, got a pipe or device"),
    ],
)
def test_what_cannot_be_read_as_a_file_is_refused_by_name(
    kind: str, message: str, name: str, forms: Path, spec: Path, tmp_path: Path
) -> None:
    place = forms / name
    place.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        targets = {"dead link": "gone", "link to a folder": tmp_path, "loop": "z", "device": "/dev/null"}
        place.symlink_to(targets[kind])
    line = refused("convert", forms, "--spec", spec, "-o", tmp_path / "run.tape")
    assert line == f"{place}: {message}"
    assert not (tmp_path / "run.tape").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_is_locked_is_named_itself() -> None:
    with tempfile.TemporaryDirectory() as name:  # the folders of pytest's workers are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        write_form(folder / "forms/a.txt")
        (folder / "forms/locked").mkdir(mode=0o700)
        program = folder / "moetape"
        program.write_bytes(PROGRAM.read_bytes())
        program.chmod(0o755)
        run = subprocess.run(
            [
                program,
                "convert",
                folder / "forms",
                "--spec",
                write_spec(folder),
                "-o",
                "/dev/null",
                "--to",
                "tape",
            ],
            **dict(capture_output=True, text=True, check=False, user="nobody", timeout=60),
        )
        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr == f"moetape: {folder}/forms/locked: Permission denied\n"


def test_links_to_files_have_the_names_of_the_links(forms: Path, spec: Path, tmp_path: Path) -> None:
    elsewhere = write_form(tmp_path / "real/r0.txt", seed=1)
    (forms / "b.txt").symlink_to("../real/r0.txt")
    succeed("convert", forms, "--spec", spec, "-o", tmp_path / "run.tape")
    assert read_tape(tmp_path / "run.tape") == {"a": sample(3), "b": elsewhere}


def test_ids_hold_the_folders_in_between(forms: Path, spec: Path, tmp_path: Path) -> None:
    deep = write_form(forms / "sub/deep.er/s.v1.txt", seed=2)
    succeed("convert", f"{forms}/", "--spec", spec, "-o", tmp_path / "run.tape")
    assert read_tape(tmp_path / "run.tape") == {"a": sample(3), "sub/deep.er/s.v1": deep}


@pytest.mark.parametrize("other", ["forms/a.json", "more/a.txt"])
def test_two_forms_of_one_name_are_refused(other: str, forms: Path, spec: Path, tmp_path: Path) -> None:
    write_form(tmp_path / other, seed=1)
    given = [forms] if other.startswith("forms") else [forms / "a.txt", tmp_path / other]
    line = refused("convert", *given, "--spec", spec, "-o", tmp_path / "run.tape")
    assert "its sequence would be called 'a', and so is one of" in line
    assert str(tmp_path / other) in line
    assert str(forms / "a.txt") in line
    assert not (tmp_path / "run.tape").exists()


def test_two_choices_of_one_index_are_refused(spec: Path, tmp_path: Path) -> None:
    choices = [{"index": index, "routed_experts": mt.encode(sample(3), "vllm")} for index in (0, 1, 0)]
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"choices": choices}))
    line = refused("convert", answer, "--spec", spec, "-o", tmp_path / "run.tape")
    assert line == f"{answer}: expected choices of different indices, got 0 twice"


def test_the_output_of_an_earlier_run_is_no_input(forms: Path, spec: Path, tmp_path: Path) -> None:
    for flags in ([], ["--force"]):
        succeed("convert", forms, "--spec", spec, "-o", forms / "run.tape", *flags)
        assert read_tape(forms / "run.tape") == {"a": sample(3)}
    # Under another name it would give the same sequences again.
    line = refused("convert", forms, "--spec", spec, "-o", tmp_path / "run.tape")
    assert "its sequence would be called 'a'" in line or "and so is one of" in line


def test_the_shards_of_a_tape_are_read_once(spec: Path, tmp_path: Path) -> None:
    sequences = {str(seed): sample(40, seed=seed) for seed in range(4)}
    whole = write_tape(tmp_path / "whole.tape", sequences)
    (tmp_path / "tapes").mkdir()
    succeed("slice", whole, "-o", tmp_path / "tapes/run.tape", "--max-file-bytes", "3k")
    assert len(list((tmp_path / "tapes").iterdir())) > 2
    succeed("convert", tmp_path / "tapes", "-o", tmp_path / "one.tape")
    tape = mt.open(tmp_path / "one.tape")
    assert [tape.entry(number).id for number in range(len(tape))] == list(sequences)
    assert read_tape(tmp_path / "one.tape") == sequences


def test_tapes_may_hold_one_id_several_times(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tape(tmp_path / f"{name}.tape", {"x": sample(3)})
    succeed("convert", tmp_path / "a.tape", tmp_path / "b.tape", "-o", tmp_path / "both.tape")
    tape = mt.open(tmp_path / "both.tape")
    assert [tape.entry(number).id for number in range(len(tape))] == ["x", "x"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--from", "sglang"],
        ["--start", 0],
        ["--rows", 3],
        ["--policy-version", 1],
        ["--from-dtype", "int32"],
        ["--known-from", 0],
        ["--surplus-rows", 0],
        ["--skip-absent"],
    ],
)
def test_a_tape_says_itself_what_forms_do_not(flags: list[object], tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "run.tape", {"x": sample(3)})
    line = refused("convert", tape, *flags, "-o", tmp_path / "x.tape")
    assert line == f"{flags[0]}: is for forms and answers; {tape} is a tape, which says it itself"
    succeed("convert", tape, "--from", "tape", "-o", tmp_path / "x.tape")


@pytest.mark.parametrize(
    ("to", "flags", "message"),
    [
        ("npy", ["--codec", "none"], "--codec: is for tapes; x is written as npy"),
        ("sglang", ["--layer-group", "1,2,4"], "--layer-group: is for tapes; x is written as sglang"),
        ("npy", ["--max-file-bytes", "8k"], "--max-file-bytes: is for tapes; x is written as npy"),
        ("tape", ["--missing", "zeros"], "--missing: is for forms; x is written as a tape, as it is"),
        ("tape", ["--to-dtype", "uint8"], "--to-dtype: is for forms; x is written as a tape, as it is"),
        ("tape", ["--to-layers", "all"], "--to-layers: is for forms; x is written as a tape, as it is"),
        ("tape-base64", ["--missing", "zeros"], "--missing: is for forms; x is written as a tape, as it is"),
        ("tape", ["--prompt-rows", 0], "--prompt-rows: is for forms; x is written as a tape, as it is"),
        ("vllm", ["--prompt-rows", 0], "--prompt-rows: is for vllm-split; x is written as vllm"),
    ],
)
def test_what_means_nothing_to_the_output_is_refused(
    to: str, flags: list[object], message: str, tmp_path: Path
) -> None:
    tape = write_tape(tmp_path / "run.tape", {"x": sample(3)})
    assert refused("convert", tape, "--to", to, *flags, "-o", "x", cwd=tmp_path) == message
    assert [path.name for path in tmp_path.iterdir()] == ["run.tape"]


def test_a_form_that_says_its_type_is_told_none(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "form").write_text(mt.encode(sample(3), "vllm"))
    flags = ["--spec", spec, "-o", tmp_path / "x.tape", "--from-dtype", "uint8"]
    line = refused("convert", tmp_path / "form", *flags)
    assert line == (
        f"--from-dtype: is for sglang and raw arrays; {tmp_path}/form is vllm, which says the type"
    )
