"""convert: every dialect and whole answers into tapes and back, and what cannot be converted."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from cli_helpers import (
    PROGRAM,
    read_tape,
    refused,
    sample,
    succeed,
    succeed_json,
    write_spec,
    write_tape,
)
from config_cases import QWEN3

ROOT = Path(__file__).parents[2]
ARRAYS = ["trtllm", "verl", "slime", "miles"]
DIALECTS = [
    *["sglang", "vllm", "vllm-split", "lightllm", "prime-rl", "skyrl", "nemo-rl", "megatron"],
    *[*ARRAYS, "npy"],
]


def encoded(routes: mt.Routes, dialect: str) -> bytes:
    """What a server sends, as the bytes of a file."""
    form = mt.encode(routes, dialect)
    if isinstance(form, np.ndarray):
        return form.tobytes()
    return form.encode() if isinstance(form, str) else form


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_spec(tmp_path)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tape_becomes_what_python_encodes_and_comes_back(dialect: str, spec: Path, tmp_path: Path) -> None:
    routes = sample(12, version=4)
    tape = write_tape(tmp_path / "run.tape", {"request": routes})
    form = tmp_path / "form"
    flags = ["--prompt-rows", 5] if dialect == "vllm-split" else []
    written = succeed_json("convert", tape, "--to", dialect, "-o", form, *flags)
    assert written == {"output": str(form), "num_sequences": 1, "num_rows": 12, "dialect": dialect}
    if dialect != "vllm-split":
        assert form.read_bytes() == encoded(routes, dialect)
    back = tmp_path / "back.tape"
    flags = ["--from", dialect, "--spec", spec, "--policy-version", 4, "-o", back]
    if dialect in ARRAYS:
        flags += ["--from-dtype", mt.encode(routes, dialect).dtype]
    succeed("convert", form, *flags)
    assert read_tape(back) == {"form": routes}


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name not in ARRAYS])
def test_looks_say_the_dialect(dialect: str, spec: Path, tmp_path: Path) -> None:
    routes = sample(12)
    form = tmp_path / "form"
    form.write_bytes(encoded(routes, dialect))
    (facts,) = succeed_json("info", form)
    assert (facts["kind"], dialect in facts["dialects"]) == ("wire", True)
    succeed("convert", form, "--spec", spec, "-o", tmp_path / "run.tape")
    assert read_tape(tmp_path / "run.tape") == {"form": routes}


@pytest.mark.parametrize("dialect", ["sglang", "vllm", "nemo-rl", "lightllm"])
def test_a_line_end_behind_a_text_does_no_harm(dialect: str, spec: Path, tmp_path: Path) -> None:
    routes = sample(4)
    for end in (b"\n", b"\r\n"):
        text = encoded(routes, dialect) + end
        for flags in ([], ["--from", dialect]):
            tape = succeed_bytes(
                "convert", "-", "--spec", spec, "--to", "tape", "-o", "-", *flags, stdin=text
            )
            (tmp_path / "x.tape").write_bytes(tape)
            assert read_tape(tmp_path / "x.tape") == {"": routes}


def succeed_bytes(*arguments: object, stdin: bytes | None = None) -> bytes:
    command = [str(PROGRAM), *map(str, arguments)]
    run = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, b"")
    return run.stdout


def vllm_answer(*sequences: mt.Routes | None) -> dict[str, Any]:
    choices = [
        {"index": index, "text": "…", "routed_experts": None if routes is None else mt.encode(routes, "vllm")}
        for index, routes in enumerate(sequences)
    ]
    return {"id": "cmpl-1", "object": "text_completion", "choices": choices}


def sglang_answer(routes: mt.Routes) -> dict[str, Any]:
    return {"text": "…", "meta_info": {"id": "1", "routed_experts": mt.encode(routes, "sglang")}}


def test_answers_of_a_folder_become_one_tape(spec: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    (answers / "more").mkdir(parents=True)
    (answers / ".hidden").mkdir()
    (answers / ".hidden/x.json").write_text("no answer")
    (answers / ".x.json.swp").write_text("no answer")
    one, two, three, four = (sample(5 + seed, seed=seed) for seed in range(4))
    (answers / "b.json").write_text(json.dumps(vllm_answer(one, two)))
    (answers / "a.json").write_text(json.dumps(sglang_answer(three)))
    (answers / "more/c.txt").write_text(mt.encode(four, "sglang") + "\n")
    assert succeed_json("info", answers / "b.json")[0]["kind"] == "answer"
    tape = tmp_path / "run.tape"
    assert succeed("convert", answers, "--spec", spec, "-o", tape) == f"{tape}: 4 sequences, 26 rows\n"
    expected = {"a": three, "b#0": one, "b#1": two, "more/c": four}
    assert list(read_tape(tape).items()) == list(expected.items())


def test_absent_empty_and_missing_are_three_things(spec: Path, tmp_path: Path) -> None:
    # case J04
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(vllm_answer(sample(3), None, sample(0))))
    line = refused("convert", answer, "--spec", spec, "-o", tmp_path / "run.tape")
    assert "answer.json" in line
    assert "choice" in line
    succeed("convert", answer, "--spec", spec, "--skip-absent", "-o", tmp_path / "run.tape")
    assert read_tape(tmp_path / "run.tape") == {"answer#0": sample(3), "answer#2": sample(0)}


def test_start_rows_and_version_are_the_readers_to_say(spec: Path, tmp_path: Path) -> None:
    routes = sample(6, start=8, version=2)
    form = tmp_path / "form"
    form.write_bytes(encoded(routes, "sglang"))
    tape = tmp_path / "run.tape"
    flags = ["--spec", spec, "-o", tape, "--start", 8, "--policy-version", 2]
    succeed("convert", form, *flags, "--rows", 6)
    assert read_tape(tape) == {"form": routes}
    # case C06
    assert "7" in refused("convert", form, *flags, "-f", "--rows", 7)
    succeed("convert", form, *flags, "-f", "--known-from", 10, "--surplus-rows", 1)
    (cut,) = read_tape(tape).values()
    assert (cut.start, cut.end, cut.valid.tolist()) == (8, 13, [False, False, True, True, True])


def test_forms_that_may_be_two_dialects_are_read_if_they_agree(spec: Path, tmp_path: Path) -> None:
    """A column for every layer, and MoE layers only, look alike where a model has but MoE layers."""
    form = tmp_path / "form.json"
    tape = tmp_path / "run.tape"
    form.write_bytes(encoded(sample(4), "lightllm"))  # three columns: of the MoE layers
    succeed("convert", form, "--spec", spec, "-o", tape)
    assert read_tape(tape) == {"form": sample(4)}
    dense = np.zeros((2, 3, 2), np.uint8)
    form.write_text(
        json.dumps({"shape": [2, 3, 2], "dtype": "uint8", "data": base64.b64encode(dense).decode()})
    )
    refused("convert", form, "--spec", spec, "-o", tape, "-f")


def test_missing_rows_are_said_filled_or_refused(spec: Path, tmp_path: Path) -> None:
    routes = sample(4, missing=[2])
    tape = write_tape(tmp_path / "run.tape", {"x": routes})
    assert succeed("convert", tape, "--to", "nemo-rl", "-o", "-") == mt.encode(routes, "nemo-rl")
    assert "missing" in refused("convert", tape, "--to", "sglang", "-o", "-")
    for fill in ("zeros", "distinct"):
        text = succeed("convert", tape, "--to", "sglang", "--missing", fill, "-o", "-")
        assert text == mt.encode(routes, "sglang", fill)


def test_types_and_layers_of_a_form_can_be_chosen(spec: Path, tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "run.tape", {"x": sample(4)})
    text = succeed("convert", tape, "--to", "nemo-rl", "--to-dtype", "int32", "--to-layers", "all", "-o", "-")
    assert text == mt.encode(sample(4), "nemo-rl", dtype="int32", layers="all")
    assert "type: expected uint8" in refused(
        "convert", tape, "--to", "lightllm", "--to-dtype", "int64", "-o", "-"
    )


def test_a_folder_has_a_file_for_each_sequence(spec: Path, tmp_path: Path) -> None:
    sequences = {"one": sample(3, seed=1), "two.x": sample(4, seed=2), "-three": sample(5, seed=3)}
    tape = tmp_path / "run.tape"
    forms = tmp_path / "forms"
    forms.mkdir()
    for name, routes in sequences.items():
        (forms / f"{name}.txt").write_text(mt.encode(routes, "sglang"))
    succeed("convert", forms, "--spec", spec, "-o", tape)
    out = tmp_path / "out"
    assert succeed("convert", tape, "--to", "vllm", "-o", f"{out}/") == f"{out}/: 3 sequences, 12 rows\n"
    assert {path.name for path in out.iterdir()} == {"one.txt", "two.x.txt", "000000.txt"}
    assert (out / "one.txt").read_text() == mt.encode(sequences["one"], "vllm")
    assert "expected a new or empty folder" in refused("convert", tape, "--to", "vllm", "-o", out)
    assert "a file holds one sequence" in refused("convert", tape, "--to", "vllm", "-o", tmp_path / "x.txt")
    (tmp_path / "empty").mkdir()
    succeed("convert", tape, "--to", "npy", "--sequences", "0-1", "-o", tmp_path / "empty")
    assert np.load(tmp_path / "empty/one.npy").shape == (3, 6, 2)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_tapes_are_repacked_and_joined_with_answers(spec: Path, tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "run.tape", {"x": sample(9, version=1)})
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(sglang_answer(sample(3, seed=5))))
    joined = tmp_path / "joined.tape"
    succeed("convert", tape, answer, "-o", joined, "--codec", "bitpack")
    assert read_tape(joined) == {"x": sample(9, version=1), "answer": sample(3, seed=5)}
    assert "choose from tapes" in refused("convert", tape, answer, "--id", "x", "-o", tmp_path / "y.tape")


@pytest.mark.parametrize(
    ("bytes_in", "flags", "message"),
    [
        (b"", [], "nothing"),
        (b"\x1f\x8b\x08\x00", [], "gzip"),
        (b"AAAA====", [], ""),
        (b"AAAA", ["--from", "vllm"], "form: "),
        (b"AAAA", ["--from", "nope"], "--from: nope not in"),
        (b"AAAA", ["--start", "-1"], "--start"),
        (b"AAAA", ["--policy-version", str(0xFFFFFF)], "--policy-version"),
        (b'{"choices": []}', ["--from", "sglang"], "form: "),
        (b'{"choices": [{}]}', [], "routed_experts"),
        (b'{"choices"', [], "form: "),
    ],
)
def test_what_is_no_form_is_refused(
    bytes_in: bytes, flags: list[str], message: str, spec: Path, tmp_path: Path
) -> None:
    form = tmp_path / "form"
    form.write_bytes(bytes_in)
    assert message in refused("convert", form, "--spec", spec, "-o", tmp_path / "run.tape", *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["form", "spec.json"]


def test_every_cut_of_a_form_is_refused_and_nothing_is_written(spec: Path, tmp_path: Path) -> None:
    form = tmp_path / "form"
    for whole in (encoded(sample(2), "vllm"), json.dumps(sglang_answer(sample(2))).encode()):
        for length in range(1, len(whole), 7):
            form.write_bytes(whole[:length])
            line = refused("convert", form, "--spec", spec, "--rows", "2", "-o", tmp_path / "run.tape")
            assert line.startswith(f"{form}: "), line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["form", "spec.json"]


def test_uses_that_cannot_be_meant_are_refused(spec: Path, tmp_path: Path) -> None:
    form = tmp_path / "form"
    form.write_bytes(encoded(sample(2), "sglang"))
    tape = write_tape(tmp_path / "run.tape", {"x": sample(2)})
    (tmp_path / "nothing").mkdir()
    other = write_spec(tmp_path / "nothing", mt.RouteSpec([0], 2, 8))
    for arguments, message in [
        ([form, "-o", "x.tape"], f"--spec: needed to read {form}, which is no tape"),
        ([tape, "-o", "x"], "--to: x does not say what to write"),
        ([tape], "--output is required"),
        ([tape, "--spec", other, "-o", "x.tape"], "expected a tape of the spec"),
        ([form, "--spec", other, "-o", "x.tape"], "form: "),
        ([tape, "--to", "lightllm", "--layers", "3", "-o", "-"], "--layers: "),
        ([tmp_path / "gone", "--spec", spec, "-o", "x.tape"], "gone: No such file or directory"),
        ([form, "--spec", tmp_path / "gone", "-o", "x.tape"], "gone: No such file or directory"),
    ]:
        assert message in refused("convert", *arguments, cwd=tmp_path)
    other.unlink()
    assert "holds no files" in refused("convert", tmp_path / "nothing", "--spec", spec, "-o", "x.tape")
    assert not (tmp_path / "x.tape").exists()


def test_a_full_disk_leaves_no_file_and_no_folder(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "run.tape", {"x": sample(400), "y": sample(4)})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    for flags in (
        ["--to", "sglang", "--id", "x", "-o", "x.txt"],
        ["--to", "vllm", "-o", "out/"],
        ["-o", "x.tape"],
    ):
        assert "File too large" in refused("convert", tape, *flags, cwd=tmp_path, preexec_fn=limit)
    assert [path.name for path in tmp_path.iterdir()] == ["run.tape"]


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (page,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/cli.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(QWEN3))
    spec = mt.RouteSpec.from_config(QWEN3)
    (tmp_path / "answers").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"answers/{name}.json").write_text(json.dumps(sglang_answer(sample(9, spec=spec))))
    succeed("convert", "answers", "--spec", "model", "-o", "training.tape", cwd=tmp_path)
    commands = ["bash", "-euo", "pipefail", "-c", page]
    path = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    run = subprocess.run(
        commands, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | path
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert {path.name for path in tmp_path.glob("*.tape")} == {
        *["run.tape", "training.tape", "stage0.tape", "all.tape"]
    }


def test_a_folder_of_any_size_is_converted_in_bounded_memory(tmp_path: Path) -> None:
    """10 GB in `make nightly`: one answer under many names, so that only the tape takes room."""
    total_bytes = 10_000_000_000 if "MOETAPE_TEST_FULL" in os.environ else 300_000_000
    spec = mt.RouteSpec(range(48), top_k=8, num_experts=128)
    answer = json.dumps(sglang_answer(sample(4000, spec=spec)))
    (tmp_path / "answers").mkdir()
    first = tmp_path / "answers/0.json"
    first.write_text(answer)
    for number in range(1, total_bytes // len(answer)):
        os.link(first, tmp_path / f"answers/{number}.json")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (150_000_000, 150_000_000))

    flags = ["--spec", write_spec(tmp_path, spec), "--codec", "bitpack"]
    written = succeed_json(
        *["convert", tmp_path / "answers", *flags, "-o", tmp_path / "run.tape"], preexec_fn=limit
    )
    assert written["num_rows"] == 4000 * (total_bytes // len(answer))
    succeed("verify", tmp_path / "run.tape")
    (tmp_path / "run.tape").unlink()
