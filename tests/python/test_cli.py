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
COMMANDS = ["info", "verify", "convert", "compare", "stats", "report", "merge", "slice", "completion"]


def test_help_lists_the_commands_and_each_has_an_example() -> None:
    text = succeed("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in text
        help_text = succeed(command, "--help")
        assert f"Usage: moetape {command}" in help_text
        assert f"moetape {command}" in help_text.split("Example:")[1]


def test_version_is_that_of_the_project() -> None:
    version = re.search(r"moetape VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version is not None
    assert succeed("--version") == f"moetape {version[1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command given (see moetape --help)"),
        (["nope"], "The following argument was not expected: nope (see moetape --help)"),
        (["info"], "file is required (see moetape info --help)"),
        (
            ["info", "x", "--nope"],
            "The following argument was not expected: --nope (see moetape info --help)",
        ),
        (["completion", "tcsh"], "shell: tcsh not in {bash,zsh,fish} (see moetape completion --help)"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(arguments: list[str], message: str) -> None:
    assert refused(*arguments) == message


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused("info", tmp_path / "gone") == f"{tmp_path}/gone: No such file or directory"
    assert refused("info", tmp_path) == f"{tmp_path}/config.json: No such file or directory"


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, "model_type": "\x1b[31mred\n"}))
    assert r"\x1b[31mred\x0a" in succeed("info", path)
    assert r"\x1b[31m" in refused("info", tmp_path / "\x1b[31m")


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
