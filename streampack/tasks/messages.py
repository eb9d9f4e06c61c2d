"""Messages through a pipe: eight bytes with the length, then the message.

A read takes all bytes in the pipe and never waits for the rest of a message, so that a writer that
stops or dies in the middle of one keeps nobody waiting.
"""

from __future__ import annotations

import os
import struct
from multiprocessing.connection import Connection

_HEAD = struct.Struct("<Q")
_READ_BYTES = 1 << 18


def send(pipe: Connection, message: bytes) -> None:
    """Write a message, and wait while the pipe is full."""
    parts = [_HEAD.pack(len(message)), message]
    written = os.writev(pipe.fileno(), parts)
    if written < _HEAD.size + len(message):  # it was stopped, or is larger than one call may write
        left = memoryview(b"".join(parts))[written:]
        while left:
            left = left[os.write(pipe.fileno(), left) :]


class MessageReader:
    """Reads the messages of a pipe.

    Args:
        pipe: the end to read from.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._ahead = memoryview(bytearray(_READ_BYTES))
        self._in_head = True
        self._part = memoryview(bytearray(_HEAD.size))  # head or message that is being read
        self._missing = self._part

    def read(self) -> list[memoryview]:
        """Read once from a pipe that holds something; return the messages that are now complete.

        Raises:
            EOFError: nobody writes any more.
        """
        count = os.readv(self._pipe.fileno(), [self._missing, self._ahead])
        if not count:
            raise EOFError
        more = self._ahead[: max(count - len(self._missing), 0)]
        self._missing = self._missing[count:]
        messages = []
        while not self._missing:
            if not self._in_head:
                messages.append(self._part)
            size = _HEAD.unpack(self._part)[0] if self._in_head else _HEAD.size
            self._in_head = not self._in_head
            self._part = memoryview(bytearray(size))
            used = min(size, len(more))
            self._part[:used] = more[:used]
            self._missing, more = self._part[used:], more[used:]
        return messages
