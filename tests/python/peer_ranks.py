"""What the tests against trainers' own slicing share: a random batch, and one rank of a random set-up."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch

from moetape.replay import RowIds
from peer_code import Group, megatron_ranks, peer_code

SEEDS = range(12)
Array = npt.NDArray[np.int64]


class Rank:
    """A batch, and the rank's places in context (or Ulysses) and tensor parallelism."""

    def __init__(self, lengths: list[int], cp: Group, tp: Group) -> None:
        self.lengths, self.cp, self.tp = lengths, cp, tp
        self.rows = RowIds.from_lengths(lengths)

    @classmethod
    def random(cls, seed: int) -> Rank:
        draw = random.Random(seed)
        lengths = [draw.randint(1, 50) for _ in range(draw.randint(1, 5))]
        cp, tp = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 4])
        return cls(lengths, Group(cp, draw.randrange(cp)), Group(tp, draw.randrange(tp)))

    @property
    def ids(self) -> list[torch.Tensor]:
        """The row ids of each sequence."""
        return list(torch.from_numpy(self.rows.ids).split(self.lengths))

    @property
    def ranks(self) -> SimpleNamespace:
        return megatron_ranks(cp=self.cp, tp=self.tp)

    @property
    def multiple(self) -> int:
        """Of rows that every rank can cut, as verl and skyrl pad each sequence."""
        cp = self.cp.size()
        return self.tp.size() * cp * (2 if cp > 1 else 1)

    def padded_length(self, multiple: int) -> int:
        return -(-max(self.lengths) // multiple) * multiple

    def left_padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, mask) [sequences, length], as rollouts pad them."""
        ids = self.rows.pad_each_to(max(self.lengths) + 3, side="left").ids
        batch = torch.from_numpy(ids).reshape(len(self.lengths), -1)
        return batch, batch != 0

    def zigzag(self, rows: RowIds) -> RowIds:
        return rows.zigzag_each(self.cp.size(), self.cp.rank())

    def contiguous(self, rows: RowIds) -> RowIds:
        return rows.split(self.cp.size(), self.cp.rank())

    def sequence_parallel(self, rows: RowIds) -> RowIds:
        return rows.split(self.tp.size(), self.tp.rank())

    def sequence_parallel_of_megatron(self, rows: torch.Tensor) -> Array:
        path = "megatron/core/tensor_parallel/mappings.py"
        cut = peer_code("megatron-core-0.19.2", path, "_split_along_first_dim")
        return np.asarray(cut._split_along_first_dim(rows, self.tp))
