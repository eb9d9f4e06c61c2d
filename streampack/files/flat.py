"""Documents end to end in one array of integers; a format adds their boundaries."""

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
from streampack.file_info import FileInfo, Range
from streampack.files.file_source import FileSource, ShardBlock
from streampack.files.integer_arrays import INTEGER_DTYPES, integer_block
from streampack.sources.reading import too_long
from streampack.sources.records import DamagedFileError
from streampack.storage.files import StoredFile

_INDEX_BYTES, _BORDER_BYTES = 1 << 20, 16 << 10  # of an index, and searched for an end, at first


class Integers:
    """The integers of a part of a file; slices of it are arrays.

    Args:
        file: the file.
        begin: byte offset of the first integer.
        count: number of integers.
        dtype: dtype of the integers.
    """

    def __init__(self, file: StoredFile, begin: int, count: int, dtype: str | np.dtype[Any]):
        self._file, self._begin, self._count = file, begin, count
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return int(self.part(number, number + 1)[0])

    def part(self, low: int, high: int) -> NDArray[Any]:
        """Return integers [low, high), fewer at the end."""
        size = self._dtype.itemsize
        high = min(high, self._count)
        bounds = [self._begin + number * size for number in (low, max(high, low))]
        values: NDArray[Any] = self._file.array(*bounds).view(self._dtype)
        return values


class Boundaries(Protocol):
    """The beginnings of a file's documents. Positions are integers in the format's own unit."""

    @property
    def end(self) -> int:
        """The position after the last document."""

    def first(self, token: int) -> int:
        """Return the position of the first document that begins at `token` or after it."""

    def before(self, token: int) -> int:
        """Return a position above the documents that begin before `token`, and above no others."""

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the next documents, at least one, in the positions [start, stop).

        Args:
            start: position at which a document begins.
            stop: a result of `before`, or `end`.
            most: the largest number of documents.
            most_tokens: exclude documents that begin this many tokens further on, or more.

        Returns:
            (N + 1,) positions of the documents and (N + 1,) tokens at which they begin; the last
            entry of each is the end of the last document. All tokens are inside the file.

        Raises:
            DamagedFileError: the file or its index does not give valid boundaries.
        """


class ByIndex:
    """Boundaries from an index. The position of a document is its index in the file.

    Args:
        count: number of documents.
        begins: called with (low, high); returns (high - low,) int64 tokens at which documents
            [low, high) begin; document `count` begins at the end of the file. Raises
            `DamagedFileError`.
        tokens: number of tokens in the file.
    """

    def __init__(
        self, count: int, begins: Callable[[int, int], NDArray[np.int64]], tokens: int
    ) -> None:
        self.end = count
        self._begins = begins
        self._tokens = tokens

    def first(self, token: int) -> int:
        # The parts cover all of a damaged file, so one of them finds the damage.
        def begin(number: int) -> int:
            return int(self._begins(number, number + 1)[0])

        return bisect_left(range(self.end), token, key=begin) if token > 0 else 0

    before = first

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
        stored: the file's bytes.
        kind: dtype of the tokens, as a key of `INTEGER_DTYPES`.
        begin: byte offset of the first token.
        boundaries: the beginnings of documents.
    """

    stored: StoredFile
    kind: int
    begin: int
    boundaries: Boundaries


class FlatSource(FileSource):
    """A source of flat files. The weight of a shard is its bytes; it can be cut at any byte.

    `Manifest.details` holds the listed index files under "indexes".
    """

    tokenized = True
    listing_fields: tuple[str, ...] = ("paths",)

    @abstractmethod
    def open_flat(self, shard: int) -> AbstractContextManager[FlatFile]:
        """Open a shard inside the context; raise `DamagedFileError` if it is damaged."""

    def index_of(self, shard: int) -> FileInfo | None:
        """Return the index file of a shard, None if it has none."""
        indexes: Sequence[FileInfo | None] = self.manifest.details["indexes"]
        return indexes[shard]

    def weight_begin(self, shard: int) -> int | None:
        return 0

    def ranges(self, shard: int, low: int, high: int) -> Iterator[Range]:
        listed, index = self._listed_shard(shard), self.index_of(shard)
        if index:
            yield Range(index, 0, _INDEX_BYTES)
        yield Range(listed, 0, _BORDER_BYTES)
        yield Range(listed, max(low - 1, 0), high + _BORDER_BYTES)

    def _stored(self, shard: int) -> Iterator[FileInfo]:
        yield from super()._stored(shard)
        if index := self.index_of(shard):
            yield index

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        with self.open_flat(shard) as file:
            bounds, size = file.boundaries, INTEGER_DTYPES[file.kind].itemsize
            start, stop = position, bounds.end
            if start is None:
                start = bounds.first(-((file.begin - low) // size))
            if high < self.manifest.weights[shard]:
                stop = bounds.before(-((file.begin - high) // size))
            while start < stop:
                read = self._block(shard, file, start, stop)
                start = read.end
                yield read

    def _block(self, shard: int, file: FlatFile, start: int, stop: int) -> ShardBlock:
        """Return the documents from `start` on."""
        reading, size = self.reading, INTEGER_DTYPES[file.kind].itemsize
        held_bytes = 2 if file.kind == 2 else 4  # bytes per id of a block; see `integer_block`
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
        data = file.stored.array(first, last)
        starts = (tokens[:-1] - tokens[0]) * size
        block = integer_block(data, starts, counts, kinds, origin, problems)
        return ShardBlock(block, origin, problems, int(positions[-1]), last)
