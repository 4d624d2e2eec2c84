"""Parquet files of routes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from moetape._moetape import Routes, RouteSpec
from moetape.arrow.reading import from_arrow
from moetape.arrow.schema import pyarrow
from moetape.arrow.writing import to_arrow
from moetape.errors import CorruptDataError

_ROW_GROUP_BYTES = 1 << 26  # of ids: the least that a reader of some rows has to decode


def write_parquet(
    path: str | os.PathLike[str], routes: Routes | Iterable[Routes], sequence_ids: Sequence[str] | None = None
) -> None:
    """Writes the table of to_arrow as a Parquet file, compressed by zstd.

    The file appears whole or not at all, and replaces one of its name. Raises what to_arrow does, and OSError
    where the system refuses.
    """
    table = to_arrow(routes, sequence_ids)
    row_bytes = max(1, table.column("ids").nbytes // max(1, table.num_rows))
    part = Path(f"{os.fspath(path)}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            pyarrow().parquet.write_table(
                table, file, compression="zstd", row_group_size=max(1, _ROW_GROUP_BYTES // row_bytes)
            )
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_parquet(path: str | os.PathLike[str], spec: RouteSpec | None = None) -> list[Routes]:
    """The sequences of a Parquet file, as from_arrow gives them.

    Raises what from_arrow does, CorruptDataError for a file that is no Parquet, and OSError where the system
    refuses. For the names of sequences, read the file with pyarrow, and use from_arrow and sequence_ids.
    """
    pa = pyarrow()
    with Path(path).open("rb") as file:
        try:
            table = pa.parquet.ParquetFile(file).read()
        except (pa.ArrowException, OSError) as error:
            raise CorruptDataError(f"{os.fspath(path)}: expected a Parquet file, got {error}") from error
    return from_arrow(table, spec)
