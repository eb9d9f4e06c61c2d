"""A proxy before a store: counts bytes and requests, delays each request, limits the rate."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_REQUEST = re.compile(rb"(?:^|\r\n\r\n)(?:GET|HEAD) ")
_PART = 64 << 10


class SlowStore:
    """A proxy that listens on a free port; made by `slow_store`.

    Attributes:
        port: on 127.0.0.1.
        served: "bytes" that clients received, heads of answers included, and "requests" of them.
        idle: times (begin, end) in which the line carried nothing, between answers.
    """

    def __init__(self, behind: int, delay_s: float, bytes_per_s: float) -> None:
        self._behind, self._delay_s, self._bytes_per_s = behind, delay_s, bytes_per_s
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self.served: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.idle: list[tuple[float, float]] = []
        self._free_at = time.monotonic()  # when the line has carried all that was sent
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def line(self, since: float, least_s: float) -> tuple[float, list[float]]:
        """The share of the time from `since` to the last answer in which the line was full.

        Args:
            since: a time of `time.monotonic`.
            least_s: shortest gap to tell.

        Returns:
            The share, and the lengths of the gaps of `least_s` or more.
        """
        with self._lock:
            gaps = [end - max(begin, since) for begin, end in self.idle if end > since]
            spent = self._free_at - since
        return 1 - sum(gaps) / spent, [gap for gap in gaps if gap >= least_s]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                store = socket.create_connection(("127.0.0.1", self._behind))
                for source, target, pass_on in (
                    (client, store, self._asked),
                    (store, client, self._answered),
                ):
                    arguments = (source, target, pass_on)
                    threading.Thread(target=_pump, args=arguments, daemon=True).start()

    def _asked(self, data: bytes) -> None:
        found = len(_REQUEST.findall(data))
        with self._lock:
            self.served["requests"] += found
        time.sleep(self._delay_s * found)

    def _answered(self, data: bytes) -> None:
        with self._lock:
            self.served["bytes"] += len(data)
            now = time.monotonic()
            if now > self._free_at:
                self.idle.append((self._free_at, now))
            self._free_at = max(self._free_at, now) + len(data) / self._bytes_per_s
            wait_s = self._free_at - now
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
