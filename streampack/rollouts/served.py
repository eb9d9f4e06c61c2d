"""Samplers in other processes of this machine: the methods of a queue over a local socket.

`multiprocessing`'s manager carries the calls, with a thread for each thread of a sampler. A file
that only this user can read names the socket and the key to it.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue as queues
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING, Any

from streampack.errors import ConfigError, RankError
from streampack.rollouts.answer import Answer
from streampack.rollouts.ticket import Ticket

if TYPE_CHECKING:
    from streampack.rollouts.queue import Queue

_SLICE_S = 1.0  # a process that is killed while it waits takes a ticket for no longer
_METHODS = ("get", "put", "reject", "give_back")


def serve(queue: Queue, address: str) -> None:
    """Let other processes of this machine take tickets, through `RemoteQueue(address)`.

    Args:
        queue: the queue of this process.
        address: path of the file that samplers read; an earlier one is replaced.

    Raises:
        ConfigError: the file cannot be written.
    """
    key = secrets.token_bytes(32)
    server = _manager(None, key, queue).get_server()
    about = {"socket": server.address, "key": key.hex()}
    part = f"{address}.{os.getpid()}"
    try:
        with open(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            json.dump(about, file)
        os.replace(part, address)
    except OSError as error:
        raise ConfigError(
            f"address must be the path of a file to be written, got {address!r}: {error}",
            "Pass a path in a local folder.",
            setting="address",
        ) from error
    threading.Thread(target=server.serve_forever, name="streampack-rollouts", daemon=True).start()


class RemoteQueue:
    """The queue of another process of this machine, for samplers.

    Args:
        address: path that was given to `serve`.

    Raises:
        RankError: the process of the queue has ended; also raised by all methods. Connect anew
            once it is resumed: the tickets of before are refused then.
    """

    def __init__(self, address: str) -> None:
        with _connected(address):
            with open(address) as file:
                about = json.load(file)
            manager = _manager(about["socket"], bytes.fromhex(about["key"]), None)
            manager.connect()
            self._queue: Any = manager.queue()  # type: ignore[attr-defined]
        self._address = address

    def get(self, block: bool = True, timeout: float | None = None) -> Ticket | None:
        """Return the next prompt to be sampled, or None at the end; see `Queue.get`."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left_s = end - time.monotonic()
            try:
                ticket: Ticket | None = self._call("get", block, max(min(left_s, _SLICE_S), 0))
                return ticket
            except queues.Empty:
                if not block or left_s <= _SLICE_S:
                    raise

    async def aget(self) -> Ticket | None:
        """Return the next prompt to be sampled; see `Queue.aget`."""
        while True:
            try:
                return await asyncio.to_thread(self.get, True, _SLICE_S)
            except queues.Empty:
                pass

    def put(self, ticket: Ticket, answer: Answer | Sequence[Answer]) -> bool:
        """Add one answer to the group of a ticket; see `Queue.put`."""
        return bool(self._call("put", ticket, answer))

    def reject(self, ticket: Ticket, reason: str = "") -> bool:
        """Drop the group of a ticket for good; see `Queue.reject`."""
        return bool(self._call("reject", ticket, reason))

    def give_back(self, ticket: Ticket, reason: str = "") -> bool:
        """Return a ticket that cannot be sampled; see `Queue.give_back`."""
        return bool(self._call("give_back", ticket, reason))

    def _call(self, method: str, *arguments: Any) -> Any:
        with _connected(self._address):
            return getattr(self._queue, method)(*arguments)


def _manager(address: str | None, key: bytes, queue: Queue | None) -> BaseManager:
    class Manager(BaseManager):
        pass

    Manager.register("queue", callable=lambda: queue, exposed=_METHODS)
    return Manager(address=address, authkey=key)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise RankError(
            f"The process that serves rollouts at {address} does not answer: "
            f"{error or type(error).__name__}",
            "Start or resume the trainer, and connect anew.",
        ) from error
