"""Documents that lie end to end in one array of integers: a format adds where each begins."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.sources.base import Block
from streampack.sources.file_source import FileSource
from streampack.sources.raw_bytes import INTEGER_DTYPES, Spans, integer_block
from streampack.sources.records import DamagedFileError, too_long
from streampack.sources.skips import Skips
from streampack.storage.files import StoredFile
from streampack.storage.remote import FileInfo


class Integers:
    """The integers of a part of a file; slices of it are arrays.

    Args:
        file: that they are in.
        begin: the byte of the first one.
        count: how many there are.
        dtype: of them.
    """

    def __init__(self, file: StoredFile, begin: int, count: int, dtype: str | np.dtype[Any]):
        self._file, self._begin, self._count = file, begin, count
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return int(self.part(number, number + 1)[0])

    def part(self, low: int, high: int, until: int = 0) -> NDArray[Any]:
        """(high - low,) of them, fewer at the end; reading goes on to number `until`."""
        size = self._dtype.itemsize
        high = min(high, self._count)
        bounds = [self._begin + number * size for number in (low, max(high, low), until)]
        found: NDArray[Any] = self._file.array(*bounds).view(self._dtype)
        return found


class Boundaries(Protocol):
    """Where the documents of a file begin. Positions are numbers of the format's own choice."""

    @property
    def end(self) -> int:
        """The position after the last document."""

    def first(self, token: int) -> int:
        """The position of the first document that begins at a token of the file or after it."""

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The next documents, at least one, of those in the positions [start, stop).

        Args:
            start, stop: positions at which documents begin, or `end`.
            most: documents that are wanted.
            most_tokens: no document that begins so many tokens further on is wanted.

        Returns:
            (N + 1,) their positions and (N + 1,) the tokens that they begin at, the last one of
            each being that of what follows. All tokens are inside the file.

        Raises:
            DamagedFileError: the file does not say.
        """


class ByIndex:
    """Documents whose beginnings an index says. Their positions are their numbers.

    Args:
        count: how many there are.
        begins: called with (low, high); (high - low,) int64 tokens at which documents [low, high)
            begin, and number `count` where the file ends. Raises `DamagedFileError`.
        tokens: in the file.
    """

    def __init__(
        self, count: int, begins: Callable[[int, int], NDArray[np.int64]], tokens: int
    ) -> None:
        self.end = count
        self._begins = begins
        self._tokens = tokens

    def first(self, token: int) -> int:
        # All of a damaged file is in some part, so what is wrong with it is found.
        def begin(number: int) -> int:
            return int(self._begins(number, number + 1)[0])

        return bisect_left(range(self.end), token, key=begin) if token > 0 else 0

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = np.arange(start, min(start + most, stop) + 1, dtype=np.int64)
        tokens = self._begins(start, int(positions[-1]) + 1)
        if tokens[0] < 0 or tokens[-1] > self._tokens or bool((tokens[1:] < tokens[:-1]).any()):
            raise DamagedFileError(f"documents {start} to {positions[-1] - 1} contradict its index")
        return positions, tokens


@dataclass(frozen=True, slots=True, eq=False)
class FlatFile:
    """An open file.

    Attributes:
        stored: its bytes.
        kind: the dtype of its tokens, as in `INTEGER_DTYPES`.
        begin: the byte of the first token.
        boundaries: where documents begin.
    """

    stored: StoredFile
    kind: int
    begin: int
    boundaries: Boundaries


class FlatSource(FileSource):
    """A source of such files. A shard weighs its bytes, and is cut at any of them.

    Of a file that has an index, `Manifest.details` holds that under "indexes", as it was listed.
    """

    tokenized = True
    listing_fields: tuple[str, ...] = ("paths",)
    paths: Any

    @abstractmethod
    def open_flat(self, shard: int) -> AbstractContextManager[FlatFile]:
        """A shard, opened inside the context; raises `DamagedFileError` if that cannot be."""

    def index_of(self, shard: int) -> FileInfo | None:
        """The index of a shard."""
        indexes: Sequence[FileInfo | None] = self.manifest.details["indexes"]
        return indexes[shard]

    def will_read(self, shards: Sequence[int]) -> None:
        indexes = [index for shard in shards if (index := self.index_of(shard))]
        self.storage.prefetch(indexes, self.first_bytes)
        super().will_read(shards)

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block | Spans, int, int]]:
        """Blocks of one file; see `ShardedSource.read_shard`."""
        start = position or 0
        try:
            with self.open_flat(shard) as file:
                size = INTEGER_DTYPES[file.kind].itemsize
                bounds = file.boundaries
                if position is None:
                    start = bounds.first(-((file.begin - low) // size))
                stop = bounds.end
                if high < self.manifest.weights[shard]:
                    stop = bounds.first(-((file.begin - high) // size))
                while start < stop:
                    block, start, token = self._block(shard, file, start, stop, high, skips)
                    reached = high if start >= stop else file.begin + token * size
                    yield block, start, max(low, min(reached, high))
        except DamagedFileError as error:
            if index := self.index_of(shard):
                self.storage.forget(index)
            raise self.broken_shard(shard, str(error), start) from error

    def _block(
        self, shard: int, file: FlatFile, start: int, stop: int, until: int, skips: Skips
    ) -> tuple[Block | Spans, int, int]:
        """The documents from a position on, and the position and the token after them.

        Reading goes on to byte `until`.
        """
        reading, size = self.reading, INTEGER_DTYPES[file.kind].itemsize
        held_bytes = 2 if file.kind == 2 else 4  # per id of a block, see `integer_block`
        most, most_tokens = reading.documents_per_block, -(-reading.block_bytes // held_bytes)
        positions, tokens = file.boundaries.ahead(start, stop, most, most_tokens)
        n = min(most, int(np.searchsorted(tokens[1:] - tokens[0], most_tokens)) + 1)
        positions, tokens = positions[: n + 1], tokens[: n + 1]
        counts = np.diff(tokens)
        problems = {
            i: too_long(int(counts[i]) * size, reading.most_bytes)
            for i in np.flatnonzero(counts * size > reading.most_bytes).tolist()
        }
        origin = make_origin(shard, positions[:-1])
        kinds = np.full(len(counts), file.kind, dtype=np.uint8)
        first, last = (file.begin + int(token) * size for token in (tokens[0], tokens[-1]))
        data = file.stored.array(first, last, until)
        starts = (tokens[:-1] - tokens[0]) * size
        block = integer_block(data, starts, counts, kinds, origin, problems)
        self.report_broken(origin, problems, skips)
        return block, int(positions[-1]), int(tokens[-1])
