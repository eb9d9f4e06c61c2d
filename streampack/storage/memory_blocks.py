"""Blocks of remote files in the memory of a process, for a storage that keeps none on disk.

Blocks that were read stay until others need their room, since readers of columns and of headers
come back to them. Each process fetches the blocks that it reads by itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from streampack.storage.blocks import BLOCK_BYTES, BlockCache

_LEAST_BLOCKS = 64  # in memory without reading ahead, for a request of a few readers
_Blocks = OrderedDict[tuple[str, int], bytes]  # by key of the file and number of the block


class MemoryBlocks(BlockCache):
    """The blocks of a process; files of servers without ranges are in the folder.

    Args:
        folder, limit_bytes: as for `BlockCache`.
        most_bytes: bytes of blocks in memory, beside the blocks in use.
    """

    def __init__(self, folder: Path, limit_bytes: int, most_bytes: int) -> None:
        super().__init__(folder, limit_bytes)
        self._most = max(most_bytes // BLOCK_BYTES, _LEAST_BLOCKS)
        self.ahead_bytes = most_bytes * 3 // 4  # the rest is for readers that miss a block
        self._lock_blocks = threading.Lock()
        self._unread, self._read = _Blocks(), _Blocks()

    def get(
        self,
        key: str,
        number: int,
        size: int | None = None,
        *,
        verify: bool = True,
        mark: bool = True,
    ) -> memoryview | None:
        block = key, number
        with self._lock_blocks:
            content = self._unread.pop(block, None) or self._read.pop(block, None)
            if content is not None:
                self._read[block] = content  # as the one read last
                return memoryview(content)
        return super().get(key, number, size, verify=verify, mark=mark)

    def missing(self, key: str, first: int, end: int) -> list[int]:
        with self._lock_blocks:
            held = [
                number
                for number in range(first, end)
                if (key, number) in self._unread or (key, number) in self._read
            ]
        return sorted({*super().missing(key, first, end)} - {*held})

    def put(self, key: str, number: int, content: bytes | memoryview) -> None:
        """Hold consecutive blocks; blocks read longest ago make room first, then the oldest."""
        with self._lock_blocks:
            for at, begin in zip(count(number), range(0, len(content), BLOCK_BYTES)):
                self._unread[key, at] = bytes(content[begin : begin + BLOCK_BYTES])
            while len(self._unread) + len(self._read) > self._most:
                (self._read or self._unread).popitem(last=False)

    @contextmanager
    def fetching(self, key: str, first: int, end: int, *, wait_s: float = 0) -> Iterator[int]:
        """Enter a context for a fetch; other processes have blocks of their own."""
        yield end

    def forget(self, key: str, blocks: int, *, first: int = 0) -> bool:
        existed = super().forget(key, blocks, first=first)
        with self._lock_blocks:
            for held in (self._unread, self._read):
                for number in range(first, blocks):
                    existed |= held.pop((key, number), None) is not None
        return existed
