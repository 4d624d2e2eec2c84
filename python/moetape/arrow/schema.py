"""The columns of a table of routes, and what its metadata says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moetape._moetape import RouteSpec
from moetape.errors import CorruptDataError, Error, InvalidArgumentError, SpecMismatchError, UnsupportedError

KEY = b"moetape"
FORMAT, FORMAT_VERSION = "routes", 1
SPEC_FIELDS = ("stack", "layers", "top_k", "num_experts", "shared_columns", "distinct", "num_layers", "model")


def pyarrow() -> Any:
    """The library, which is loaded now."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise UnsupportedError(
            f"pyarrow: expected it to be installed (pip install 'moetape[arrow]'), got {error}"
        ) from error
    return pyarrow


def ids_type(spec: RouteSpec, item: Any) -> Any:
    """[layers][top_k] of an Arrow type."""
    pa = pyarrow()
    row = pa.list_(pa.field("element", item), spec.top_k)  # the name that Parquet gives
    return pa.list_(pa.field("element", row), spec.num_moe_layers)


def schema_of(spec: RouteSpec, *, named: bool) -> Any:
    """The columns, without the metadata."""
    pa = pyarrow()
    name = [pa.field("sequence_id", pa.dictionary(pa.int32(), pa.string()), nullable=False)]
    return pa.schema(
        [
            pa.field("sequence", pa.int32(), nullable=False),
            *(name if named else []),
            pa.field("position", pa.int64(), nullable=False),
            pa.field("token", pa.int32()),
            pa.field("version", pa.int32()),
            pa.field("missing", pa.dictionary(pa.int8(), pa.string())),
            pa.field("ids", ids_type(spec, pa.uint8() if spec.id_bytes == 1 else pa.uint16())),
        ]
    )


@dataclass(frozen=True)
class Empty:
    """A sequence without rows, of which no row of the table can tell."""

    sequence: int
    start: int
    has_tokens: bool
    sequence_id: str | None


@dataclass(frozen=True)
class Header:
    """What the metadata says beside the columns."""

    spec: RouteSpec
    num_sequences: int
    empty: Sequence[Empty]

    def to_bytes(self) -> bytes:
        spec: dict[str, Any] = {name: getattr(self.spec, name) for name in SPEC_FIELDS}
        spec["excluded"] = {str(layer): reason for layer, reason in self.spec.excluded.items()}
        return json.dumps(
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "spec": spec,
                "fingerprint": f"{self.spec.fingerprint:016x}",
                "num_sequences": self.num_sequences,
                "empty": [vars(one) for one in self.empty],
            }
        ).encode()

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None, spec: RouteSpec | None) -> Header:
        """The header of a table; of one that has none, with the spec that the caller gives."""
        text = (metadata or {}).get(KEY)
        if text is not None:
            return _parsed(text, spec)
        if spec is None:
            raise InvalidArgumentError(
                'spec: expected one, since the table has no metadata "moetape" that would say it'
            )
        return cls(spec, 0, [])


def _parsed(text: bytes, spec: RouteSpec | None) -> Header:
    try:
        fields = json.loads(text)
        kind, version = fields["format"], fields["format_version"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise CorruptDataError(
            f"metadata: expected JSON with format and format_version, got {error!r}"
        ) from error
    if (kind, version) != (FORMAT, FORMAT_VERSION):
        raise UnsupportedError(
            f"metadata: expected format {FORMAT!r} of version {FORMAT_VERSION}, got {kind!r} of {version!r}"
        )
    try:
        named = {name: fields["spec"][name] for name in SPEC_FIELDS}
        excluded = {int(layer): reason for layer, reason in fields["spec"]["excluded"].items()}
        written = RouteSpec(**named, excluded=excluded)
        fingerprint = int(fields["fingerprint"], 16)
        empty = [Empty(**one) for one in fields["empty"]]
        numbers = [fields["num_sequences"], *(one.sequence for one in empty), *(one.start for one in empty)]
        if any(not isinstance(number, int) or number < 0 for number in numbers):
            raise CorruptDataError(f"expected sequences and starts of 0 or more, got {numbers}")
    except (Error, LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            f"metadata: expected the fields of a spec and its sequences, got {error!r}"
        ) from error
    if written.fingerprint != fingerprint:
        raise CorruptDataError(
            f"metadata: expected its spec's fingerprint {written.fingerprint:016x}, got {fingerprint:016x}"
        )
    if spec is not None and spec.fingerprint != fingerprint:
        raise SpecMismatchError(f"table: expected routes of {spec!r}, got {written!r}")
    return Header(spec or written, fields["num_sequences"], empty)
