"""What routers on a device found out about a forward, read by the host without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class LateFlags:
    """Flags (layer, bool on a device) of forwards, sent to the host after each and read when they are there.

    Thread rule: one thread at a time.
    """

    def __init__(self) -> None:
        self._noted: list[tuple[int, torch.Tensor]] = []
        self._sent: list[tuple[list[int], torch.Tensor, Any]] = []  # layers, flags on the host, event

    def note(self, layer: int, flag: torch.Tensor) -> None:
        self._noted.append((layer, flag))

    def send(self) -> None:
        """Send what was noted, by one asynchronous copy of each device."""
        noted, self._noted = self._noted, []
        for device in {flag.device for _, flag in noted}:
            here = [(layer, flag) for layer, flag in noted if flag.device == device]
            flags = torch.stack([flag for _, flag in here])
            host = torch.empty(len(here), dtype=torch.bool, pin_memory=torch.cuda.is_available())
            host.copy_(flags, non_blocking=True)
            self._sent.append(([layer for layer, _ in here], host, _recorded_event(device)))

    def take(self, *, wait: bool) -> Sequence[int]:
        """The layers whose flag is up, each once, of what has landed; with `wait`, of all that was sent."""
        layers: set[int] = set()
        still_under_way = []
        for sent in self._sent:
            names, host, event = sent
            if wait:
                event.synchronize()
            elif not event.query():
                still_under_way.append(sent)
                continue
            layers.update(layer for layer, flag in zip(names, host.tolist(), strict=True) if flag)
        self._sent = still_under_way
        return sorted(layers)


def _recorded_event(device: torch.device) -> Any:
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
