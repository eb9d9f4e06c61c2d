"""Messages between processes: what arrives is what was sent, whatever the size of its arrays."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.workers.messages import receive_message, send_message


def sent(*messages: Any) -> list[Any]:
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def send() -> None:
        for message in messages:
            send_message(sender, message)
        sender.close()

    thread = threading.Thread(target=send)
    thread.start()
    found = [receive_message(receiver) for _ in messages]
    with pytest.raises(EOFError):
        receive_message(receiver)
    thread.join()
    receiver.close()
    return found


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 300_000), max_size=100), st.sampled_from(["u2", "i4", "?"]))
def test_arrays_of_any_size_and_number_arrive_in_order(sizes: list[int], dtype: str) -> None:
    arrays = [(np.arange(size) % 251).astype(dtype) for size in sizes[:5] + [s % 9 for s in sizes]]
    first, second = sent({"arrays": arrays, "name": "x"}, arrays[::-1])
    assert first["name"] == "x"
    for found, expected in ((first["arrays"], arrays), (second, arrays[::-1])):
        assert [a.dtype for a in found] == [a.dtype for a in expected]
        assert all(map(np.array_equal, found, expected))


def test_arrays_that_arrive_are_the_receivers_to_write() -> None:
    array = np.arange(10)
    strided = np.arange(20).reshape(4, 5)[:, ::2]
    ((first, second),) = sent((array, strided))
    first += 1
    assert np.array_equal(first, array + 1)
    assert np.array_equal(second, strided)


def test_a_writer_that_ends_inside_a_message_is_an_end_of_file() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.send((b"whatever", [100]))
    sender.close()
    with pytest.raises(EOFError):
        receive_message(receiver)
