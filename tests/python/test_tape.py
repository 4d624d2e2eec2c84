"""Tapes as Python sees them: written, opened, read lazily, verified, merged and cut."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store, record


def routes_of(num_rows: int, *, start: int = 0, seed: int = 0, version: int | None = None) -> mt.Routes:
    return mt.Routes.from_ids(SPEC, distinct_ids(num_rows, seed=seed), start=start, version=version)


RUN = [routes_of(5, version=3), routes_of(0), routes_of(7, start=4, seed=1)]


def test_what_is_saved_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    mt.save(path, iter(RUN), sequence_ids=["a", "b", "ü"], metas=["", '{"reward": 1}', ""])
    tape = mt.open(path)
    assert list(tape) == RUN
    assert (len(tape), tape.num_rows, tape.spec, tape.codec) == (3, 12, SPEC, "none")
    assert tape[-1] == RUN[2]
    entry = tape.entry(0)
    assert (entry.id, entry.start, entry.end, entry.versions) == ("a", 0, 5, [(0, 5, 3)])
    assert tape.entry(1).meta == '{"reward": 1}'
    assert tape.find("ü") == [2]
    assert tape.find("no such") == []
    assert tape.verify() == []
    assert os.fspath(path) == tape.files[0].path
    assert tape.files[0].num_bytes == path.stat().st_size


@pytest.mark.parametrize("codec", ["none", "bitpack"])
def test_a_stage_reads_its_layers_of_some_positions(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "run.tape"
    mt.save(path, RUN, codec=codec, layer_groups=[[1, 2], [4]])
    tape = mt.open(path)
    assert (tape.codec, tape.layer_groups) == (codec, [[1, 2], [4]])
    assert list(tape) == RUN
    part = tape.read(2, start=6, end=9, layers=[4])
    assert (part.start, part.end, list(part.spec.layers)) == (6, 9, [4])
    assert np.array_equal(part.ids, RUN[2].ids[2:5, 2:])
    assert tape.read(2, layers=[1, 2, 4]) == RUN[2]


def test_ids_are_views_of_the_file_and_outlive_the_tape(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    mt.save(path, RUN)
    ids = mt.open(path)[2].ids
    path.unlink()
    gc.collect()
    assert not ids.flags.owndata
    assert not ids.flags.writeable
    assert np.array_equal(ids, RUN[2].ids)


def test_tokens_and_missing_rows_stay_as_they_are(tmp_path: Path) -> None:
    some = mt.Routes.from_ids(
        SPEC, distinct_ids(4), valid=[1, 0, 1, 1], version=2, tokens=np.array([5, 6, 7, 8], np.int32)
    )
    mt.save(tmp_path / "t", [some, RUN[0]])
    tape = mt.open(tmp_path / "t")
    assert tape[0] == some
    assert tape[0].missing == {"not_sent": 1}
    assert (tape.entry(0).num_missing, tape.entry(0).has_tokens) == (1, True)
    assert (tape.entry(1).num_missing, tape.entry(1).has_tokens) == (0, False)
    assert tape[1].tokens is None


def test_the_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    mt.save(tmp_path / "t", RUN, sequence_ids=["a", "b", "c"])
    data = mt.tape_bytes(RUN, sequence_ids=["a", "b", "c"])
    assert data == (tmp_path / "t").read_bytes()
    for kind in (bytes, bytearray, memoryview):
        routes = mt.Tape.from_bytes(kind(data))[2]
        gc.collect()
        assert routes == RUN[2]


def test_rows_of_a_store_and_of_another_tape_are_written_in_one_pass(tmp_path: Path) -> None:
    store, recorder = new_store()
    slots = np.arange(3, 8)
    record(recorder, slots, distinct_ids(5), version=7)
    with mt.TapeWriter(tmp_path / "a", SPEC) as writer:
        writer.append(store.rows(slots, start=2), id="stored")
        writer.append(RUN[0], "given", meta="m")
        assert (writer.num_sequences, writer.num_rows) == (2, 10)
    a = mt.open(tmp_path / "a")
    with mt.TapeWriter(tmp_path / "b", SPEC, codec="bitpack") as writer:
        writer.append_from(a, 0, start=3, end=6)
        writer.append(a.rows(1))
    b = mt.open(tmp_path / "b")
    assert np.array_equal(b[0].ids, distinct_ids(5)[1:4])
    assert (b[0].start, b.entry(0).id) == (3, "stored")
    assert np.array_equal(b[1].ids, RUN[0].ids)
    assert mt.encode(a.rows(0), "sglang") == mt.encode(a[0], "sglang")


def test_shards_read_as_one_tape(tmp_path: Path) -> None:
    run = [routes_of(2000, seed=i) for i in range(8)]
    mt.save(tmp_path / "big.tape", run, max_file_bytes=40_000)
    tape = mt.open(tmp_path / "big.tape")
    assert len(tape.files) > 2
    assert list(tape) == run
    mt.save(tmp_path / "one.tape", tape)
    assert list(mt.open(tmp_path / "one.tape")) == run


def test_merge_and_slice(tmp_path: Path) -> None:
    mt.save(tmp_path / "a", RUN[:2])
    mt.save(tmp_path / "b", RUN[2:])
    mt.merge_tapes([mt.open(tmp_path / "a"), mt.open(tmp_path / "b")], tmp_path / "ab", codec="bitpack")
    merged = mt.open(tmp_path / "ab")
    assert list(merged) == RUN
    mt.slice_tape(merged, tmp_path / "part", sequences=[2, 0], start=3, end=6, layers=[2])
    part = mt.open(tmp_path / "part")
    assert [(routes.start, routes.end) for routes in part] == [(4, 6), (3, 5)]
    assert np.array_equal(part[1].ids, RUN[0].ids[3:, 1:2])


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), mt.TapeWriter(tmp_path / "t", SPEC) as writer:  # noqa: PT012
        writer.append(RUN[0])
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(mt.ClosedError, match="given up"):
        writer.append(RUN[0])


def test_a_finished_writer_takes_no_more(tmp_path: Path) -> None:
    with mt.TapeWriter(tmp_path / "t", SPEC) as writer:
        writer.finish()
    with pytest.raises(mt.ClosedError):
        writer.append(RUN[0])
    assert len(mt.open(tmp_path / "t")) == 0


def test_what_fails_leaves_the_old_tape(tmp_path: Path) -> None:
    path = tmp_path / "t"
    mt.save(path, RUN)
    other = mt.Routes.from_ids(mt.RouteSpec([0], top_k=1, num_experts=8), np.zeros((1, 1, 1), np.int64))
    with pytest.raises(mt.SpecMismatchError):
        mt.save(path, [RUN[0], other], overwrite=True)
    with pytest.raises(mt.WrongShapeError, match="sequence_ids: expected one for each of 3 routes, got more"):
        mt.save(path, RUN, sequence_ids=list("abcd"), overwrite=True)
    with pytest.raises(mt.WrongShapeError, match="metas: expected one for each of the routes, got 2"):
        mt.save(path, RUN, metas=["", ""], overwrite=True)
    assert list(mt.open(path)) == RUN
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t"
    mt.save(path, RUN)
    writes: list[Callable[[bool], object]] = [
        lambda overwrite: mt.save(path, RUN[:1], overwrite=overwrite),
        lambda overwrite: mt.TapeWriter(path, SPEC, overwrite=overwrite).finish(),
        lambda overwrite: mt.merge_tapes([mt.open(path)] * 2, path, overwrite=overwrite),
        lambda overwrite: mt.slice_tape(mt.open(path), path, overwrite=overwrite),
        lambda overwrite: mt.report(path, RUN[0], overwrite=overwrite),
    ]
    for write in writes:
        before = path.read_bytes()
        with pytest.raises(mt.ConflictError, match=r"t: expected no file there, since overwrite is not set"):
            write(False)
        assert path.read_bytes() == before
        write(True)
    assert path.read_bytes().startswith(b"<!")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    for options in ({}, {"max_file_bytes": 1}):
        path = tmp_path / "t"
        with mt.TapeWriter(path, SPEC, **options) as writer:  # type: ignore[arg-type]
            for routes in RUN:
                writer.append(routes)
            mt.save(path, RUN[:1])
            with pytest.raises(mt.ConflictError):
                writer.finish()
            path.rename(tmp_path / "other")
        assert list(mt.open(path)) == RUN
        assert list(mt.open(tmp_path / "other")) == RUN[:1]
        for file in tmp_path.iterdir():
            file.unlink()
    with pytest.raises(mt.ConflictError), mt.TapeWriter(path, SPEC, max_file_bytes=1) as writer:  # noqa: PT012
        for routes in RUN:
            writer.append(routes)
        path.write_text("another's")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_damage_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    mt.save(path, [routes_of(100, seed=i) for i in range(3)])
    ids = next(t for t in mt.open(path).files[0].tensors if t.name == "ids")
    data = bytearray(path.read_bytes())
    data[ids.offset + ids.num_bytes // 2] ^= 1
    path.write_bytes(data)
    tape = mt.open(path)
    assert tape[0] == routes_of(100, seed=0)
    with pytest.raises(mt.CorruptDataError, match=r"t: sequence 1"):
        tape[1]
    faults = tape.verify()
    assert [fault.sequence for fault in faults] == [1]
    assert "sequence 1" in faults[0].message
    assert tape.verify(0) == []
    assert [fault.message for fault in tape.verify(1)] == [faults[0].message]


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mt.IoError, match="no-such"):
        mt.open(tmp_path / "no-such")
    (tmp_path / "text").write_text("not a tape")
    with pytest.raises(mt.CorruptDataError, match="text"):
        mt.open(tmp_path / "text")
    with pytest.raises(mt.WrongTypeError, match=r"path: expected str or os\.PathLike, got int"):
        mt.open(3)  # type: ignore[arg-type]
    with pytest.raises(mt.CorruptDataError):
        mt.Tape.from_bytes(b"")


def test_wrong_use_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(mt.InvalidArgumentError, match="routes: expected at least one Routes, or spec"):
        mt.save(path, [])
    mt.save(path, [], spec=SPEC)
    tape = mt.open(path)
    for sequence in (0, -1):
        with pytest.raises(IndexError):
            tape[sequence]
        with pytest.raises(mt.OutOfRangeError):
            tape.verify(sequence)
    with pytest.raises(mt.InvalidArgumentError, match="codec"):
        mt.save(path, RUN, codec="zip", overwrite=True)
    with pytest.raises(mt.InvalidArgumentError):
        mt.save(path, RUN, layer_groups=[[1]], overwrite=True)
    with pytest.raises(mt.InvalidArgumentError, match="layers: expected at least one, or None"):
        mt.slice_tape(tape, path, layers=[], overwrite=True)
    with pytest.raises(mt.WrongTypeError, match=r"layer_groups\[0\]"):
        mt.save(path, RUN, layer_groups=["ab"])  # type: ignore[list-item]
    with pytest.raises(mt.WrongTypeError, match=r"routes\[1\]: expected Routes, got str"):
        mt.save(path, [RUN[0], "x"], overwrite=True)  # type: ignore[list-item]
    with pytest.raises(mt.WrongTypeError, match=r"tapes\[0\]: expected Tape, got Routes"):
        mt.merge_tapes(RUN, path)  # type: ignore[arg-type]
    with pytest.raises(mt.InvalidArgumentError):
        mt.merge_tapes([], path)
    assert len(mt.open(path)) == 0


def test_a_block_whose_finish_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer = mt.TapeWriter(path, SPEC)
    writer.append(RUN[0])
    path.mkdir()
    with pytest.raises(mt.ConflictError, match="expected no file there"), writer:
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    with pytest.raises(mt.ClosedError, match="given up"):
        writer.finish()


def test_a_long_sequence_is_read_in_linear_time(tmp_path: Path) -> None:
    spec = mt.RouteSpec([0], 1, 2)
    long = mt.Routes.from_ids(spec, np.arange(1 << 21, dtype=np.uint8).reshape(-1, 1, 1) % 2)
    mt.save(tmp_path / "t", [long], codec="bitpack")
    assert mt.open(tmp_path / "t")[0] == long


def test_threads_read_one_tape_at_once(tmp_path: Path) -> None:
    run = [routes_of(3000, seed=i) for i in range(16)]
    mt.save(tmp_path / "t", run, codec="bitpack")
    tape = mt.open(tmp_path / "t")
    equal = []
    workers = [
        threading.Thread(target=lambda: equal.extend(tape[i] == run[i] for i in range(len(run))))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert equal == [True] * 64
