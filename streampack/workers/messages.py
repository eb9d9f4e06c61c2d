"""Messages between a worker and the loop: arrays travel beside the pickle, and are not copied.

A message is its pickle (protocol 5, PEP 574), which names the sizes of its arrays, and then
their bytes as they are. The loop reads them into the memory where they stay, without the
interpreter lock, so that a thread that receives does not hold up the loop beside it.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_MOST_BUFFERS = 64  # of one system call; POSIX promises 16, Linux and macOS take 1,024


def send_message(connection: Connection, message: Any) -> None:
    """Write a message to a pipe, whole.

    Raises:
        BrokenPipeError: nobody reads.
    """
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send((body, [view.nbytes for view in views]))
    left = [view for view in views if view.nbytes]
    while left:
        _advance(left, os.writev(connection.fileno(), left[:_MOST_BUFFERS]))


def receive_message(connection: Connection) -> Any:
    """Read a message that `send_message` wrote.

    Raises:
        EOFError: the writer ended, between messages or inside one.
    """
    body, sizes = connection.recv()
    buffers = [np.empty(size, dtype=np.uint8) for size in sizes]
    left = [memoryview(buffer) for buffer in buffers if buffer.nbytes]  # type: ignore[arg-type]
    while left:
        count = os.readv(connection.fileno(), left[:_MOST_BUFFERS])
        if count == 0:
            raise EOFError
        _advance(left, count)
    return pickle.loads(body, buffers=buffers)  # noqa: S301


def _advance(left: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes."""
    while count:
        if count < left[0].nbytes:
            left[0] = left[0][count:]
            return
        count -= left.pop(0).nbytes
