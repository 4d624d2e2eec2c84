"""The replay controller of verl's VeOmni (FSDP) engine by its own names.

    from moetape.trainers.verl.veomni import RouterReplayAction, VeOmniRouterReplay

Needs a VeOmni with `veomni.utils.moe_router_replay` (0.1.12). Imports no Megatron.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

import moetape as mt
from moetape.trainers import _autograd as autograd

__all__ = ["RouterReplayAction", "VeOmniRouterReplay"]


class RouterReplayAction(Enum):
    """What routers do in this step."""

    DISABLED = "disabled"
    RECORD = "record"
    REPLAY = "replay"


class _Targets:
    """The ids of a micro-batch: of each layer [rows, k], and which rows have none."""

    def __init__(self, targets: Sequence[torch.Tensor]) -> None:
        shapes = {tuple(one.shape) for one in targets}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 2:
            raise mt.WrongShapeError(
                f"replay: expected targets [rows, k] of one shape, got {[list(one.shape) for one in targets]}"
            )
        if any(one.is_floating_point() or one.dtype == torch.bool for one in targets):
            raise mt.WrongTypeError(f"replay: expected targets of integers, got {targets[0].dtype}")
        self.layers = list(targets)
        self.shape = shape
        together = torch.stack([one.to(torch.int64) for one in targets])
        missing = (together == -1).all(dim=2).all(dim=0)
        if shape[1] > 1:  # what the engine pads with, and verl's rows without a record
            missing |= (together == 0).all(dim=2).all(dim=0)
        self.missing = missing
        ordered = together.sort(dim=2).values
        odd = (ordered[..., 1:] == ordered[..., :-1]).any(dim=2) | (together < 0).any(dim=2)
        largest = together.masked_fill(missing[:, None], 0).flatten(1)
        largest = largest.amax(dim=1) if largest.shape[1] else largest.new_full((len(targets),), -1)
        # One transfer for all layers: this waits for a device once.
        told = torch.stack([(odd & ~missing).any(dim=1).long(), largest, missing.any().expand(len(targets))])
        self._odd, self._largest, any_missing = told.tolist()
        self.any_missing = bool(any_missing[0])

    def check(self, layer: int, name: str, shape: tuple[int, ...], num_experts: int) -> None:
        """Refuse the ids of a layer that its router cannot take."""
        if self.shape != shape:
            raise mt.WrongShapeError(
                f"replay: {name}: expected ids [rows, k] = {list(shape)} as the router's, got "
                f"{list(self.shape)}"
            )
        if self._odd[layer]:
            rows = self.layers[layer].to(torch.int64).cpu()
            ordered = rows.sort(dim=1).values
            odd = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1) | (rows < 0).any(dim=1)
            row = int((odd & ~self.missing.cpu()).nonzero()[0])
            raise mt.InvalidArgumentError(
                f"replay: {name}: expected different ids from 0 in a row (one without a record is -1, or 0, "
                f"in all layers), got {rows[row].tolist()} in row {row}"
            )
        if self._largest[layer] >= num_experts:
            raise mt.OutOfRangeError(
                f"replay: {name}: expected ids below {num_experts}, got {self._largest[layer]}"
            )


class VeOmniRouterReplay:
    """Records and replays the routers of a model, one micro-batch at a time: forward, then its backward.

    Targets are found by the layer number in a router's name where they are as many as decoder layers, so
    dense layers may stand anywhere; else by the order in which routers fire. Rows that are -1, or 0, in all
    layers are routed live, and recomputation gets what the forward chose. One thread.
    """

    def __init__(self) -> None:
        self._action = RouterReplayAction.DISABLED
        self._position: dict[int, int] = {}  # of the routers that fired, by id, in their order
        self._layer: dict[int, int] = {}  # decoder layers of the model's modules, by id
        self._names: dict[int, str] = {}
        self._kinds: dict[int, type] = {}
        self._num_layers: int | None = None
        self._recorded: list[torch.Tensor] = []
        self._targets: _Targets | None = None
        self._chosen: dict[int, torch.Tensor] = {}
        self._first_node = 0
        self._installed = False

    @property
    def action(self) -> RouterReplayAction:
        """What routers do in this step."""
        return self._action

    @property
    def num_fired(self) -> int:
        """Routers that fired in this micro-batch."""
        return len(self._position)

    @property
    def num_targets(self) -> int:
        """Routers that have a target in this micro-batch; the engine expects as many to have fired."""
        if self._targets is None:
            return 0
        if not self._by_layer or not self._position:
            return len(self._targets.layers)
        fired = {self._kinds[one] for one in self._position if one in self._kinds}
        return sum(kind in fired and one in self._layer for one, kind in self._kinds.items())

    @property
    def _by_layer(self) -> bool:
        return self._targets is not None and len(self._targets.layers) == self._num_layers

    def install(self, model: torch.nn.Module) -> None:
        """Let the model's routers ask this controller, and those of no other."""
        try:
            from veomni.utils.moe_router_replay import set_active_replay, validate_model_for_replay
        except ImportError as error:
            raise mt.UnsupportedError(
                f"replay: expected a VeOmni with veomni.utils.moe_router_replay, got {error}"
            ) from error
        validate_model_for_replay(model)
        inner: Any = model if hasattr(model, "config") else getattr(model, "module", model)
        self._num_layers = getattr(getattr(inner, "config", None), "num_hidden_layers", None)
        for name, module in model.named_modules():
            self._names[id(module)], self._kinds[id(module)] = name, type(module)
            if found := re.search(r"\blayers\.(\d+)\.", f"{name}."):
                self._layer[id(module)] = int(found[1])
        set_active_replay(self)
        self._installed = True

    def uninstall(self) -> None:
        """Let routers route live again."""
        if self._installed:
            from veomni.utils.moe_router_replay import set_active_replay

            set_active_replay(None)
            self._installed = False

    def begin_record(self) -> None:
        """Record in this step."""
        self._begin(RouterReplayAction.RECORD)

    def begin_replay(self) -> None:
        """Replay in this step."""
        self._begin(RouterReplayAction.REPLAY)

    def clear(self) -> None:
        """End the step."""
        self._begin(RouterReplayAction.DISABLED)

    def _begin(self, action: RouterReplayAction) -> None:
        self._action = action
        self._position, self._recorded, self._targets, self._chosen = {}, [], None, {}
        self._first_node = autograd.next_node_number()

    def begin_microbatch(self, targets: Sequence[torch.Tensor] | None = None) -> None:
        """Begin a micro-batch, with ids [rows, k] of each layer in REPLAY; what the last one held is gone."""
        if self._action is RouterReplayAction.DISABLED:
            raise mt.StepOrderError("replay: expected begin_record or begin_replay before a micro-batch")
        if (self._action is RouterReplayAction.REPLAY) != (targets is not None):
            raise mt.InvalidArgumentError(
                f"replay: expected targets in REPLAY and none in RECORD, got "
                f"{'none' if targets is None else 'some'} in {self._action.name}"
            )
        checked = _Targets(targets) if targets else None
        if targets is not None and checked is None:
            raise mt.WrongShapeError("replay: expected targets of at least one layer, got none")
        self._begin(self._action)
        self._targets = checked

    def take_recorded(self) -> torch.Tensor:
        """What the routers chose in this micro-batch, int16 [rows, layers, k], in the order of firing."""
        if self._action is not RouterReplayAction.RECORD:
            raise mt.StepOrderError(f"replay: expected RECORD, got {self._action.name}")
        if not self._recorded:
            raise mt.NotCapturedError("replay: expected a record of every router, got no router that fired")
        return torch.stack(self._recorded, dim=1)

    def on_router_forward(
        self, module: torch.nn.Module, routing_scores: torch.Tensor, top_indices: torch.Tensor
    ) -> torch.Tensor:
        """The ids [rows, k] that a router takes; VeOmni's models call it after their own choice."""
        if self._action is RouterReplayAction.DISABLED:
            return top_indices
        if self._names and id(module) not in self._names:
            return top_indices  # another model's
        key, name = id(module), self._names.get(id(module), type(module).__name__)
        again = autograd.in_backward()
        if again and self._is_of_another_micro_batch():
            raise mt.ConflictError(
                f"replay: {name}: expected the backward of a micro-batch before the next one begins, got a "
                "recomputation of an earlier one"
            )
        first = key not in self._position
        if first and again:
            raise mt.NotCapturedError(f"replay: {name}: expected a forward before recomputation, got none")
        position = self._position.setdefault(key, len(self._position))
        if self._action is RouterReplayAction.RECORD:
            if first:
                self._recorded.append(_narrow(name, top_indices, routing_scores.shape[-1]))
            return top_indices
        return self._replayed(module, name, position, routing_scores, top_indices, again)

    def _is_of_another_micro_batch(self) -> bool:
        node = autograd.backward_node_number()
        return node is not None and node < self._first_node

    def _replayed(
        self,
        module: torch.nn.Module,
        name: str,
        position: int,
        scores: torch.Tensor,
        live: torch.Tensor,
        again: bool,
    ) -> torch.Tensor:
        targets = self._targets
        if targets is None:
            raise mt.StepOrderError(f"replay: {name}: expected begin_microbatch before the forward")
        layer = self._layer.get(id(module), position) if self._by_layer else position
        if layer >= len(targets.layers):
            raise mt.NotCapturedError(
                f"replay: {name}: expected targets of layer {layer}, got those of {len(targets.layers)}"
            )
        if again and position in self._chosen:
            return self._chosen[position].to(live.dtype)
        targets.check(layer, name, tuple(live.shape), scores.shape[-1])
        ids = targets.layers[layer].to(live)
        if not targets.any_missing:
            return ids
        chosen = torch.where(targets.missing.to(live.device)[:, None], live, ids)
        self._chosen[position] = chosen.to(torch.int16 if scores.shape[-1] <= 32768 else torch.int32)
        return chosen


def _narrow(name: str, ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    if num_experts > 32768:
        raise mt.CapacityError(f"replay: {name}: expected ids that int16 holds, got {num_experts} experts")
    return ids.detach().to(torch.int16, copy=True)
