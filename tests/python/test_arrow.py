"""Routes as Arrow tables and Parquet files: what comes back is what went in, and other tools can read it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moetape as mt
from core_helpers import SPEC, distinct_ids, new_store, record

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from moetape._files import whole_file  # noqa: E402
from moetape.arrow import from_arrow, read_parquet, sequence_ids, to_arrow, write_parquet  # noqa: E402

WIDE = mt.RouteSpec(
    [0, 7], 3, 300, stack="draft", shared_columns=1, num_layers=9, excluded={3: "hash"}, model="é"
)


def make(num_rows: int, spec: mt.RouteSpec = SPEC, seed: int = 0, **more: Any) -> mt.Routes:
    return mt.Routes.from_ids(spec, distinct_ids(num_rows, spec, seed), **more)


def from_a_store() -> mt.Routes:
    """Rows of two versions, and rows that are missing for three reasons."""
    store, recorder = new_store()
    record(recorder, [0, 1, 2], distinct_ids(3), version=3)
    record(recorder, [4, 5, 6], distinct_ids(3, seed=1), version=4)
    store.invalidate([1])
    bad = distinct_ids(1, seed=2)
    bad[0, 1] = 7
    record(recorder, [7], bad, version=4)
    return store.read(range(8), start=100, tokens=range(50, 58))


EMPTY = make(0, start=9)
ALL = [
    from_a_store(),
    make(4),
    make(5, start=3, tokens=range(5)),
    make(1, version=0),
    make(3, valid=[0, 0, 0]),
]


def reasons_of(routes: mt.Routes) -> list[int]:
    return [int(reason) for reason in routes.reasons]


def assert_same(found: list[mt.Routes], expected: list[mt.Routes]) -> None:
    assert found == expected
    for one, other in zip(found, expected, strict=True):
        assert (one.start, one.end, one.versions, one.spec) == (
            other.start,
            other.end,
            other.versions,
            other.spec,
        )
        assert reasons_of(one) == reasons_of(other)


@pytest.mark.parametrize(
    "routes",
    [ALL, [EMPTY], [EMPTY, *ALL, make(0, tokens=[])], [make(20, WIDE, version=5)]],
    ids=["all", "empty", "empty_among_others", "two_bytes"],
)
def test_the_same_routes_come_back(routes: list[mt.Routes], tmp_path: Path) -> None:
    # case J04
    names = [f"request {number}" for number in range(len(routes))]
    table = to_arrow(routes, names)
    table.validate(full=True)
    assert_same(from_arrow(table), routes)
    assert sequence_ids(table) == names
    assert sequence_ids(to_arrow(routes)) is None
    write_parquet(tmp_path / "routes.parquet", routes, names)
    assert_same(read_parquet(tmp_path / "routes.parquet"), routes)
    assert sequence_ids(parquet.read_table(tmp_path / "routes.parquet")) == names
    assert [file.name for file in tmp_path.iterdir()] == ["routes.parquet"]


def test_files_of_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moetape.arrow.files._ROW_GROUP_BYTES", 3 * SPEC.row_bytes)
    write_parquet(tmp_path / "routes.parquet", ALL)
    file = parquet.ParquetFile(tmp_path / "routes.parquet")
    assert file.num_row_groups == 7
    assert str(file.schema_arrow.field("ids").type) == "list<element: list<element: uint8>>"
    assert_same(read_parquet(tmp_path / "routes.parquet"), ALL)


def test_a_table_has_one_row_a_token() -> None:
    first = from_a_store()
    assert first.missing == {"invalidated": 1, "unwritten": 1, "refused": 1}
    table = to_arrow([first, make(2)], ["a", "b"])
    ids = "fixed_size_list<element: fixed_size_list<element: uint8>[2]>[3]"
    assert {field.name: str(field.type) for field in table.schema} == {
        "sequence": "int32",
        "sequence_id": "dictionary<values=string, indices=int32, ordered=0>",
        "position": "int64",
        "token": "int32",
        "version": "int32",
        "missing": "dictionary<values=string, indices=int8, ordered=0>",
        "ids": ids,
    }
    rows = table.to_pylist()
    assert [row["sequence_id"] for row in rows] == ["a"] * 8 + ["b"] * 2
    assert [row["position"] for row in rows] == [*range(100, 108), 0, 1]
    assert [row["token"] for row in rows] == [*range(50, 58), None, None]
    assert [row["version"] for row in rows] == [3, None, 3, None, 4, 4, 4, None, None, None]
    reasons = [None, "invalidated", None, "unwritten", None, None, None, "refused", None, None]
    assert [row["missing"] for row in rows] == reasons
    assert [row["ids"] for row in rows[:2]] == [first.ids[0].tolist(), None]


def test_one_routes_alone_is_a_table() -> None:
    assert from_arrow(to_arrow(make(3))) == [make(3)]


def test_a_tape_is_a_table(tmp_path: Path) -> None:
    routes = [make(4, version=3, tokens=range(4)), make(2, start=7)]
    mt.save(tmp_path / "named.tape", routes, sequence_ids=["a", "b"])
    tape = mt.open(tmp_path / "named.tape")
    table = to_arrow(tape)
    assert (from_arrow(table), sequence_ids(table)) == (routes, ["a", "b"])
    assert sequence_ids(to_arrow(tape, ["c", "d"])) == ["c", "d"]
    write_parquet(tmp_path / "routes.parquet", tape)
    mt.save(tmp_path / "again.tape", read_parquet(tmp_path / "routes.parquet"))
    assert list(mt.open(tmp_path / "again.tape")) == routes
    assert sequence_ids(to_arrow(mt.open(tmp_path / "again.tape"))) is None


def test_ids_and_tokens_are_not_copied() -> None:
    routes = from_a_store()
    table = to_arrow([routes])
    leaf = table.column("ids").chunk(0).values.values
    assert leaf.buffers()[1].address == routes.ids.ctypes.data
    assert routes.tokens is not None
    assert table.column("token").chunk(0).buffers()[1].address == routes.tokens.ctypes.data


def test_a_slice_that_outlives_its_routes_keeps_its_bytes() -> None:
    table = to_arrow([make(200, seed=4).slice(50, 120)])
    assert from_arrow(table) == [make(200, seed=4).slice(50, 120)]


def test_parts_of_a_table_are_parts_of_the_sequences() -> None:
    table = to_arrow([EMPTY, *ALL])
    numbers = np.asarray(table.column("sequence"))
    assert_same(from_arrow(table.filter(pa.array(numbers == 3))), [ALL[2]])
    assert_same(from_arrow(table.slice(2, 4)), [ALL[0].slice(102, 106)])
    assert_same(from_arrow(table.filter(pa.array(numbers > 1)).combine_chunks()), ALL[1:])
    assert from_arrow(table.slice(0, 0)) == []
    whole = pa.concat_tables([table.slice(3), table.slice(0, 3)])
    with pytest.raises(mt.CorruptDataError, match="rows of 1 together"):
        from_arrow(whole)


def test_a_table_that_says_it_has_many_sequences_costs_nothing() -> None:
    assert from_arrow(with_header(num_sequences=2**60)) == [make(2)]


def test_tables_of_other_tools_are_taken() -> None:
    """What polars, DuckDB or a user's own code makes of it: wider types, plain lists, no metadata."""
    table = to_arrow(ALL)
    plain = pa.table(
        {
            "ids": pa.array(table.column("ids").to_pylist(), pa.large_list(pa.list_(pa.int64()))),
            "missing": table.column("missing").cast(pa.large_string()),
            "version": table.column("version").cast(pa.float64()),
            "token": table.column("token").cast(pa.int64()),
            "position": table.column("position").cast(pa.uint64()),
            "sequence": table.column("sequence").cast(pa.int16()),
        }
    )
    with pytest.raises(mt.InvalidArgumentError, match="spec: expected one"):
        from_arrow(plain)
    assert_same(from_arrow(plain, SPEC), ALL)
    assert_same(from_arrow(plain.slice(3), SPEC)[1:], ALL[1:])
    floats = plain.column("ids").cast(pa.list_(pa.list_(pa.float64())))
    assert_same(from_arrow(plain.set_column(0, "ids", floats), SPEC), ALL)
    bare = from_arrow(plain.select(["sequence", "position", "ids"]), SPEC)
    assert bare[0].missing == {"not_sent": 3}
    assert (bare[0].versions, bare[0].tokens) == ([], None)
    assert np.array_equal(bare[0].ids, ALL[0].ids)


def with_column(name: str, values: Any, kind: Any = None) -> Any:
    table = to_arrow([make(4, tokens=range(4), version=2)])
    column = pa.array(values, kind) if not isinstance(values, pa.Array) else values
    return table.set_column(table.schema.get_field_index(name), name, column)


def with_header(**fields: Any) -> Any:
    table = to_arrow([make(2)])
    header = json.loads(table.schema.metadata[b"moetape"])
    return table.replace_schema_metadata({"moetape": json.dumps(header | fields)})


FOUR = distinct_ids(4).tolist()


@pytest.mark.parametrize(
    ("table", "error", "names"),
    [
        (lambda: None, mt.WrongTypeError, "table: expected a pyarrow.Table, got NoneType"),
        (
            lambda: to_arrow([make(2)]).drop_columns(["ids"]),
            mt.CorruptDataError,
            "ids: expected such a column",
        ),
        (lambda: to_arrow([make(2)]).drop_columns(["position"]), mt.CorruptDataError, "position"),
        (lambda: with_column("sequence", [0, 1, 1, 0]), mt.CorruptDataError, "rows of 0 together.*row 3"),
        (lambda: with_column("sequence", [0, 0, None, 0]), mt.CorruptDataError, "sequence.*1 nulls"),
        (
            lambda: with_column("position", [0, 1, 3, 4]),
            mt.CorruptDataError,
            "0: position: expected 2.*got 3",
        ),
        (lambda: with_column("position", [0.5] * 4), mt.WrongTypeError, "position: expected int64"),
        (lambda: with_column("position", [-1, 0, 1, 2]), mt.Error, "start"),
        (lambda: with_column("token", [1, None, 2, 3]), mt.CorruptDataError, "token: .*1 nulls"),
        (lambda: with_column("token", [2**40] * 4), mt.Error, "tokens"),
        (lambda: with_column("version", [2**24] * 4), mt.CorruptDataError, "version"),
        (lambda: with_column("version", ["x"] * 4), mt.WrongTypeError, "version"),
        (lambda: with_column("missing", [None, "lunch", None, None]), mt.CorruptDataError, "'lunch'"),
        (lambda: with_column("missing", [None, "gap", None, None]), mt.CorruptDataError, "'gap' and ids.* 1"),
        (
            lambda: with_column("ids", [*FOUR[:3], None]),
            mt.CorruptDataError,
            "'valid' and null at position 3",
        ),
        (lambda: with_column("ids", [*FOUR[:3], [[0, 8]] * 3]), mt.OutOfRangeError, "8"),
        (lambda: with_column("ids", [*FOUR[:3], [[1, 1]] * 3]), mt.InvalidArgumentError, "1"),
        (
            lambda: with_column("ids", [row[:2] for row in FOUR]),
            mt.WrongShapeError,
            r"ids: expected \[3\]\[2\]",
        ),
        (lambda: with_column("ids", [[[1, 2, 3]] * 3] * 4), mt.WrongShapeError, r"\[3\]\[2\]"),
        (lambda: with_column("ids", [[[0.5, 1]] * 3] * 4), mt.WrongTypeError, "double"),
        (lambda: with_column("ids", [1, 2, 3, 4]), mt.WrongTypeError, "lists of lists"),
        (
            lambda: with_column("ids", [*FOUR[:3], [[0, None]] * 3]),
            mt.CorruptDataError,
            "null within row 3",
        ),
        (
            lambda: with_column("ids", [*FOUR[:3], [[0, 1], None, [0, 1]]]),
            mt.CorruptDataError,
            "null within row 3",
        ),
        (lambda: with_header(format="x"), mt.UnsupportedError, "'x'"),
        (lambda: with_header(format_version=2), mt.UnsupportedError, "version 1, got 'routes' of 2"),
        (lambda: with_header(spec={}), mt.CorruptDataError, "fields of a spec"),
        (lambda: with_header(fingerprint="0"), mt.CorruptDataError, "fingerprint"),
        (lambda: with_header(empty=[1]), mt.CorruptDataError, "its sequences"),
        (lambda: with_header(num_sequences="3"), mt.CorruptDataError, "'3'"),
        (lambda: with_header(num_sequences=-1), mt.CorruptDataError, "-1"),
        (
            lambda: to_arrow([make(2)]).replace_schema_metadata({"moetape": "{"}),
            mt.CorruptDataError,
            "expected JSON",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    table: Callable[[], Any], error: type[mt.Error], names: str
) -> None:
    with pytest.raises(error, match=names):
        from_arrow(table())


def test_a_table_of_another_spec_is_refused() -> None:
    with pytest.raises(mt.SpecMismatchError, match="expected routes of"):
        from_arrow(to_arrow([make(2)]), WIDE)
    renamed = mt.RouteSpec(SPEC.layers, SPEC.top_k, SPEC.num_experts, model="mine")
    assert from_arrow(to_arrow([make(2)]), renamed)[0].spec == renamed


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: to_arrow([]), mt.InvalidArgumentError, "got none"),
        (lambda: to_arrow(3), mt.WrongTypeError, "got int"),
        (lambda: to_arrow([make(1), None]), mt.WrongTypeError, r"routes\[1\]"),
        (lambda: to_arrow([make(1), make(1, WIDE)]), mt.SpecMismatchError, r"routes\[1\]"),
        (lambda: to_arrow([make(1)], ["a", "b"]), mt.WrongShapeError, "expected 1, one per sequence, got 2"),
        (lambda: to_arrow([make(1)], [3]), mt.WrongTypeError, r"sequence_ids\[0\]"),
    ],
)
def test_what_is_no_routes_is_refused(call: Callable[[], Any], error: type[mt.Error], names: str) -> None:
    with pytest.raises(error, match=names):
        call()


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "routes.parquet"
    write_parquet(path, [make(3)])
    with pytest.raises(mt.InvalidArgumentError):
        write_parquet(path, [], overwrite=True)
    with pytest.raises(mt.ConflictError, match="expected no file there"):
        write_parquet(path, [make(4)])
    assert read_parquet(path) == [make(3)]
    write_parquet(str(path), [make(4)], overwrite=True)
    assert read_parquet(str(path)) == [make(4)]
    with pytest.raises(mt.IoError, match=r"absent/x\.parquet: cannot be made: No such file"):
        write_parquet(tmp_path / "absent" / "x.parquet", [make(1)])
    with pytest.raises(mt.IoError, match=r"absent\.parquet: cannot be read: No such file"):
        read_parquet(tmp_path / "absent.parquet")
    with pytest.raises(mt.IoError, match="Is a directory"):
        read_parquet(tmp_path)
    whole = path.read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(mt.CorruptDataError, match=r"routes\.parquet: expected a Parquet file"):
            read_parquet(path)
    assert [file.name for file in tmp_path.iterdir()] == ["routes.parquet"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "routes.parquet"
    with whole_file(path, overwrite=True) as other:
        other.write(b"of another writer")
        write_parquet(path, [make(3)])
        assert read_parquet(path) == [make(3)]
    assert path.read_bytes() == b"of another writer"
    path.unlink()
    with pytest.raises(mt.ConflictError), whole_file(path) as late:  # noqa: PT012
        late.write(b"of another writer")
        write_parquet(path, [make(3)])
    assert read_parquet(path) == [make(3)]
    assert [file.name for file in tmp_path.iterdir()] == ["routes.parquet"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "routes.parquet"
    write_parquet(path, [make(3)])
    code = f"""
import resource, signal
from moetape import IoError, RouteSpec, synthetic
from moetape.arrow import write_parquet
routes = synthetic.uniform(RouteSpec(range(8), 4, 64), [20_000])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_parquet({str(path)!r}, routes, overwrite=True)
except IoError as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused:"), done
    assert [file.name for file in tmp_path.iterdir()] == ["routes.parquet"]
    assert read_parquet(path) == [make(3)]


def test_pyarrow_is_loaded_when_used_and_named_when_absent() -> None:
    code = """
import sys
import moetape
moetape.arrow.to_arrow
assert "pyarrow" not in sys.modules
sys.modules["pyarrow"] = None
try:
    moetape.arrow.to_arrow(moetape.synthetic.uniform(moetape.RouteSpec([0], 1, 8), [1]))
except moetape.UnsupportedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'moetape[arrow]'" in done.stdout
