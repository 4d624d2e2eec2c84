"""Record what the trainer's own forwards choose (R2): the old policy's pass records, the update replays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

import moetape as mt
from moetape.models import Interceptor, outside_of_graphs
from moetape.models.forward import ForwardInputs
from moetape.trainers import _alignment as alignment
from moetape.trainers import _autograd as autograd
from moetape.trainers._microbatch import narrow


class Recordable(Protocol):
    """What a recording needs of a session."""

    spec: mt.RouteSpec

    def _living_model(self) -> torch.nn.Module: ...

    @property
    def _interceptors(self) -> Iterable[Interceptor]: ...


@dataclass(eq=False)
class _Forward:
    """One forward under way: whose token each row is, and what the routers of each layer chose."""

    row_ids: alignment.RowIds  # [rows]
    num_sequences: int
    tokens: npt.NDArray[np.int32] | None
    chosen: dict[int, torch.Tensor] = field(default_factory=dict)


class Recording:
    """The routes of the forwards within its `with` block. Made by Session.record(); used once.

    routes: one of each sequence of each forward, in order; with a row for every real token that was fed, and
    the token ids where they are known. A forward that fails adds none.
    source: "train". An engine's record of the same tokens is another one: keep them under separate keys.

    A block that was entered and is lost without being left ends as if left. Thread rule: that of the session.
    """

    source = "train"
    _undo: tuple[Callable[[], None], ...] | None = None

    def __init__(self, session: Recordable, attention_mask: Any, row_ids: Any, version: int | None) -> None:
        if attention_mask is not None and row_ids is not None:
            raise mt.InvalidArgumentError("record: expected attention_mask or row_ids, got both")
        self.routes: list[mt.Routes] = []
        self._session = session
        self._attention_mask = attention_mask
        self._row_ids = None if row_ids is None else alignment.given_row_ids(row_ids)
        self._version = version
        self._forward: _Forward | None = None
        self._dtype: torch.dtype = getattr(torch, narrow(session.spec.num_experts))

    def __enter__(self) -> Recording:
        if self._undo is not None:
            raise mt.InvalidArgumentError("record: expected a new block, got a used one")
        self._undo = ()
        try:
            self._watch(self._session._living_model())
        except BaseException:
            self._close()
            raise
        return self

    def _watch(self, model: torch.nn.Module) -> None:
        attached = weakref.ref(model)  # a deep copy of the model shares the hooks, which are not meant for it
        this = weakref.ref(self)  # whoever entered the block holds it, not the model

        def recording_of(module: torch.nn.Module) -> Recording | None:
            return this() if module is attached() and not autograd.in_backward() else None

        @outside_of_graphs
        def before(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if (recording := recording_of(module)) is not None:
                recording._forward = recording._begin(ForwardInputs.of(module.forward, args, kwargs))

        @outside_of_graphs
        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            if (recording := recording_of(module)) is not None:
                forward, recording._forward = recording._forward, None
                if output is not None and forward is not None:
                    recording.routes += recording._routes_of(forward)

        def tap(layer: int, ids: torch.Tensor) -> None:
            recording = this()
            if recording is not None and not autograd.in_backward():  # not a recomputation
                recording._take(layer, ids)

        for one in self._session._interceptors:
            self._undo = (*(self._undo or ()), one.add_tap(tap).remove)
        self._undo = (
            *(self._undo or ()),
            model.register_forward_pre_hook(before, with_kwargs=True).remove,
            model.register_forward_hook(after, always_call=True).remove,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __del__(self) -> None:
        if self._undo:  # entered and lost
            self._close()

    def _close(self) -> None:
        for undo in self._undo or ():
            undo()
        self._undo, self._forward = (), None

    def _begin(self, call: ForwardInputs) -> _Forward:
        """Say whose tokens a forward gets, before its cache grows."""
        if self._row_ids is None:
            mask = call.attention_mask if self._attention_mask is None else self._attention_mask
            row_ids, _ = alignment.row_ids_of_mask(call, mask)
            num_sequences = len(row_ids)
        else:
            alignment.check_row_ids_shape(call, self._row_ids)
            row_ids = self._row_ids
            num_sequences = max(0, int((row_ids >> 32).max(initial=0)))
        flat = np.ascontiguousarray(row_ids).reshape(-1)
        real = flat[flat > 0]
        if len(np.unique(real)) != len(real):
            raise mt.InvalidArgumentError(
                "row_ids: expected every position of a sequence once, got one twice"
            )
        tokens = None if call.is_embedded else call.tokens.detach().reshape(-1).to("cpu", torch.int32).numpy()
        return _Forward(flat, num_sequences, tokens)

    def _take(self, layer: int, ids: torch.Tensor) -> None:
        if self._forward is None:
            return  # a forward of an inner module
        if layer in self._forward.chosen:
            raise mt.AlreadyCapturedError(f"record: the router of layer {layer} fired twice in one forward")
        if len(ids) != len(self._forward.row_ids):
            raise mt.WrongShapeError(
                f"record: expected the router of layer {layer} to choose for the batch's "
                f"{len(self._forward.row_ids)} rows, got {len(ids)}"
            )
        self._forward.chosen[layer] = ids.detach().to(self._dtype)

    def _routes_of(self, forward: _Forward) -> list[mt.Routes]:
        layers = list(self._session.spec.layers)
        if silent := [layer for layer in layers if layer not in forward.chosen]:
            raise mt.NotCapturedError(
                f"record: expected every router to fire, got nothing of layers {silent}"
            )
        ids = torch.stack([forward.chosen[layer] for layer in layers], dim=1).cpu().numpy()
        sequences = (forward.row_ids >> 32) - 1
        return [
            self._sequence(forward, ids, np.flatnonzero(sequences == one))
            for one in range(forward.num_sequences)
        ]

    def _sequence(self, forward: _Forward, ids: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> mt.Routes:
        """The routes of the rows of one sequence, in whatever order they were fed."""
        positions = forward.row_ids[rows] & 0xFFFFFFFF
        start = int(positions.min()) if len(rows) else 0
        places = positions - start
        length = int(places.max()) + 1 if len(rows) else 0
        known = forward.tokens if len(rows) == length else None  # a row between them was not fed here
        return mt.Routes.from_ids(
            self._session.spec,
            _placed(ids[rows], places, length),
            start=start,
            valid=_placed(np.ones(len(rows), np.bool_), places, length),
            version=self._version,
            tokens=None if known is None else _placed(known[rows], places, length),
        )


def _placed(part: npt.NDArray[Any], places: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
    whole = np.zeros((length, *part.shape[1:]), part.dtype)
    whole[places] = part
    return whole
