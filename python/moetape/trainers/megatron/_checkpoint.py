"""Ties what Megatron's activation checkpoints run to the micro-batch of the forward pass that made them.

Recomputation may run at any time, in any order, on any thread, and inside another recomputation. So what a
checkpoint keeps is bound to the caller's micro-batch when it is made. Nothing else changes, for any model.
"""

from __future__ import annotations

import threading
from typing import Any

from moetape.trainers._microbatch import Current

current = Current()

_lock = threading.Lock()
_num_users = 0
_undo: Any = None


def add_user() -> None:
    """Bind checkpoints from here on, until each user is removed."""
    global _num_users, _undo
    with _lock:
        _num_users += 1
        if _undo is None:
            _undo = _wrap()


def remove_user() -> None:
    global _num_users, _undo
    with _lock:
        _num_users -= 1
        if _num_users == 0 and _undo is not None:
            _undo()
            _undo = None


def _wrap() -> Any:
    from megatron.core.tensor_parallel.random import CheckpointFunction

    original = CheckpointFunction.__dict__["forward"]
    plain = CheckpointFunction.forward

    def forward(ctx: Any, run_function: Any, *rest: Any) -> Any:
        micro_batch = current.top if current else None
        return plain(ctx, current.bound(run_function, micro_batch), *rest)

    wrapped = staticmethod(forward)
    CheckpointFunction.forward = wrapped

    def undo() -> None:
        if CheckpointFunction.__dict__["forward"] is wrapped:  # else somebody wrapped it since
            CheckpointFunction.forward = original

    return undo
