"""moetape.layout as Python sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import moetape as mt
from moetape import layout


@pytest.mark.parametrize(
    ("placed", "batch_rows", "num_tokens", "expected"),
    [
        (layout.whole(), 5, 5, (0, 0, 5)),
        (layout.graph_padded(5, 8), 8, 5, (0, 0, 5)),  # case A10
        (layout.dp_concat([11, 13, 17, 19], rank=2), 60, 17, (24, 0, 17)),  # case A01
        (layout.dp_padded([11, 13, 17, 19], 32, rank=2), 128, 17, (64, 0, 17)),  # case A01
        (layout.dp_concat([3, 5], rank=1), 8, 5, (3, 0, 5)),  # case A06
        (layout.dp_concat([5, 0], rank=1), 5, 0, (5, 0, 0)),  # case A06
        (layout.dp_padded(np.array([3, 5]), 5, rank=1), 10, 5, (5, 0, 5)),  # case A07
        (layout.tp_shard(5, size=2, rank=0), 3, 5, (0, 0, 3)),  # case A09
        (layout.tp_shard(5, size=2, rank=1), 3, 5, (0, 3, 2)),  # case A09
        (layout.tp_split(5, size=2, rank=1), 2, 5, (0, 3, 2)),
        (layout.infer(8, [3, 5], rank=1), 8, 5, (3, 0, 5)),  # case A06
        (layout.infer(5, [3, 5], rank=1), 5, 5, (0, 0, 5)),  # case A06
    ],
)
def test_places(
    placed: layout.Layout, batch_rows: int, num_tokens: int, expected: tuple[int, int, int]
) -> None:
    assert placed.place(batch_rows, num_tokens) == expected


def test_shards_and_indices_are_placed() -> None:
    shards = layout.dp_shards([3, 5], [2, 2, 3, 3], rank=1)
    assert shards.place(10, 5) == (4, 0, 5)
    rows = layout.rows([2, -1, 0, 1])
    src, dst, _ = rows.place(4, 3)
    assert (src, dst) == (0, 0)
    with pytest.raises(mt.Error, match="1"):
        layout.rows([1, 1]).place(2, 3)


def test_what_does_not_fit_is_refused_with_both_figures() -> None:
    with pytest.raises(mt.WrongShapeError, match=r"8.*6|6.*8"):
        layout.dp_concat([3, 5], rank=1).place(6, 5)
    with pytest.raises(mt.WrongShapeError, match="6"):  # case A06
        layout.infer(6, [3, 5], rank=1)


def test_repr_says_what_it_is() -> None:
    assert repr(layout.dp_concat([3, 5], rank=1)) == "dp_concat(counts=[3, 5], rank=1)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout.dp_concat(None, rank=1),  # type: ignore[arg-type]
        lambda: layout.dp_concat([1.5], rank=0),
        lambda: layout.dp_concat([1], rank="0"),  # type: ignore[arg-type]
        lambda: layout.graph_padded(None, 3),  # type: ignore[arg-type]
        lambda: layout.rows("01"),
        lambda: layout.infer(None, [1]),  # type: ignore[arg-type]
        lambda: layout.whole().place(1, None),  # type: ignore[arg-type]
        lambda: layout.IdMap(None),  # type: ignore[arg-type]
        lambda: layout.IdMap([0])("0"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_refused(make: Any) -> None:
    with pytest.raises(mt.WrongTypeError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout.dp_concat([3, -5], rank=0).place(3, 3),
        lambda: layout.dp_concat([3, 5], rank=2).place(8, 3),
        lambda: layout.dp_concat([2**62, 2**62, 2**62], rank=1).place(3, 3),
        lambda: layout.tp_shard(5, size=0, rank=0).place(5, 5),
        lambda: layout.tp_shard(2**63 - 1, size=2**31 - 1, rank=2**31 - 2).place(5, 5),
        lambda: layout.graph_padded(9, 8).place(8, 9),
        lambda: layout.dp_padded([1, 2**62], 2**62, rank=1).place(5, 5),
        lambda: layout.whole().place(-1, -1),
        lambda: layout.IdMap([]),
        lambda: layout.IdMap([-2]),
        lambda: layout.IdMap.interleaved_shared(8, 0, 1),
        lambda: layout.IdMap.interleaved_shared(8, 3, 1),
        lambda: layout.IdMap.interleaved_shared(2**31 - 1, 1, 2**31 - 1),
        lambda: layout.tp_shard(5, size=2**31, rank=0),
    ],
)
def test_numbers_that_no_batch_fits_are_refused(make: Any) -> None:
    with pytest.raises(mt.Error):
        make()


def test_id_maps_turn_physical_into_logical_ids() -> None:
    # case H02, H05
    id_map = layout.IdMap([5, 9, -1, 3])
    assert len(id_map) == 4
    assert [id_map(physical) for physical in (0, 1, 2, 3, 4, -1)] == [5, 9, -1, 3, -2, -2]
    shared = layout.IdMap.interleaved_shared(64, 2, 1)
    assert (shared(41), shared(32)) == (40, -1)  # case A15
