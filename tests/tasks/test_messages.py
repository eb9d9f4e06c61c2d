"""Messages through a pipe come whole and in order, whatever their sizes."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from streampack.tasks.messages import MessageReader, send

HUGE = 80 << 20


def received(reader: MessageReader) -> list[bytes]:
    messages: list[Any] = []
    while not messages or messages[-1] != b"end":
        messages += reader.read()
    return messages[:-1]


def test_messages_of_any_size_come_whole_and_in_order() -> None:
    rng = np.random.default_rng(0)
    sizes = [0, 1, 8, 65536, *rng.integers(0, 40, 200), *rng.integers(0, 400_000, 60), 3 << 20]
    sent = [rng.bytes(int(size)) for size in rng.permutation(sizes)]
    ours, theirs = multiprocessing.Pipe(duplex=False)
    writer = threading.Thread(target=lambda: [send(theirs, one) for one in [*sent, b"end"]])
    writer.start()
    messages = received(MessageReader(ours))
    writer.join()
    assert messages == sent


def test_a_message_of_80_mib_comes_whole() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    message = np.arange(HUGE // 8).tobytes()
    writer = threading.Thread(target=lambda: [send(theirs, one) for one in (message, b"end")])
    writer.start()
    (found,) = received(MessageReader(ours))
    writer.join()
    assert found == message


def test_a_pipe_without_a_writer_is_at_its_end_also_in_a_message() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    send(theirs, b"whole")
    theirs._send(b"\x09\0\0\0\0\0\0\0cut")  # type: ignore[attr-defined]
    theirs.close()
    reader = MessageReader(ours)
    assert reader.read() == [b"whole"]
    with pytest.raises(EOFError):
        reader.read()
