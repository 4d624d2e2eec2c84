"""The micro-batches of one model that are under way: begun, and not yet through with their backward pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from moetape.trainers import _autograd as autograd
from moetape.trainers._microbatch import Current, MicroBatch


class Flights:
    """Keeps no micro-batch alive: the autograd graph does. `when_idle` runs after one has ended.

    Thread rule: forwards of one thread each; micro-batches end on any.
    """

    def __init__(self, current: Current, when_idle: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self._current = current
        self._when_idle = when_idle
        self._live: dict[int, weakref.ref[MicroBatch]] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> list[MicroBatch]:
        with self.lock:
            return [one for one in (known() for known in self._live.values()) if one is not None]

    def begin(self, micro_batch: MicroBatch) -> None:
        """Start the forward pass of a micro-batch in this thread."""
        key = id(micro_batch)
        self._live[key] = weakref.ref(micro_batch)
        weakref.finalize(micro_batch, self._forget, key).atexit = False
        micro_batch.forwarding = True
        micro_batch.nodes = range(autograd.next_node_number(), 2**63 - 1)
        self._current.push(micro_batch)

    def end_forward(self, micro_batch: MicroBatch) -> None:
        self._current.pop()
        micro_batch.forwarding = False
        micro_batch.nodes = range(micro_batch.nodes.start, autograd.next_node_number())

    def release_after_backward(self, micro_batch: MicroBatch, output: Any) -> None:
        """End the micro-batch when the backward pass through its forward's output has ended."""
        for node in autograd.graph_nodes(output):
            node.register_prehook(lambda _: self._start_backward(micro_batch))

    def _start_backward(self, micro_batch: MicroBatch) -> None:
        number = autograd.backward_number()
        if micro_batch.backward != number and not autograd.backward_keeps_graph():
            micro_batch.backward = number
            autograd.at_end_of_backward(lambda: self.end(micro_batch))

    def end(self, micro_batch: MicroBatch) -> None:
        micro_batch.release()
        self._forget(id(micro_batch))

    def _forget(self, key: int) -> None:
        with self.lock:
            self._live.pop(key, None)
        self._when_idle()
