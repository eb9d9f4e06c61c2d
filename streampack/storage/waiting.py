"""Threads that wait for a store.

No process waits for such threads when it ends. They are daemons, and `end_with_process` ends them
where they wait, because a daemon inside pyarrow would abort the interpreter while it shuts down.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 0.2


def start_daemon(target: Callable[..., object], *args: Any, name: str) -> threading.Thread | None:
    """Start a daemon thread; return None if the system has none left."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def end_with_process() -> None:
    """End this thread if the main thread has ended."""
    main = threading.main_thread()
    if not main.is_alive() and threading.current_thread() is not main:
        raise SystemExit


def pause(seconds: float) -> None:
    """Sleep; end this thread if the main thread ends."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        end_with_process()


def in_daemons(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Return ``[function(item) for item in items]``, with up to `threads` calls at a time."""
    numbers, ended = itertools.count(), threading.Event()
    results: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while not ended.is_set() and (number := next(numbers)) < len(items):
            try:
                results.put((number, function(items[number]), None))
            except BaseException as error:  # raised by the caller
                results.put((number, None, error))

    name = "streampack-request"
    started = [start_daemon(work, name=name) for _ in range(min(threads, len(items)))]
    if not any(started):
        return [function(item) for item in items]
    done: dict[int, tuple[Any, BaseException | None]] = {}
    values: list[R] = []
    try:
        while len(values) < len(items):
            if len(values) in done:
                result, error = done.pop(len(values))
                if error is not None:  # the first one in order, as without threads
                    raise error
                values.append(result)
                continue
            number, result, error = results.get()
            done[number] = result, error
    finally:
        ended.set()
    return values
