"""Routes in pieces, for processes that hand them over: some rows at some layers, as the bytes of a tape.

    for piece, data in moetape.pieces.cut(routes, layer_groups=stages, rows_per_piece=4096): ...   # here
    part = moetape.pieces.read(piece, data, want, name)                                            # there
    routes = moetape.pieces.join(spec, want, parts)

`moetape.ray` and `moetape.trainers.exchange` move them. Values only; any thread.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from moetape._moetape import Plan, Routes, RouteSpec, Tape, merge_layers, merge_rows, tape_bytes
from moetape.errors import CorruptDataError, InvalidArgumentError, OutOfRangeError, UnsupportedError

__all__ = ["Piece", "Want", "cut", "join", "missing", "no_rows", "read", "select", "wants"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What the bytes of a piece hold: positions [start, end) at ascending global layers."""

    start: int
    end: int
    layers: tuple[int, ...]
    fingerprint: int  # of the spec of these layers
    checksum: str  # of the content: ids, missing rows, versions, tokens; the tape's content_xxh3
    num_bytes: int

    def __str__(self) -> str:
        return f"rows [{self.start}, {self.end}) of layers {_runs_of(self.layers)}"


@dataclass(frozen=True, slots=True)
class Want:
    """What a rank needs of one sequence: positions [start, end) at ascending global layers."""

    sequence: int
    start: int
    end: int
    layers: tuple[int, ...]

    def touches(self, piece: Piece) -> bool:
        """Tell whether a piece holds something of it."""
        return self.start < piece.end and piece.start < self.end and bool(self.layers_in(piece))

    def layers_in(self, piece: Piece) -> list[int]:
        """Those of its layers that a piece holds."""
        return sorted(set(self.layers) & set(piece.layers))

    def rows_in(self, piece: Piece) -> tuple[int, int]:
        """Those of its positions that a piece holds, [start, end)."""
        return max(self.start, piece.start), min(self.end, piece.end)


def wants(plan: Plan, spec: RouteSpec) -> tuple[Plan, list[Want]]:
    """Give what plan.needs() names, and the plan as it stands over that: its sequence i is what wants[i] was.

    OutOfRangeError for a layer that the spec does not have.
    """
    layers = tuple(sorted(plan.layers)) if plan.layers is not None else spec.layers
    # A stage without layers asks only what its rows are used for, which any layer tells.
    layers = layers or spec.layers[:1]
    for layer in layers:
        spec.column_of(layer)
    found = [Want(*need, layers) for need in sorted(plan.needs())]
    row_ids = plan.row_ids
    firsts = np.array([(one.sequence + 1) << 32 | one.start for one in found], np.int64)
    places = np.searchsorted(firsts, row_ids, side="right")  # 0 for padding, which is less than all of them
    return Plan.from_row_ids(places << 32 | row_ids & 0xFFFFFFFF, layers=plan.layers), found


def cut(
    routes: Routes,
    layer_groups: Iterable[Sequence[int]] | None = None,
    rows_per_piece: int | None = None,
) -> list[tuple[Piece, bytes]]:
    """Cut routes into pieces: one for each group of layers and each rows_per_piece positions.

    layer_groups: a partition of the spec's layers, such as the layers of each pipeline stage (some may have
    none); default: all in one. rows_per_piece: cuts are at its multiples; default: none. Raises
    InvalidArgumentError.
    """
    if rows_per_piece is not None and rows_per_piece < 1:
        raise InvalidArgumentError(f"rows_per_piece: expected 1 or more, got {rows_per_piece}")
    wanted = [routes.spec.layers] if layer_groups is None else layer_groups
    groups = [[int(layer) for layer in group] for group in wanted if len(group)]
    if not groups:
        raise InvalidArgumentError(
            f"layer_groups: expected each of the layers {list(routes.spec.layers)} in one group, got none"
        )
    whole = Tape.from_bytes(_bytes_of(routes, groups), "routes to cut")
    step = rows_per_piece or max(routes.end, 1)
    edges = [routes.start, *range((routes.start // step + 1) * step, routes.end, step), routes.end]
    pieces = []
    for group in groups:
        for start, end in itertools.pairwise(edges):
            part = whole.read(0, start, end, layers=group)
            data = _bytes_of(part)
            fingerprint = part.spec.fingerprint
            pieces.append((Piece(start, end, tuple(group), fingerprint, _checksum(data), len(data)), data))
    return pieces


def select(routes: Routes, layers: Sequence[int]) -> Routes:
    """Routes of some of the layers, ascending."""
    if tuple(layers) == routes.spec.layers:
        return routes
    return Tape.from_bytes(_bytes_of(routes), "routes to select from").read(0, layers=list(layers))


def read(piece: Piece, data: bytes | memoryview, want: Want, name: str) -> Routes:
    """Give what is wanted of a piece that it touches, by a view of the data where that can be.

    Raises CorruptDataError, with `name`, if the data is not what was cut.
    """
    try:
        tape = Tape.from_bytes(data, name)
    except UnsupportedError as error:  # a damaged header may look like one of the future
        raise CorruptDataError(str(error)) from error
    found = (tape.spec.fingerprint, _checksum(data))
    if found != (piece.fingerprint, piece.checksum) or len(tape) != 1:
        expected = f"{piece.fingerprint:016x} {piece.checksum}"
        raise CorruptDataError(f"{name}: expected the piece {expected}, got {found[0]:016x} {found[1]}")
    return tape.read(0, *want.rows_in(piece), layers=want.layers_in(piece))


def missing(spec: RouteSpec, piece: Piece, want: Want) -> Routes:
    """Give what `read` gives with every row missing: for a piece that is lost."""
    start, end = want.rows_in(piece)
    part = spec.with_layers(want.layers_in(piece))
    ids = np.zeros((end - start, part.num_moe_layers, part.top_k), np.uint8)
    return Routes.from_ids(part, ids, start=start, valid=np.zeros(end - start, bool))


def no_rows(spec: RouteSpec, layers: Sequence[int]) -> Routes:
    """Give Routes of no rows, where nothing is needed or nothing is there: a plan asks for a source, too."""
    return Routes.from_ids(spec.with_layers(list(layers)), np.zeros((0, len(layers), spec.top_k), np.uint8))


def join(spec: RouteSpec, want: Want, parts: Iterable[Routes]) -> Routes:
    """Join what `read` gave. OutOfRangeError where none of it has one of the layers."""
    by_layers: dict[tuple[int, ...], list[Routes]] = {}
    for part in parts:
        by_layers.setdefault(part.spec.layers, []).append(part)
    if not by_layers:  # beyond the rows that there are
        return no_rows(spec, want.layers)
    groups = [one[0] if len(one) == 1 else merge_rows(one) for one in by_layers.values()]
    whole = groups[0] if len(groups) == 1 else merge_layers(groups)
    lost = sorted(set(want.layers) - set(whole.spec.layers))
    if lost:
        raise OutOfRangeError(f"sequence {want.sequence}: expected pieces of layer {lost[0]}, got none")
    return whole


def _bytes_of(routes: Routes, layer_groups: list[list[int]] | None = None) -> bytes:
    return cast(bytes, tape_bytes([routes], layer_groups=layer_groups))


def _runs_of(layers: Sequence[int]) -> str:
    """Ascending layers as a reader says them, such as "1 to 4, 9"."""
    runs = [
        [layer for _, layer in run]
        for _, run in itertools.groupby(enumerate(layers), lambda one: one[1] - one[0])
    ]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _checksum(data: bytes | memoryview) -> str:
    """content_xxh3 of a tape that was opened, and so checked, before."""
    view = memoryview(data)
    length = int.from_bytes(view[:8], "little")
    return str(json.loads(bytes(view[8 : 8 + length]))["__metadata__"]["content_xxh3"])
