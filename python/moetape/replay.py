"""The rows that one rank's routers need, cut by the trainer's own slicing.

Row ids are made beside a sequence's tokens and cut by the very code that cuts the tokens; what a rank then
holds is its plan:

    ids_of_rows = moetape.replay.row_ids(sequence=0, positions=range(10))
    plan = moetape.replay.Plan.from_row_ids(cut(ids_of_rows), layers=[3, 4])
    ids, uses = plan.apply([routes])

`ids` is [layers, rows, top_k]; `uses` says of each row whether it is FILL, REPLAYED or LIVE.

RowIds makes the same array from the lengths of the sequences and the set-up, for whoever must know a rank's
rows before the trainer's code has run:

    rows = moetape.replay.RowIds.from_lengths([10, 7]).pad_each(4).zigzag_each(size=2, rank=0)
    chunks = moetape.replay.pipeline_chunks(61, size=4, first=16, last=13)
    plan = Plan.from_row_ids(rows, layers=moetape.replay.pipeline_layers(spec, chunks, size=4, rank=1))
    plan.needs()                                    # what to fetch, [(sequence, start, end)]
"""

import numpy as np
import numpy.typing as npt

from moetape._moetape import FILL, LIVE, REPLAYED, Plan, RowIds, pipeline_chunks, pipeline_layers
from moetape.errors import OutOfRangeError, WrongTypeError

__all__ = [
    "FILL",
    "LIVE",
    "REPLAYED",
    "Plan",
    "RowIds",
    "pipeline_chunks",
    "pipeline_layers",
    "row_ids",
]


def row_ids(sequence: int, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The row ids, (sequence + 1) << 32 | position, of some positions of a sequence, int64 of the same shape.

    `sequence` is the index of its routes in what Plan.apply takes. Raises OutOfRangeError for a sequence
    outside [0, 2**31 - 1) or a position outside [0, 2**32), WrongTypeError for what is no integer.
    """
    if isinstance(sequence, bool) or not isinstance(sequence, int | np.integer):
        raise WrongTypeError(f"sequence: expected an integer, got {sequence!r}")
    if not 0 <= sequence < 2**31 - 1:
        raise OutOfRangeError(f"sequence: expected 0 to {2**31 - 2}, got {sequence}")
    places = np.asarray(positions)
    if places.size and places.dtype.kind not in "iu":
        raise WrongTypeError(f"positions: expected integers, got {places.dtype}")
    if places.size and (places.min() < 0 or places.max() >= 2**32):
        raise OutOfRangeError(f"positions: expected 0 to {2**32 - 1}, got {places.min()} to {places.max()}")
    return (np.int64(int(sequence) + 1) << np.int64(32)) | places.astype(np.int64)
