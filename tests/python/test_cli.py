"""The command line as a whole: usage, terminals, pipes, completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from cli_helpers import PROGRAM, refused, succeed
from config_cases import QWEN3

ROOT = Path(__file__).parents[2]
COMMANDS = [
    *("info", "verify", "convert", "compare", "diagnose", "stats", "report", "merge", "slice"),
    "completion",
]


def test_help_lists_the_commands_and_each_has_an_example() -> None:
    text = succeed("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in text
        help_text = succeed(command, "--help")
        assert f"Usage: moetape {command}" in help_text
        assert f"moetape {command}" in help_text.split("Example:")[1]
        for names in re.findall(r"  --\S+ NAME +.*: (.*)", help_text):
            assert len(set(names.split(", "))) == len(names.split(", "))


def test_version_is_that_of_the_project() -> None:
    version = re.search(r"moetape VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version is not None
    assert succeed("--version") == f"moetape {version[1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command given (see moetape --help)"),
        (["compare", "x"], "file: expected 2 or more, got 1 (see moetape compare --help)"),
        (["compare", "x", "y", "z"], "file: expected 2 at most, got 3 (see moetape compare --help)"),
        (["slice", "x", "-o"], "--output: expected a value, got none (see moetape slice --help)"),
        (
            ["convert", "x", "--start", "1", "--start", "2"],
            "--start: expected 1 at most, got 2 (see moetape convert --help)",
        ),
        (["stats", "x", "--load"], "--load: is for --json"),
        (["info", "-", "-"], "-: expected standard input once, got it twice"),
        (["convert", "-", "--spec", "-", "-o", "x.tape"], "-: expected standard input once, got it twice"),
        (["nope"], "nope: no such command (see moetape --help)"),
        (["--nope"], "--nope: no such option (see moetape --help)"),
        (["completion", "bash", "zsh"], "zsh: one argument too many (see moetape completion --help)"),
        (["info"], "file is required (see moetape info --help)"),
        (
            ["info", "x", "--nope"],
            "--nope: no such option (see moetape info --help)",
        ),
        (["completion", "tcsh"], "shell: tcsh not in {bash,zsh,fish} (see moetape completion --help)"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(arguments: list[str], message: str) -> None:
    assert refused(*arguments) == message


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused("info", tmp_path / "gone") == f"{tmp_path}/gone: No such file or directory"
    assert refused("info", tmp_path) == f"{tmp_path}/config.json: No such file or directory"
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in [("loop", "Too many levels of symbolic links"), ("n" * 300, "File name too long")]:
        for command in (["info"], ["verify"], ["stats"], ["merge", "-o", "x"], ["convert", "-o", "x.tape"]):
            line = refused(command[0], tmp_path / name, *command[1:], cwd=tmp_path)
            assert line == f"{tmp_path}/{name}: {reason}"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--start", "0x10", "a whole number of 0 or more"),
        ("--start", "1e3", "a whole number of 0 or more"),
        ("--start", "-1", "a whole number of 0 or more"),
        ("--start", "", "a whole number of 0 or more"),
        ("--start", " 1", "a whole number of 0 or more"),
        ("--rows", "9223372036854775808", "a whole number of 0 or more"),
        ("--rows", "--json", "a whole number of 0 or more"),
        ("--policy-version", "16777215", "a whole number from 0 to 16777214"),
        ("--max-file-bytes", "0", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "-5", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "1.5G", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "8x", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "8i", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "G", "a number of bytes such as 8000, 8k or 4Gi"),
        ("--max-file-bytes", "9999999999G", "a number of bytes such as 8000, 8k or 4Gi"),
    ],
)
def test_numbers_are_decimal_and_whole(option: str, value: str, expected: str) -> None:
    line = refused("convert", "x", "-o", "y.tape", option, value)
    assert line == f"{option}: expected {expected}, got '{value}' (see moetape convert --help)"


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "1.01", "-0.1", "0x1p-3", "", "1%", "half"])
def test_a_bound_is_a_share(value: str) -> None:
    for option in ("--max-rerouted-rows", "--min-overlap"):
        line = refused("compare", "a", "b", f"{option}={value}" if value else option, *([""] * (not value)))
        assert line == f"{option}: expected a number from 0 to 1, got '{value}' (see moetape compare --help)"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("convert", "--output"),
        ("convert", "--spec"),
        ("verify", "--spec"),
        ("slice", "--layers"),
        ("slice", "--sequences"),
        ("slice", "--positions"),
        ("report", "--token-text"),
    ],
)
def test_a_value_that_is_empty_is_not_one_that_is_absent(command: str, option: str) -> None:
    flags = [] if command == "verify" or option == "--output" else ["-o", "y"]
    line = refused(command, "x", *flags, option, "")
    assert line == f"{option}: expected a value, got an empty one (see moetape {command} --help)"
    assert refused("info", "") == "file: expected a name, got an empty one"


def test_a_flag_takes_no_value() -> None:
    assert refused("info", "x", "--json=no").startswith("--json: expected no value (see ")


UNSAFE = {
    "\x1b[31m": r"\x1b[31m",
    "\n": r"\x0a",
    "\x7f": r"\x7f",
    "\x9b31m": r"\u009b31m",
    "\u202eoot": r"\u202eoot",
    "\u2066": r"\u2066",
    "\u200f": r"\u200f",
    "\u2028": r"\u2028",
}


@pytest.mark.parametrize("text", UNSAFE)
def test_what_a_terminal_obeys_never_reaches_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, "model_type": f"a{text}é漢😀"}))
    assert f"a{UNSAFE[text]}é漢😀" in succeed("info", path)
    printed = succeed("info", path, "--json")
    assert json.loads(printed)[0]["spec"]["model"] == f"a{text}é漢😀"
    assert "é漢😀" in printed
    assert text not in printed or text == "\n"
    assert UNSAFE[text] in refused("info", tmp_path / text)


def test_bytes_that_are_no_text_never_reach_a_terminal() -> None:
    for name in (b"\x9b31m", b"\xff", b"\xc0\x9b", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80"):
        run = subprocess.run([PROGRAM, "info", name], capture_output=True, check=False, timeout=60)
        shown = name.replace(b"31m", b"").hex()
        expected = "".join(rf"\x{shown[at : at + 2]}" for at in range(0, len(shown), 2))
        assert run.stderr.decode().startswith(f"moetape: {expected}")


def test_a_closed_pipe_is_no_crash() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [PROGRAM, "completion", "zsh"], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert run.returncode == 2
    assert run.stderr == b"moetape: standard output: No space left on device\n"


def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    script = succeed("completion", "bash")
    (tmp_path / "moetape.bash").write_text(script)

    def completed(*words: str) -> list[str]:
        program = (
            f"source {tmp_path}/moetape.bash\n"
            f"COMP_WORDS=({' '.join(map(repr, words))})\nCOMP_CWORD={len(words) - 1}\n"
            '_moetape\nprintf "%s\\n" "${COMPREPLY[@]}"'
        )
        run = subprocess.run(
            ["bash", "-u", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return run.stdout.splitlines()

    assert set(completed("moetape", "")) == {*COMMANDS, "--help", "--version"}
    assert completed("moetape", "inf") == ["info"]
    assert completed("moetape", "info", "--j") == ["--json"]
    (tmp_path / "two words.tape").touch()
    assert completed("moetape", "info", "two") == ["two words.tape"]
    assert completed("moetape", "completion", "z") == ["zsh"]
    assert completed("moetape", "convert", "--to", "vllm") == ["vllm", "vllm-split"]
    assert completed("moetape", "convert", "x", "--start", "") == [""]  # nothing
    assert completed("moetape", "convert", "x", "-o", "two") == ["two words.tape"]


def test_zsh_and_fish_are_told_of_every_command() -> None:
    for shell in ("zsh", "fish"):
        script = succeed("completion", shell)
        for command in COMMANDS:
            assert command in script
    assert script.count("complete -c moetape") > len(COMMANDS)
