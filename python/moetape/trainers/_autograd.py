"""What replay needs to know of torch's autograd: whose backward runs, and when it ends.

The one place for torch's private names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction


def next_node_number() -> int:
    """Tell the number of this thread's next graph node; those of one forward pass are a range."""
    return int(torch._C._autograd._get_sequence_nr())


def in_backward() -> bool:
    return backward_number() != -1


def backward_number() -> int:
    """Tell backward passes apart; -1 outside of one."""
    return int(torch._C._current_graph_task_id())


def backward_node_number() -> int | None:
    """Tell the number of the node whose backward runs in this thread, and so the forward that made it."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def backward_keeps_graph() -> bool:
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def at_end_of_backward(action: Callable[[], None]) -> None:
    """Run `action` when the backward pass that this is called in has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(action)


def inside_reentrant_checkpoint() -> bool:
    """Tell whether the caller runs in the forward of a reentrant checkpoint, which leaves no other trace."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
        frame = frame.f_back
    return False


def graph_nodes(output: Any) -> Iterator[Any]:
    """Yield the graph nodes that made the tensors of a model's output."""
    if isinstance(output, torch.Tensor):
        if output.grad_fn is not None:
            yield output.grad_fn
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from graph_nodes(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from graph_nodes(value)
