"""Exposed stalls: waits of a loop in which its device had no work either."""

from __future__ import annotations

from collections import deque

import torch


class Stalls:
    """The exposed part of waits.

    A CUDA device may still compute while the loop waits. So an event is recorded before and after
    each wait: the time between them is the time in which the current stream was idle. Without an
    initialised CUDA device every wait is exposed.

    Attributes:
        exposed_s: seconds in waits that the device has reached.
    """

    def __init__(self) -> None:
        self.exposed_s = 0.0
        self._before: torch.cuda.Event | None = None
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        """Record that a wait begins."""
        self._before = _recorded() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def end(self, waited_s: float) -> None:
        """Record that the wait has ended, after `waited_s` seconds."""
        if self._before is None:
            self.exposed_s += waited_s
            return
        self._pending.append((self._before, _recorded()))
        self.collect()

    def collect(self) -> None:
        """Add the waits that the device has reached; never wait for it."""
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            before, after = self._pending.popleft()
            self.exposed_s += before.elapsed_time(after) / 1000


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event
