"""Where results go: names that are taken, links, pipes, devices, full disks, and runs that end early."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

import moetape as mt
from cli_helpers import (
    PROGRAM,
    moetape,
    read_tape,
    refused,
    sample,
    succeed,
    write_spec,
    write_tape,
)

# Commands that write, each with what it is given and the flags that make it write this.
WRITERS = [
    ("merge", ()),
    ("slice", ()),
    ("report", ()),
    ("convert", ("--to", "tape")),
    ("convert", ("--to", "sglang", "--sequences", "0")),
]


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write_tape(tmp_path / "in/run.tape", {"x": sample(4), "y": sample(5, seed=1)})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that holds what a run writes, and nothing else."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(("command", "flags"), WRITERS)
def test_a_name_that_is_taken_while_a_command_reads_is_not_replaced(
    command: str, flags: tuple[str, ...], tape: Path, out: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "slow")
    for force in ([], ["--force"]):
        target = out / f"result{len(force)}"
        with start(command, tmp_path / "slow", *flags, "-o", target, *force) as run:
            with open(tmp_path / "slow", "wb") as slow:  # opens when the program is about to read
                target.write_text("somebody else's")
                slow.write(tape.read_bytes())
            printed, complaint = run.communicate(timeout=60)
        if force:
            assert (run.returncode, complaint) == (0, "")
            assert target.read_bytes() != b"somebody else's"
        else:
            assert (run.returncode, printed) == (2, "")
            assert complaint == f"moetape: {target}: stands there already; --force replaces it\n"
            assert target.read_text() == "somebody else's"
    assert sorted(path.name for path in out.iterdir()) == ["result0", "result1"]


def test_of_two_writers_of_one_name_one_is_told(tape: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "first").write_text(mt.encode(sample(1), "sglang"))
    given = [tmp_path / "first", "--spec", write_spec(tmp_path), "-o", out / "run.tape"]
    runs = []
    for name in ("a", "b"):
        os.mkfifo(tmp_path / name)
        runs.append(start("convert", *given, tmp_path / name))
    results = []
    with contextlib.ExitStack() as stack:
        # When they are open, both runs are under way.
        pipes = [stack.enter_context(open(tmp_path / name, "wb")) for name in ("a", "b")]
        for seed, (pipe, run) in enumerate(zip(pipes, runs, strict=True)):
            pipe.write(mt.encode(sample(3, seed=seed), "sglang").encode())
            pipe.close()
            _, complaint = run.communicate(timeout=60)
            results.append((run.returncode, "stands there already" in complaint))
    assert results == [(0, False), (2, True)]
    assert read_tape(out / "run.tape") == {"first": sample(1), "a": sample(3, seed=0)}
    assert [path.name for path in out.iterdir()] == ["run.tape"]


@pytest.mark.parametrize(("command", "flags"), WRITERS)
def test_all_writers_follow_links(command: str, flags: tuple[str, ...], tape: Path, out: Path) -> None:
    link = out / "link"
    link.symlink_to("target")
    succeed(command, tape, *flags, "-o", link)
    assert link.is_symlink()
    written = (out / "target").read_bytes()
    assert "stands there already" in refused(command, tape, *flags, "-o", link)
    (out / "target").write_text("old")
    succeed(command, tape, *flags, "-o", link, "-f")
    assert (link.is_symlink(), (out / "target").read_bytes()) == (True, written)
    (out / "nowhere").symlink_to("gone/target")
    assert "No such file or directory" in refused(command, tape, *flags, "-o", out / "nowhere")
    (out / "loop").symlink_to("loop")
    line = refused(command, tape, *flags, "-o", out / "loop")
    assert line == f"{out}/loop: Too many levels of symbolic links"
    assert sorted(path.name for path in out.iterdir()) == ["link", "loop", "nowhere", "target"]


def test_a_folder_is_written_through_a_link(tape: Path, out: Path) -> None:
    for number, target in enumerate(("new", "empty")):
        (out / f"link{number}").symlink_to(target)
        if target == "empty":
            (out / "empty").mkdir()
        succeed("convert", tape, "--to", "npy", "-o", f"{out}/link{number}/")
        assert sorted(path.name for path in (out / target).iterdir()) == ["x.npy", "y.npy"]


@pytest.mark.parametrize(("command", "flags"), WRITERS)
def test_all_writers_take_pipes_and_devices(
    command: str, flags: tuple[str, ...], tape: Path, out: Path
) -> None:
    succeed(command, tape, *flags, "-o", out / "file")
    expected = (out / "file").read_bytes()
    for target in ("-", "/dev/stdout"):
        run = subprocess.run(
            [PROGRAM, command, tape, *flags, "-o", target], capture_output=True, check=False, timeout=60
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, expected, b"")
    assert succeed(command, tape, *flags, "-o", "/dev/null").startswith("/dev/null: ")
    assert refused(command, tape, *flags, "-o", "/dev/full") == "/dev/full: No space left on device"
    os.mkfifo(out / "pipe")
    with subprocess.Popen(["cat", out / "pipe"], stdout=subprocess.PIPE) as reader:
        succeed(command, tape, *flags, "-o", out / "pipe")
        assert reader.communicate(timeout=60)[0] == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "--json"],
        ["verify"],
        ["stats"],
        ["slice", "-o", "-"],
        ["report", "-o", "-"],
        ["slice", "-o", "x.tape"],
    ],
)
def test_what_cannot_be_printed_is_an_error(arguments: list[str], tape: Path, out: Path) -> None:
    command, *flags = arguments
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [PROGRAM, command, tape, *flags], stdout=full, stderr=subprocess.PIPE, check=False, cwd=out
        )
    assert (run.returncode, run.stderr) == (2, b"moetape: standard output: No space left on device\n")


def test_a_stream_that_is_closed_is_no_file_that_is_written(tape: Path, out: Path) -> None:
    for closed in (">&-", "2>&-", "<&-"):
        target = out / f"{len(list(out.iterdir()))}.tape"
        script = f"exec {PROGRAM} slice {tape} -o {target} {closed}"
        run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert read_tape(target) == read_tape(tape)
        if closed == ">&-":
            assert (run.returncode, run.stderr) == (2, "moetape: standard output: Bad file descriptor\n")
        else:
            assert (run.returncode, run.stderr) == (0, "")


def interrupted(
    number: int, spec: Path, target: Path, slow: Path, handler: signal.Handlers = signal.SIG_DFL
) -> tuple[int, str, str]:
    """Ends a run that waits for its input; the signal is handled so, whatever it was for these tests."""

    def prepare() -> None:
        signal.signal(number, handler)

    first = slow.with_name("first")
    first.write_text(mt.encode(sample(1), "sglang"))
    with start("convert", first, slow, "--spec", spec, "-o", target, preexec_fn=prepare) as run:
        with open(slow, "wb") as pipe:  # opens when the program is at this file
            assert [path for path in target.parent.iterdir() if path.name.startswith(".")]
            run.send_signal(number)
            if handler == signal.SIG_IGN:
                pipe.write(mt.encode(sample(2), "sglang").encode())
        printed, complaint = run.communicate(timeout=60)
    return run.returncode, printed, complaint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupt_leaves_nothing(number: int, out: Path, tmp_path: Path) -> None:
    # SIGQUIT asks for a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.mkfifo(tmp_path / "slow")
    ended = interrupted(number, write_spec(tmp_path), out / "run.tape", tmp_path / "slow")
    assert ended == (-number, "", "")
    assert list(out.iterdir()) == []


def test_a_signal_that_is_ignored_stays_so(out: Path, tmp_path: Path) -> None:
    """As nohup has it."""
    os.mkfifo(tmp_path / "slow")
    ended = interrupted(
        signal.SIGHUP, write_spec(tmp_path), out / "run.tape", tmp_path / "slow", signal.SIG_IGN
    )
    assert ended == (0, f"{out}/run.tape: 2 sequences, 3 rows\n", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone/", "gone/: expected the name of a file, got that of a folder"),
        (".", ".: expected the name of a file, got a folder"),
        ("gone/x", "gone: No such file or directory"),
        ("file/x", "file/x: Not a directory"),
        ("n" * 300, f"{'n' * 300}: File name too long"),
    ],
)
def test_names_that_cannot_be_those_of_a_file_are_refused(
    name: str, message: str, tape: Path, out: Path
) -> None:
    (out / "file").touch()
    for command, flags in WRITERS:
        if command != "convert" or not name.endswith(("/", ".")):  # which may write a folder
            assert refused(command, tape, *flags, "-o", name, cwd=out) == message
    assert [path.name for path in out.iterdir()] == ["file"]


def test_the_longest_name_of_a_file_is_good_enough(tape: Path, out: Path) -> None:
    for number, (command, flags) in enumerate(WRITERS):
        name = f"{number}{'n' * 254}"
        succeed(command, tape, *flags, "-o", out / name)
        assert (out / name).exists()
    succeed("convert", tape, "--to", "npy", "-o", f"{out}/{'f' * 255}/")


def test_a_file_holds_at_least_its_header(tape: Path, out: Path) -> None:
    line = refused("slice", tape, "-o", out / "x.tape", "--max-file-bytes", "100")
    assert line.startswith("--max-file-bytes: expected ")
    least = int(line.split()[2])
    assert "what a tape of this spec has without a row" in line
    assert list(out.iterdir()) == []
    succeed("slice", tape, "-o", out / "x.tape", "--max-file-bytes", least)
    assert read_tape(out / "x.tape") == read_tape(tape)  # a file for each sequence


def test_a_temporary_folder_that_is_none_is_named(tape: Path) -> None:
    environment = {**os.environ, "TMPDIR": "/gone"}
    run = moetape("slice", tape, "-o", "-", env=environment)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("moetape: TMPDIR: ")


def test_a_full_disk_leaves_nothing_under_the_name(tape: Path, out: Path) -> None:
    target = out / "out.tape"
    target.write_text("what stood there")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    for command in ("merge", "slice", "report"):
        assert "File too large" in refused(command, tape, "-o", target, "-f", preexec_fn=limit)
    assert [path.name for path in out.iterdir()] == ["out.tape"]
    assert target.read_text() == "what stood there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_without_rights_is_refused(tape: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # the folders of pytest's workers are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        public = Path(shutil.copy(tape, folder / "run.tape"))
        public.chmod(0o644)
        program = shutil.copy(PROGRAM, folder / "moetape")
        run = subprocess.run(
            [program, "merge", public, "-o", folder / "out.tape"],
            **dict(capture_output=True, text=True, check=False, user="nobody", timeout=60),
        )
        assert (run.returncode, run.stdout) == (2, "")
        assert "Permission denied" in run.stderr
        assert not (folder / "out.tape").exists()
