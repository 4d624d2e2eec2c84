"""Whose rows a block of the KV cache holds, as far as a worker can know it from what the scheduler sends.

A block that a request is given anew holds somebody's old rows: these are invalidated before the forward. A
block that a request is given as already computed is a hit in the prefix cache, whose rows are its own; or its
KV came
from elsewhere, and then its rows are old ones too. Where a KV connector makes the second possible, the two
are told apart by the hash of the block's tokens: rows are believed only if they were recorded under the hash
that the request has for the block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moetape import Store, blocks

__all__ = ["BlockOwners"]


@dataclass
class _Request:
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_stamped: int = 0  # leading blocks whose hash was compared or noted
    num_claimed: int = 0  # leading blocks that were given as computed


class BlockOwners:
    """Keeps a store's rows to the requests that recorded them. One thread at a time.

    group: index of the KV cache group whose blocks the store's slots follow. block_size: tokens of such a
    block. hashes_per_block: how many of the scheduler's hashes cover one block. check_hashes: whether KV may
    come from elsewhere.
    """

    def __init__(
        self, store: Store, group: int, block_size: int, hashes_per_block: int, check_hashes: bool
    ) -> None:
        self._store = store
        self._group = group
        self._block_size = block_size
        self._hashes_per_block = hashes_per_block
        self._check_hashes = check_hashes
        self._requests: dict[str, _Request] = {}
        self._hash_of: dict[int, bytes] = {}
        self._generation = 0
        self._blind = False

    def begin_step(self, scheduled: Any) -> None:
        """Before the forward of a SchedulerOutput: invalidate rows that are not the requests' own.

        After an error no row counts that was there before; with a connector, none is believed until the
        prefix cache is cleared, when the scheduler sends all hashes again.
        """
        try:
            self._begin_step(scheduled)
        except Exception:
            self._forget()
            self._blind = self._check_hashes
            raise

    def _begin_step(self, scheduled: Any) -> None:
        metadata = scheduled.aux_output_connector_metadata
        if metadata is not None and metadata.generation != self._generation:
            self._generation = metadata.generation
            self._forget()
            self._blind = False
        if self._check_hashes:
            self._note_hashes(metadata, scheduled)
        copies = scheduled.kv_cache_block_copies or ()
        fresh = self._give_out(scheduled, {copy.dst_block_id: copy.src_block_id for copy in copies})
        if self._check_hashes:
            for block in fresh:
                self._hash_of.pop(block, None)
            fresh += self._foreign_blocks(scheduled)
        if fresh:
            self._invalidate(fresh)

    def _forget(self) -> None:
        self._hash_of.clear()
        self._requests.clear()
        self._store.reset()

    def _give_out(self, scheduled: Any, source_of: dict[int, int]) -> list[int]:
        """Blocks that requests are given anew in this step; source_of: those that are copies of others."""
        fresh: list[int] = []
        for new in scheduled.scheduled_new_reqs:
            fresh += self._replaced(
                new.req_id, new.block_ids[self._group], new.num_computed_tokens, source_of
            )
        cached = scheduled.scheduled_cached_reqs
        for request_id, new_blocks, num_computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request_id in cached.resumed_req_ids:
                ids = new_blocks[self._group] if new_blocks else []
                fresh += self._replaced(request_id, ids, num_computed, source_of)
            elif new_blocks:
                fresh += new_blocks[self._group]
                if self._check_hashes:
                    self._requests.setdefault(request_id, _Request()).blocks += new_blocks[self._group]
        return fresh

    def _replaced(
        self, request_id: str, ids: list[int], num_computed: int, source_of: dict[int, int]
    ) -> list[int]:
        """A request has these blocks now, some of whose tokens are computed; returns those that are new."""
        num_claimed, num_inside = (0, 0) if self._blind else divmod(num_computed, self._block_size)
        goes_on = not self._check_hashes
        if self._check_hashes:
            request = self._requests.setdefault(request_id, _Request())
            goes_on = request.blocks[num_claimed : num_claimed + 1] == ids[num_claimed : num_claimed + 1]
            request.blocks, request.num_stamped, request.num_claimed = [*ids], 0, num_claimed
        if num_inside and goes_on:
            self._keep_start(ids[num_claimed], num_inside, source_of.get(ids[num_claimed]))
            num_claimed += 1
        return ids[num_claimed:]

    def _keep_start(self, block: int, num_rows: int, source: int | None) -> None:
        """The first rows of a block stay, or are those of the block that it is a copy of; the others go."""
        slots = block * self._block_size + np.arange(self._block_size)
        self._store.invalidate(slots[num_rows:])
        if source is not None:
            self._store.move(source * self._block_size + np.arange(num_rows), slots[:num_rows])

    def _note_hashes(self, metadata: Any, scheduled: Any) -> None:
        """Take the hashes that came, stamp blocks with them that were given out before, forget who ended.

        A preempted request ends too: its hashes come once more when it is resumed.
        """
        if metadata is None:
            return
        ended = {*metadata.finished_requests, *scheduled.finished_req_ids}
        for request_id in ended & scheduled.num_scheduled_tokens.keys():
            self._requests.pop(request_id, None)
        for request_id, packed in metadata.block_hashes.items():
            request = self._requests.setdefault(request_id, _Request())
            request.hashes += packed
            self._stamp(request)
        for request_id in ended - scheduled.num_scheduled_tokens.keys():
            self._requests.pop(request_id, None)

    def _stamp(self, request: _Request) -> list[int]:
        """Note what blocks hold; returns those whose rows are of something else."""
        foreign = []
        num_known = min(len(request.blocks), len(request.hashes) // self._hashes_per_block)
        for index in range(request.num_stamped, num_known):
            block = request.blocks[index]
            content = request.hashes[(index + 1) * self._hashes_per_block - 1]
            if index < request.num_claimed and self._hash_of.get(block) != content:
                foreign.append(block)
            self._hash_of[block] = content
        request.num_stamped = max(request.num_stamped, num_known)
        return foreign

    def _foreign_blocks(self, scheduled: Any) -> list[int]:
        """Blocks that were given as computed and whose rows nobody recorded."""
        requests = [
            request
            for request_id in scheduled.num_scheduled_tokens
            if (request := self._requests.get(request_id)) is not None
        ]
        # Those that compute their blocks in this step first: others may already hit them.
        requests.sort(key=lambda request: request.num_claimed)
        foreign = []
        for request in requests:
            foreign += self._stamp(request)
            # A claimed block without a hash cannot be proved.
            foreign += request.blocks[request.num_stamped : request.num_claimed]
            request.num_claimed = min(request.num_claimed, request.num_stamped)
        return foreign

    def _invalidate(self, block_ids: list[int]) -> None:
        ids = np.asarray(block_ids, np.int64)
        self._store.invalidate(blocks(ids, self._block_size, len(ids) * self._block_size))
