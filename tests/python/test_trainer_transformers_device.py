"""What a replayed forward costs a device: counted on fake CUDA tensors, where whatever would wait fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import moetape as mt
from moetape.models import find_routers, interceptor
from moetape.trainers import _late
from moetape.trainers._forward_plan import ForwardPlan
from moetape.trainers.transformers import Counts, attach
from replay_helpers import record
from tiny_models import tiny
from toy_moe import MaskingRouter, Router, toy

CUDA = torch.device("cuda", 0)


class Copies(TorchDispatchMode):
    """The copies between devices, (bytes, type, asynchronous)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, torch.dtype, bool]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        sources = [one for one in args if isinstance(one, torch.Tensor)]
        if isinstance(output, torch.Tensor) and len({one.device for one in (output, *sources)}) > 1:
            is_async = bool((kwargs or {}).get("non_blocking", False) or args[2:] == (True,))
            self.seen.append((output.nbytes, output.dtype, is_async))
        return output


class Fed(torch.nn.Module):
    """A toy model that is fed token ids; its forward runs on the fake device, its checks on the CPU."""

    def __init__(self, modes: Modes, *routers: torch.nn.Module) -> None:
        super().__init__()
        with modes:
            self.toy = toy(*routers).to(CUDA)
        self.modes = modes

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        with self.modes:
            return self.toy(torch.zeros(input_ids.numel(), 6, device=CUDA))


class Modes:
    """Fake tensors, whose copies are counted."""

    def __init__(self) -> None:
        self.fake, self.copies = FakeTensorMode(allow_non_fake_inputs=True), Copies()

    def __enter__(self) -> None:
        self.fake.__enter__()
        self.copies.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.copies.__exit__(*error)
        self.fake.__exit__(*error)


class Event:
    """Of a device that is as far as it is told."""

    has_landed = False

    def query(self) -> bool:
        return self.has_landed

    def synchronize(self) -> None:
        self.has_landed = True


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Modes:
    modes = Modes()
    to_device, send = ForwardPlan.on, _late.LateFlags.send

    def on(self: ForwardPlan, device: torch.device) -> Any:
        with modes:
            return to_device(self, CUDA)

    def sent(self: _late.LateFlags) -> None:
        with modes:
            send(self)

    monkeypatch.setattr(ForwardPlan, "on", on)
    monkeypatch.setattr(_late.LateFlags, "send", sent)
    monkeypatch.setattr(_late, "_recorded_event", lambda device: Event())
    return modes


def routes_of(spec: mt.RouteSpec, length: int) -> mt.Routes:
    ids = np.stack([np.arange(length) % 8, (np.arange(length) + 3) % 8], axis=1)[:, None]
    return mt.Routes.from_ids(spec, ids.repeat(len(spec.layers), axis=1), valid=np.arange(length) != 2)


def test_a_forward_is_one_narrow_asynchronous_copy_and_nothing_waits(modes: Modes) -> None:  # case F04
    model = Fed(modes, Router(), Router(), Router())
    session = attach(model)
    routes = [routes_of(session.spec, 4), routes_of(session.spec, 3)]
    modes.copies.seen.clear()
    for _ in range(2):
        with session.replay(routes, attention_mask=[[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]) as replay:
            model(input_ids=torch.zeros(2, 5, dtype=torch.int64))
    assert replay.counts == Counts(replayed=5, missing=2, beyond=2, padding=1)
    ids_and_flags = (3 * 10 * 2 + 10, torch.uint8, True)
    what_routers_found = (3, torch.bool, True)
    assert modes.copies.seen == [ids_and_flags, what_routers_found] * 2


def flag(up: bool) -> torch.Tensor:
    return torch.tensor(up)


def test_what_routers_found_is_read_when_it_has_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [Event(), Event()]
    pending = iter(events)
    monkeypatch.setattr(_late, "_recorded_event", lambda device: next(pending))
    late = _late.LateFlags()
    late.send()
    assert late.take(wait=True) == []
    late.note(3, flag(True))
    late.note(5, flag(False))
    late.send()
    late.note(4, flag(True))
    late.send()
    assert late.take(wait=False) == []
    events[1].has_landed = True
    assert late.take(wait=False) == [4]
    assert late.take(wait=False) == []
    assert late.take(wait=True) == [3]
    assert late.take(wait=True) == []


def test_a_masked_expert_on_a_device_is_the_next_blocks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("qwen3_moe")
    batch = {"input_ids": torch.tensor([[5, 9, 11, 40]])}
    routes = record(model, batch)
    session = attach(model)
    monkeypatch.setattr(_late, "_recorded_event", lambda device: event)
    for how in ("block", "check"):
        event = Event()
        session._note_late(1, flag(True))
        with session.replay(routes):
            model(**batch)  # sends what was noted, as that of its own routers
        with session.replay(routes):
            model(**batch)  # not landed yet
        event.has_landed = how == "block"
        named = r"masked scores.* model\.layers\.1\.mlp\.gate"
        if how == "block":
            with pytest.raises(mt.UnsupportedError, match=named), session.replay(routes):
                model(**batch)
        else:
            with pytest.raises(mt.UnsupportedError, match=named):
                session.check()
        session.check()
        with session.replay(routes):
            model(**batch)


def test_on_the_cpu_the_router_itself_says_so() -> None:
    model = toy(MaskingRouter())
    hidden = torch.randn(3, 6)
    seen: list[Any] = []
    hook = interceptor(find_routers(model)[0])
    handle = hook.add_forcer(lambda *_: torch.tensor([[0, 6]] * 3), lambda *late: seen.append(late))
    with pytest.raises(mt.UnsupportedError, match="expert 6 in row 0"):
        model(hidden)
    handle.remove()
    assert seen == []
