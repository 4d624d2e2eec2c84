"""moetape.report: one HTML page about one or two records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from moetape._files import whole_file
from moetape._moetape import Comparison, Routes, Stats, Tape, compare, render_report, stats
from moetape.errors import InvalidArgumentError

Record = Tape | Routes | Sequence[Routes]


def report(
    path: str | os.PathLike[str],
    record: Record,
    other: Record | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
    token_text: Mapping[int, str | bytes] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes one HTML page about a record, or about two records of the same tokens (docs/report.md).

    record, other: a Tape, a Routes or a sequence of Routes; of two, the same number in the same order.
    names: of the records; default: those of the files of tapes. token_text: of the token ids that are known;
    bytes need not be UTF-8. Each record is walked once or twice, sequence by sequence. The page appears
    whole or not at all. Raises what moetape.stats and moetape.compare raise, InvalidArgumentError for a wrong
    number of names, ConflictError where a file has the name and `overwrite` is not set, IoError where the
    page cannot be written.
    """
    records = [record] if other is None else [record, other]
    if names is None:
        names = [
            _name(one, default) for one, default in zip(records, ("record", "other record"), strict=False)
        ]
    if len(names) != len(records):
        raise InvalidArgumentError(
            f"names: expected one for each of {len(records)} records, got {len(names)}"
        )
    with whole_file(path, overwrite=overwrite) as file:
        file.write(_page(records, names, title, token_text or {}))


def _page(
    records: Sequence[Record], names: Sequence[str], title: str, token_text: Mapping[int, str | bytes]
) -> bytes:
    comparison = None if len(records) == 1 else _comparison(*records)
    return render_report(
        [(name, _stats(one), *_sizes(one)) for name, one in zip(names, records, strict=True)],
        comparison,
        title,
        {token: _bytes(text) for token, text in token_text.items()},
        _sequence_names(records[0], comparison),
    )


def _name(record: Record, default: str) -> str:
    return Path(record.name).name if isinstance(record, Tape) and record.files[0].path else default


def _stats(record: Record) -> Stats:
    # Only a tape knows its spec when it holds no sequence.
    return stats(record) if not isinstance(record, Tape) or len(record) else Stats(record.spec)


def _comparison(record: Record, other: Record) -> Comparison:
    if isinstance(record, Tape) and isinstance(other, Tape) and len(record) == len(other) == 0:
        return Comparison(record.spec)
    return compare(record, other)


def _sizes(record: Record) -> tuple[int | None, list[tuple[str, int]]]:
    if not isinstance(record, Tape):
        return None, []
    parts: dict[str, int] = {}
    for file in record.files:
        for tensor in file.tensors:
            parts[tensor.name] = parts.get(tensor.name, 0) + tensor.num_bytes
    return sum(file.num_bytes for file in record.files), sorted(parts.items())


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _sequence_names(record: Record, comparison: Comparison | None) -> dict[int, str]:
    if comparison is None or not isinstance(record, Tape):
        return {}
    return {row.sequence: record.entry(row.sequence).id for row in comparison.rerouted_rows}
