"""Threads that wait for a store, and others that wait for them.

No process waits for such threads when it ends. They are daemons, and `end_with_process` ends them
where they wait, because a daemon inside pyarrow would abort the interpreter while it shuts down.

A thread that gets on beats, so that others wait for its bytes instead of fetching them too.
One that starts may take Ctrl-C's signal, and a main thread that waits sees it by looking alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Seconds between two looks for an interrupt or the end of the process, and between two beats that
#: other processes see.
LOOK_S, _BEAT_S = 0.2, 0.5


class Pulse:
    """The last beat of a thread.

    Attributes:
        last_s: its time, of `time.monotonic`.
        seen: functions that show a beat to other processes, as on locks that the thread holds.
    """

    def __init__(self) -> None:
        self.last_s, self.seen = time.monotonic(), list[Callable[[], object]]()
        self._seen_s = 0.0

    def beat(self) -> None:
        """Show that the thread gets on."""
        self.last_s = time.monotonic()
        if self.seen and self.last_s - self._seen_s > _BEAT_S:
            self._seen_s = self.last_s
            for show in self.seen:
                show()


_threads = threading.local()


def pulse() -> Pulse:
    """Return the pulse of this thread."""
    if not hasattr(_threads, "pulse"):
        _threads.pulse = Pulse()
    pulse: Pulse = _threads.pulse
    return pulse


def start_daemon(target: Callable[..., object], *args: Any, name: str) -> threading.Thread | None:
    """Start a daemon thread; return None if the system has none left."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def is_ending() -> bool:
    """Return True if the main thread and all others that a process waits for have ended."""
    return all(thread.daemon or not thread.is_alive() for thread in threading.enumerate())


def end_with_process() -> None:
    """End this thread if the process ends."""
    if is_ending() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def pause(seconds: float) -> None:
    """Sleep; end this thread if the main thread ends."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))
        pulse().beat()
        end_with_process()


def awaited(future: Future[T]) -> T:
    """Return the result of a future, or raise its error."""
    while not future.done():  # also if it was cancelled, unlike the answer of `wait`
        wait([future], timeout=LOOK_S)
    return future.result()


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int = 16) -> list[R]:
    """Return ``[function(item) for item in items]``, with up to `threads` calls at a time.

    After an error, or an interrupt of the caller, no further call begins, and none is waited for.
    """
    items = list(items)
    results = [Future[R]() for _ in items]
    numbers, ended = iter(range(len(items))), threading.Event()

    def work() -> None:
        for number in numbers:
            if ended.is_set():
                return
            try:
                results[number].set_result(function(items[number]))
            except BaseException as error:  # raised by the caller
                results[number].set_exception(error)

    wanted = min(threads, len(items)) if len(items) > 1 else 0
    started = [start_daemon(work, name="streampack-request") for _ in range(wanted)]
    if not any(started):
        return [function(item) for item in items]
    try:
        return [*map(awaited, results)]
    finally:
        ended.set()
