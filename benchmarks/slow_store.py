"""A proxy before a store: counts bytes and requests, delays each request, limits the rate."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

_REQUEST = re.compile(rb"(?:^|\r\n\r\n)(?:GET|HEAD) ")
_RANGE = re.compile(rb"(?i)\r\nrange: *bytes=([0-9-]+)")
_PART = 64 << 10


@dataclass
class Request:
    """A request: its path, the range that it asks for, and when it was asked and answered."""

    path: str
    range: str
    asked_s: float
    answered_s: float = math.inf


class Line(NamedTuple):
    """How full a line was.

    Attributes:
        share: of the time, in which it was full; times in which it was idle and no reader waited
            are left out.
        idle_s: seconds of these.
        gaps: times (begin, end) in which it was idle and a reader waited.
    """

    share: float
    idle_s: float
    gaps: list[tuple[float, float]]


def fullness(
    idle: Iterable[tuple[float, float]],
    waits: Iterable[Sequence[Any]] | None,
    since: float,
    until: float,
) -> Line:
    """Return how full a line was in [since, until).

    Args:
        idle: times (begin, end) in which it carried nothing, without overlaps.
        waits: times (begin, end, ...) in which a reader waited; None stands for all the time.
        since, until: the time that is looked at; `idle` does not go beyond `until`.
    """
    idle = [(max(begin, since), end) for begin, end in idle if end > since]
    waited = [(since, until)] if waits is None else _joined(waits)
    parts = ((max(b, low), min(e, high)) for b, e in idle for low, high in waited)
    gaps = [(low, high) for low, high in parts if low < high]
    waited_s = sum(end - begin for begin, end in gaps)
    idle_s = sum(end - begin for begin, end in idle) - waited_s
    return Line(1 - waited_s / max(until - since - idle_s, 1e-9), idle_s, gaps)


def round_trips(requests: Iterable[Request], until: float) -> int:
    """Return the most requests answered by a time that each began after the end of the one before.

    Args:
        requests: requests in the order in which they were asked.
        until: a time of `time.monotonic`.
    """
    chains: list[tuple[float, int]] = []  # the end and the length of one that ends in a request
    for request in requests:
        if request.answered_s <= until:
            before = [length for end, length in chains if end <= request.asked_s]
            chains.append((request.answered_s, 1 + max(before, default=0)))
    return max((length for _, length in chains), default=0)


def _joined(times: Iterable[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return times (begin, end) without overlaps, in order."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted((begin, end) for begin, end, *_ in times):
        if joined and begin <= joined[-1][1]:
            begin, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((begin, end))
    return joined


class SlowStore:
    """A proxy that listens on a free port; made by `slow_store`.

    Attributes:
        port: on 127.0.0.1.
        served: "bytes" that clients received, heads of answers included, and "requests" of them.
        asked: requests, in order.
        idle: times (begin, end) in which the line carried nothing, between answers.
    """

    def __init__(self, behind: int, delay_s: float, bytes_per_s: float) -> None:
        self._behind, self._delay_s, self._bytes_per_s = behind, delay_s, bytes_per_s
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self.served: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.asked: list[Request] = []
        self.idle: list[tuple[float, float]] = []
        self._free_at = time.monotonic()  # when the line has carried all that was sent
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def forget(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self.served.clear()
            self.idle.clear()
            self.asked.clear()

    def line(self, since: float, waits: Sequence[Sequence[Any]] | None = None) -> Line:
        """Return how full the line was from `since`, of `time.monotonic`, to the last answer.

        `waits` are times (begin, end, ...) in which a reader waited; see `fullness`.
        """
        with self._lock:
            idle, until = [*self.idle], self._free_at
        return fullness(idle, waits, since, until)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                store = socket.create_connection(("127.0.0.1", self._behind))
                asked: list[Request] = []  # on this connection
                for source, target, pass_on in (
                    (client, store, partial(self._asked, asked)),
                    (store, client, partial(self._answered, asked)),
                ):
                    arguments = (source, target, pass_on)
                    threading.Thread(target=_pump, args=arguments, daemon=True).start()

    def _asked(self, asked: list[Request], data: bytes) -> None:
        heads = [data[found.start() :] for found in _REQUEST.finditer(data)]
        with self._lock:
            self.served["requests"] += len(heads)
            for head in heads:
                path, part = head.split()[1].decode(), _RANGE.search(head)
                asked.append(Request(path, part[1].decode() if part else "", time.monotonic()))
                self.asked.append(asked[-1])
        time.sleep(self._delay_s * len(heads))

    def _answered(self, asked: list[Request], data: bytes) -> None:
        with self._lock:
            self.served["bytes"] += len(data)
            now = time.monotonic()
            if now > self._free_at:
                self.idle.append((self._free_at, now))
            self._free_at = max(self._free_at, now) + len(data) / self._bytes_per_s
            wait_s = self._free_at - now
            if asked:
                asked[-1].answered_s = self._free_at
        time.sleep(wait_s)


def _pump(source: socket.socket, target: socket.socket, pass_on: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while data := source.recv(_PART):
            pass_on(data)
            target.sendall(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow_store(behind: int, *, delay_s: float, bytes_per_s: float) -> Iterator[SlowStore]:
    """A proxy before the store at a port of this machine.

    Args:
        behind: the store's port.
        delay_s: seconds by which each request is delayed.
        bytes_per_s: of all answers together.
    """
    store = SlowStore(behind, delay_s, bytes_per_s)
    try:
        yield store
    finally:
        store.close()
