"""Whose token stands at which row of a rank, in the layouts by which verl packs a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from moetape.replay import RowIds


class Layout:
    """How verl cuts a micro-batch over the ranks of context and of sequence parallelism."""

    def __init__(self, config: Any, local_cp_size: int | None = None) -> None:
        from megatron.core import parallel_state

        state: Any = parallel_state
        self.tp_size = int(state.get_tensor_model_parallel_world_size())
        self.tp_rank = int(state.get_tensor_model_parallel_rank())
        self.shared = self.tp_size > 1 and bool(config.sequence_parallel)
        if local_cp_size is None:
            self.cp_size = int(state.get_context_parallel_world_size())
            self.cp_rank = int(state.get_context_parallel_rank())
            self.cp_group = state.get_context_parallel_group
        else:
            group = state.get_dynamic_data_context_parallel_groups(group_size=local_cp_size)
            self.cp_size, self.cp_rank = local_cp_size, torch.distributed.get_rank(group=group)
            self.cp_group = lambda: group
        # DeepSeek-V4's attention wants neighbours on a rank, and a full window.
        hybrid = getattr(config, "experimental_attention_variant", None) == "dsv4_hybrid"
        self._zigzag = not hybrid
        self._min_rows = config.csa_window_size if hybrid else None
        self._fp8 = config.fp8 in ("e4m3", "hybrid")

    def of_context(self, lengths: Sequence[int], cp_rank: int) -> RowIds:
        """The rows of a rank in context parallelism, before sequence parallelism cuts them."""
        align = self.tp_size * self.cp_size * (2 if self._zigzag and self.cp_size > 1 else 1)
        rows = RowIds.from_lengths(list(lengths)).pad_each(math.lcm(16, align) if self._fp8 else align)
        if self._fp8:
            rows = rows.pad(align * 128)
        if self._min_rows is not None:
            rows = rows.pad_to(max(rows.num_rows, self.cp_size * self._min_rows))
        cut = rows.zigzag_each if self._zigzag else rows.split
        return cut(self.cp_size, cp_rank)

    def here(self, lengths: Sequence[int]) -> RowIds:
        """The rows that this rank's routers see."""
        rows = self.of_context(lengths, self.cp_rank)
        return rows.split(self.tp_size, self.tp_rank) if self.shared else rows
