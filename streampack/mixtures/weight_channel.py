"""WeightChannel: changes of weights on their way from a loop to lanes that run ahead of it.

The values of leaves are fixed when lanes are opened. Weights change later, so lanes read them
through this channel, a file without a name that workers inherit: the loop writes, lanes only read.

No change is late:
  1. The loop writes a limit: the last batch that it got, and `AHEAD_TURNS` turns of all lanes.
  2. A lane of a worker begins a round at batch n only below the limit; otherwise it waits. The loop
     needs no batch that is two turns or more after the last one it got, so it never waits for a
     lane that waits for it. Lanes of the loop's process begin rounds only when they are asked.
  3. The loop writes a change only if it holds from a batch that the limit has not reached; for an
     earlier one the lanes are reopened. So no lane has begun a round that should know the
     change, and the file has the change before it has a limit that lets a lane begin one.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import IO, Any

from streampack.mixtures.token_shares import WEIGHTS, WeightChange, changes_of

#: Turns of all lanes after the last batch that the loop got, in which workers may begin rounds.
AHEAD_TURNS = 4
_NO_LIMIT = 1 << 62
_LIMIT = struct.Struct("<QQ")  # the number twice, so that a reader notices half a write
_HEAD = struct.Struct("<II")  # length of the changes as JSON, and their CRC-32
_WAIT_S = 0.001


class WeightChannel(Mapping[str, Any]):
    """Values of leaves by key, in which the changes of weights are up to date.

    Args:
        values: values when the lanes are opened.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._head = b""  # of the changes in `_values`
        self._texts: dict[int, tuple[Any, str]] = {}  # changes and their JSON, by identity
        self._set_limit(_NO_LIMIT)
        self._write(values.get(WEIGHTS, ()))

    def __del__(self) -> None:
        self._file.close()

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> Any:
        """Send the file to a worker that is not forked; anything else gets the values alone."""
        if get_spawning_popen() is None:
            return dict, (self._values,)
        return _opened, (self._values, reduction.DupFd(self._file.fileno()))

    # ------------------------------------------------------------------ the loop

    def announce(self, changes: Sequence[Any]) -> None:
        """Replace the changes, of which no lane may have missed a new one.

        Args:
            changes: the changes as a state has them.
        """
        self._values[WEIGHTS] = changes
        self._write(changes)

    def follow(self, number: int, turn: int) -> None:
        """Set the limit of lanes in workers after the loop got batch `number`.

        Args:
            number: index of the batch in the run.
            turn: batches in a turn of all lanes, or in a step if that is more.
        """
        limit = number + AHEAD_TURNS * turn
        if limit > self.limit or self.limit == _NO_LIMIT:
            self._set_limit(limit)

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        os.pwrite(self._file.fileno(), _LIMIT.pack(limit, limit), 0)

    def _write(self, changes: Sequence[Any]) -> None:
        known = self._texts  # a call adds one change to many
        self._texts = {id(c): known.get(id(c)) or (c, json.dumps(c)) for c in changes}
        text = f"[{','.join(text for _, text in self._texts.values())}]".encode()
        self._head = _HEAD.pack(len(text), zlib.crc32(text))
        os.pwrite(self._file.fileno(), self._head + text, _LIMIT.size)

    # ------------------------------------------------------------------ lanes

    def changes(self, number: int) -> list[WeightChange]:
        """Return the changes for a round from batch `number` on, once all of them are known."""
        while number >= self._read_limit():
            time.sleep(_WAIT_S)
        self._read()
        return changes_of(self._values)

    def _read_limit(self) -> int:
        while True:
            limit, copy = _LIMIT.unpack(os.pread(self._file.fileno(), _LIMIT.size, 0))
            if limit == copy:
                return int(limit)

    def _read(self) -> None:
        """Bring the changes up to date, unless the file has not changed."""
        file = self._file.fileno()
        while (head := os.pread(file, _HEAD.size, _LIMIT.size)) != self._head:
            size, digest = _HEAD.unpack(head)
            text = os.pread(file, size, _LIMIT.size + _HEAD.size)
            if zlib.crc32(text) == digest:  # otherwise the loop is writing
                self._values[WEIGHTS], self._head = json.loads(text), head


def _opened(values: Mapping[str, Any], sent: Any) -> WeightChannel:
    """Open the channel in a worker that was not forked."""
    channel = WeightChannel.__new__(WeightChannel)
    channel._values, channel._head = dict(values), b""
    channel._file = open(sent.detach(), "r+b", buffering=0)  # noqa: SIM115
    return channel
