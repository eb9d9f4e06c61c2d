"""Members: messages between the processes of one membership, each with a time limit.

A membership brings its own connection: a process group made for it, or keys of a store. Nothing is
sent through an older one, in which the dead still are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

from streampack.distributed.kept import keep, release
from streampack.errors import RankError, first_line
from streampack.job.ending import OtherPlaceError

TIMEOUT_S = 60.0
FIRST_BYTES = 1024  # of a message in a group's first collective; longer ones need a second
_LENGTH = struct.Struct("<q")
_TOTAL = struct.Struct("<qq")


class Members(Protocol):
    """The processes of one membership."""

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all members, in the same order for each of them.

        Raises:
            RankError: a member died, or sent nothing within the limit.
        """
        ...


class Single:
    """A membership of one process."""

    def gather(self, message: bytes) -> list[bytes]:
        """Return the message."""
        return [message]


class GroupMembers:
    """Members that are connected by a process group made for them.

    Example:
        >>> import torch.distributed as dist
        >>> store = dist.HashStore()
        >>> group = dist.ProcessGroupGloo(store, 0, 1)  # rank 0 of 1
        >>> GroupMembers(group).gather(b"hello")
        [b'hello']

    Args:
        group: a process group that gathers CPU tensors, such as gloo's
            `ProcessGroupGloo`. Every process in it must be a member, and alive. Gloo tells a
            death only to the rank's neighbours in the group; the others notice once these drop it.
        timeout_s: seconds to wait for the others in one exchange. The group's own timeout holds
            too.
    """

    def __init__(self, group: Any, *, timeout_s: float = TIMEOUT_S) -> None:
        self._group: Any = group
        self._timeout_s = timeout_s

    def gather(self, message: bytes) -> list[bytes]:
        """See `Members`."""
        with _as_rank_error(self._timeout_s, self.close):
            if self._group is None:
                raise RuntimeError("the connection is closed")
            head = _LENGTH.pack(len(message)) + message[: FIRST_BYTES - _LENGTH.size]
            heads = self._gather(head.ljust(FIRST_BYTES, b"\0"))
            lengths = [_LENGTH.unpack_from(each)[0] for each in heads]
            whole = [each[_LENGTH.size :] for each in heads]
            if (longest := max(lengths)) > FIRST_BYTES - _LENGTH.size:
                whole = self._gather(message.ljust(longest, b"\0"))
            return [each[:length] for each, length in zip(whole, lengths, strict=True)]

    def close(self) -> None:
        """Drop the group, so that members that wait for this process get an error at once.

        A failed exchange does so by itself. After an error of the loop's own collectives call this,
        and drop your references to the group.
        """
        self._group = None

    def _gather(self, message: bytes) -> list[bytes]:
        sent = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self._group.size())]
        work = self._group.allgather([received], [sent], AllgatherOptions())
        # Whoever drops a group waits for its collectives, so it is kept, too, while one is pending.
        keep(work, (sent, received, self._group))
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        finally:
            if work.is_completed():
                release(work, (sent, received))
        return [each.numpy().tobytes() for each in received]


class StoreMembers:
    """Members that are connected by a store, such as a `TCPStore` of a process that outlives them.

    An exchange takes about a millisecond, and a death is noticed when the time limit is over.

    Example:
        >>> import torch.distributed as dist
        >>> StoreMembers(dist.HashStore(), "members/1", 0, 1).gather(b"hello")
        [b'hello']

    Args:
        store: the store. It must live longer than any member.
        name: prefix of the keys; another one for each membership.
        index: index of this process among the members.
        count: number of members.
        timeout_s: seconds to wait for the others in one exchange.
    """

    def __init__(
        self, store: Any, name: str, index: int, count: int, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._store = store
        self._name = name
        self._index, self._count = index, count
        self._timeout_s = timeout_s
        self._number = 0

    def gather(self, message: bytes) -> list[bytes]:
        """See `Members`."""
        with _as_rank_error(self._timeout_s):
            keys = [self._key(self._number, index) for index in range(self._count)]
            self._store.set(keys[self._index], message)
            self._store.wait(keys, timedelta(seconds=self._timeout_s))
            messages: list[bytes] = [self._store.get(key) for key in keys]
            if self._number:  # all members have read the messages before these
                self._store.delete_key(self._key(self._number - 1, self._index))
            self._number += 1
            return messages

    def _key(self, number: int, index: int) -> str:
        return f"{self._name}/{number}/{index}"


class MemberRanks:
    """Collectives over members, for `streampack.job.ending.Ranks`."""

    def __init__(self, members: Members) -> None:
        self.members = members

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """See `Ranks`."""
        answers = [_TOTAL.unpack(each) for each in self.members.gather(_TOTAL.pack(count, same))]
        if len({other for _, other in answers}) > 1:
            raise OtherPlaceError
        return lambda: sum(number for number, _ in answers)

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """See `Ranks`."""
        sent = self.members.gather(np.ascontiguousarray(values).tobytes())
        if {len(each) for each in sent} != {values.nbytes}:
            raise OtherPlaceError
        every = [np.frombuffer(each, dtype=np.float32) for each in sent]
        highest: NDArray[np.float32] = np.maximum.reduce(every).reshape(values.shape)
        return lambda: highest


@contextmanager
def _as_rank_error(timeout_s: float, close: Callable[[], None] = lambda: None) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        close()
        raise RankError(
            f"A rank died, left its loop, or sent nothing for {timeout_s:g} s: {first_line(error)}",
            "Call set_ranks with the ranks that are alive, and iterate once more.",
            setting="members",
        ) from error
