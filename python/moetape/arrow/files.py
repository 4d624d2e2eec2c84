"""Parquet files of routes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moetape._files import os_errors, whole_file
from moetape._moetape import Routes, RouteSpec
from moetape.arrow.reading import from_arrow
from moetape.arrow.schema import pyarrow
from moetape.arrow.writing import to_arrow
from moetape.errors import CorruptDataError

_ROW_GROUP_BYTES = 1 << 26  # of ids: the least that a reader of some rows has to decode


def write_parquet(
    path: str | os.PathLike[str],
    routes: Routes | Iterable[Routes],
    sequence_ids: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Writes the table of to_arrow as a Parquet file, compressed by zstd.

    Its ids are plain lists: Parquet knows no others, and pyarrow before 26 cannot read fixed-size ones of
    which some are null. The file appears whole or not at all. Raises what to_arrow does, ConflictError where
    a file has the name and `overwrite` is not set, and IoError where the system refuses.
    """
    pa, table = pyarrow(), to_arrow(routes, sequence_ids)
    kind = table.schema.field("ids").type
    row_bytes = kind.list_size * kind.value_type.list_size * kind.value_type.value_type.bit_width // 8
    rows_at_once = max(1, _ROW_GROUP_BYTES // row_bytes)
    place = table.schema.get_field_index("ids")
    plain = pa.field("ids", pa.list_(pa.list_(kind.value_type.value_type)))
    with (
        whole_file(path, overwrite=overwrite) as file,
        pa.parquet.ParquetWriter(file, table.schema.set(place, plain), compression="zstd") as writer,
    ):
        for first in range(0, table.num_rows, rows_at_once):
            group = table.slice(first, rows_at_once)
            ids = pa.chunked_array([_plain_lists(chunk) for chunk in group.column("ids").chunks])
            writer.write_table(group.set_column(place, plain, ids))


def _plain_lists(ids: Any) -> Any:
    """The same rows as lists of lists, nothing standing under a null."""
    pa = pyarrow()
    ends = np.cumsum(np.asarray(ids.is_valid()), dtype=np.int32) * np.int32(ids.type.list_size)
    layers = ids.flatten().cast(pa.list_(ids.type.value_type.value_type))
    return pa.ListArray.from_arrays(np.append(np.int32(0), ends), layers, mask=ids.is_null())


def read_parquet(path: str | os.PathLike[str], spec: RouteSpec | None = None) -> list[Routes]:
    """The sequences of a Parquet file, as from_arrow gives them.

    Raises what from_arrow does, CorruptDataError for a file that is no Parquet, and IoError where the system
    refuses. For the names of sequences, read the file with pyarrow, and use from_arrow and sequence_ids.
    """
    pa = pyarrow()
    with os_errors(path, "cannot be read"), Path(path).open("rb") as file:
        try:
            table = pa.parquet.ParquetFile(file).read()
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise CorruptDataError(f"{os.fspath(path)}: expected a Parquet file, got {error}") from error
    return from_arrow(table, spec)
