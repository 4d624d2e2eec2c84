"""The ids of one forward pass under replay, and which forward or recomputation a thread is in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import moetape as mt


@dataclass(frozen=True)
class Counts:
    """Tokens of one forward pass, by how they were routed."""

    replayed: int = 0  # by the recorded ids
    missing: int = 0  # live: the routes have no valid row for the position
    beyond: int = 0  # live: at or after the routes' end, such as a last token that was never fed
    padding: int = 0  # live: the batch's padding
    dropped: int = 0  # live: of sequences that were taken out for bad data

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.replayed + other.replayed,
            self.missing + other.missing,
            self.beyond + other.beyond,
            self.padding + other.padding,
            self.dropped + other.dropped,
        )


class MicroBatch:
    """Ids of one forward pass, by layer: recorded ones, and the live choices for rows without a record.

    The forward pass freezes a layer's ids when its router fires; recomputation gets the same ids as often as
    it asks, in any order. Lives as long as the autograd graph holds it; `release` frees the ids earlier. Ids
    are kept narrow: one byte up to 256 experts, two up to 32,768, four beyond.
    """

    def __init__(
        self,
        names: dict[int, str],
        recorded: torch.Tensor,
        replayed: torch.Tensor,
        all_replayed: bool = False,
    ) -> None:
        """Take ids [layers, rows, k] in the order of names {layer: router}, and replayed bool [rows].

        all_replayed: no row is live, as the caller knows without asking the device.
        """
        self.forwarding = False
        self.nodes = range(0)  # numbers of the graph nodes that its forward pass made
        self.backward = -1  # the backward pass at whose end it is released
        self._names = names
        self._ids = dict(zip(names, recorded.unbind(0), strict=True))
        self._replayed = replayed[:, None]
        self._all_replayed = all_replayed
        self._fired: set[int] = set()

    def choose(
        self, layer: int, shape: tuple[int, ...], live_ids: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Give the ids [rows, k] = shape that the router of `layer` takes; live_ids asks for its own."""
        if not self._ids:
            raise mt.ClosedError(
                f"replay: router {self._names[layer]} is recomputed after its backward pass has ended; "
                "a second one needs retain_graph=True in the first"
            )
        ids = self._ids[layer]
        if ids.shape != shape:
            raise mt.WrongShapeError(
                f"replay: router {self._names[layer]}: expected ids [rows, k] = {list(ids.shape)} as planned "
                f"for the batch, got {list(shape)}"
            )
        if not self.forwarding:
            return ids.long()
        if layer in self._fired:
            raise mt.AlreadyCapturedError(
                f"replay: router {self._names[layer]} (layer {layer}) fired twice in one forward pass"
            )
        self._fired.add(layer)
        if self._all_replayed:
            return ids.long()
        live = live_ids()
        chosen = torch.where(self._replayed.to(live.device), ids.to(live), live)
        self._ids[layer] = chosen.to(ids.dtype)
        return chosen

    def silent(self) -> mt.NotCapturedError | None:
        """Give the error that names the routers which did not fire; None if all did."""
        names = [f"{name} (layer {one})" for one, name in self._names.items() if one not in self._fired]
        if not names:
            return None
        return mt.NotCapturedError(
            f"replay: expected every router to fire once in a forward, got nothing of {', '.join(names)}"
        )

    def check_all_fired(self) -> None:
        if (error := self.silent()) is not None:
            raise error

    def release(self) -> None:
        self._ids = {}


class Current(threading.local):
    """The micro-batch of the thread's running forward or recomputation; None stands for no replay."""

    def __init__(self) -> None:
        self._stack: list[MicroBatch | None] = []

    def __bool__(self) -> bool:
        return bool(self._stack)

    @property
    def top(self) -> MicroBatch | None:
        return self._stack[-1]

    def push(self, micro_batch: MicroBatch | None) -> None:
        self._stack.append(micro_batch)

    def pop(self) -> None:
        self._stack.pop()

    @contextmanager
    def inside(self, micro_batch: MicroBatch | None) -> Iterator[None]:
        self.push(micro_batch)
        try:
            yield
        finally:
            self.pop()

    def bound(self, function: Callable[..., Any], micro_batch: MicroBatch | None) -> Callable[..., Any]:
        """Tie `function` to a micro-batch: whoever keeps it keeps the ids, and calls it with them."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.inside(micro_batch):
                return function(*args, **kwargs)

        return run


def narrow(num_experts: int) -> str:
    """The type by which ids travel to a device and wait there."""
    return "uint8" if num_experts <= 256 else "int16" if num_experts <= 32768 else "int32"
