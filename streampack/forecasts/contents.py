"""Bytes of content in compressed shards, for estimates.

A part of a compressed shard is a range of its stored bytes, and these hold very different amounts
of content: some kilobytes may inflate to a thousand times as much. So estimates count tokens per
byte of content, and multiply by the content of all shards: decompressed whole up to some megabytes,
otherwise up to an equal share of a limit in up to 64 shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from streampack.files.file_source import FileSource
from streampack.sources.base import Source
from streampack.sources.manifest import Piece
from streampack.sources.span_reader import SpanReader
from streampack.storage.decoded import shared_content
from streampack.storage.decompression import DamagedError, placed_chunks

FEW_SHARDS = 4  # larger shards that are looked into beyond their beginning
MOST_SHARDS = 64  # shards that are decompressed
MOST_STORED = 64 << 20  # stored bytes that are decompressed, of all shards
MOST_CONTENT = 1 << 30  # bytes of content, likewise
SEGMENTS = 16  # parts of one shard, compared for the error


@runtime_checkable
class Compressed(Protocol):
    """A source of files that may be compressed, with weights of stored bytes.

    Attributes:
        weighs_content: True if a position on a shard's weight is in proportion to its content.
    """

    weighs_content: bool

    def codec(self, shard: int) -> str | None:
        """Return the compression of a shard; None if it is plain."""


class Contents:
    """Content of a source's shards, in bytes.

    Args:
        source: the source.
        codecs: compression of each shard; None is uncompressed.
    """

    def __init__(self, source: FileSource, codecs: list[str | None]) -> None:
        self._source, self._codecs = source, codecs
        # By shard: stored bytes, and the content that they gave; the last are the sizes.
        self._marks: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        # The same at some places of larger shards, with an estimated end.
        self._profiles: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._rate = 0.0  # content per stored byte

    @classmethod
    def of(cls, source: Source) -> Contents | None:
        """Return the content of a source; None if no shard is compressed."""
        if isinstance(source, FileSource) and any(_codecs(source)):
            return cls(source, _codecs(source))
        return None

    @staticmethod
    def lies_unevenly(source: Source) -> bool:
        """Return True if equal parts of a shard's weight may hold very different content."""
        if not isinstance(source, Compressed):
            return False
        return not source.weighs_content and any(_codecs(source))

    @property
    def is_known(self) -> bool:
        """True if all compressed shards were decompressed."""
        return len(self._marks) == sum(codec is not None for codec in self._codecs)

    def total(self) -> tuple[float, float]:
        """Return the bytes of content of all shards, and their standard error."""
        stored = self._source.manifest.num_bytes
        packed = np.array([codec is not None for codec in self._codecs])
        plain, left = float(stored[~packed].sum()), float(stored[packed].sum())
        shards = np.flatnonzero(packed & (stored > 0))
        chosen = shards[:: -(-len(shards) // MOST_SHARDS) or 1]
        all_fit = float(stored[chosen].sum()) <= MOST_STORED
        parts: list[tuple[float, float]] = []
        for shard in chosen.tolist():
            most = math.inf if all_fit else MOST_STORED / len(chosen)
            if stored[shard] > most and len(chosen) <= FEW_SHARDS:
                parts += self._spread(shard)
            else:
                parts += self._measured(shard, most, MOST_CONTENT / len(chosen))
        read, content = np.array(parts, dtype=np.float64).reshape(-1, 2).T
        if not read.sum():
            return plain, 0.0
        self._rate, unread = content.sum() / read.sum(), max(1 - read.sum() / left, 0.0)
        residual = ((content - self._rate * read) ** 2).sum() * len(read) / max(len(read) - 1, 1)
        error = math.sqrt(float(residual) * unread) / read.sum() * left
        return plain + self._rate * left, error

    def of_piece(self, piece: Piece) -> float:
        """Return the content of a part of a shard, estimated if it is not decompressed."""
        shard, low, high = piece
        if self._codecs[shard] is None or shard in self._marks:
            return self.between(piece, None, high)
        begin, end = (at / int(self._source.manifest.weights[shard]) for at in (low, high))
        size = int(self._source.manifest.num_bytes[shard])
        if shard not in self._profiles:
            return (end - begin) * size * self._rate
        places, stops = self._profiles[shard]
        return float(np.diff(np.interp([begin * size, end * size], places, stops))[0])

    def before(self, span: SpanReader, cursor: dict[str, Any] | None) -> float:
        """Return the content of a span before a cursor; all of it if the cursor is None."""
        following = len(span.pieces) if cursor is None else cursor.get("next", 0)
        opened = {place[0]: place for place in span.opened(cursor)} if cursor else {}
        read = 0.0
        for number in range(following):
            piece = span.pieces[number]
            _, position, reached = opened.get(number, (number, None, piece[2]))
            if number not in opened or position is not None:
                read += self.between(piece, position, reached)
        return read

    def between(self, piece: Piece, position: int | None, reached: int) -> float:
        """Return the content of a part of a shard, as far as it was read.

        Args:
            piece: the part.
            position: position of the reader, an offset in the content of files of lines; None is
                the part's end.
            reached: the same on the shard's weight.
        """
        shard, low, high = piece
        weight = int(self._source.manifest.weights[shard])
        if self._codecs[shard] is None:
            size = int(self._source.manifest.num_bytes[shard])
            return (reached - low) / weight * size
        if not Contents.lies_unevenly(self._source):
            if shard not in self._marks:
                self._measured(shard)
            return (reached - low) / weight * float(self._marks[shard][1][-1])
        end = self._begin(shard, high / weight) if position is None else position
        return float(max(end - self._begin(shard, low / weight), 0))

    def _measured(
        self, shard: int, most: float = math.inf, most_content: float = math.inf
    ) -> list[tuple[float, float]]:
        """Decompress the beginning of a shard; return pairs of stored bytes and content."""
        marks = []
        for mark in self._ends(shard):
            marks.append(mark)
            if mark[0] >= most or mark[1] >= most_content:
                cuts = np.unique(np.linspace(0, len(marks) - 1, SEGMENTS + 1).astype(int))
                return self._segments(shard, np.array(marks, dtype=np.float64)[cuts])
        table = np.array(marks, dtype=np.int64)
        self._marks[shard] = table[:, 0], table[:, 1]
        return [(float(self._source.manifest.num_bytes[shard]), float(table[-1, 1]))]

    def _spread(self, shard: int) -> list[tuple[float, float]]:
        """Decompress nearly all of a shard into the cache, as its last part requires."""
        shares = np.arange(SEGMENTS) / SEGMENTS
        places = shares * float(self._source.manifest.num_bytes[shard])
        stops = [float(self._begin(shard, share)) for share in shares.tolist()]
        return self._segments(shard, np.array([places, stops]).T)

    def _segments(self, shard: int, marks: NDArray[np.float64]) -> list[tuple[float, float]]:
        """Keep (N, 2) stored bytes and content of a shard's beginning; return their steps."""
        size, (read, content) = float(self._source.manifest.num_bytes[shard]), marks[-1]
        end = content + (size - read) * content / max(read, 1.0)
        self._profiles[shard] = np.append(marks[:, 0], size), np.append(marks[:, 1], end)
        return [(float(stored), float(size)) for stored, size in np.diff(marks, axis=0)]

    def _ends(self, shard: int) -> Iterator[tuple[int, int]]:
        """Yield stored bytes and the content that they gave, up to the shard's end or damage."""
        codec = self._codecs[shard]
        assert codec is not None
        content = 0
        with self._source.open_shard(shard) as file, file.stream() as stream:
            file.plan([(0, file.num_bytes)])
            try:
                for place, chunk in placed_chunks(stream, codec):
                    yield place, content
                    content += len(chunk)
            except DamagedError:  # reported when the shard is read
                yield file.num_bytes, content

    def _begin(self, shard: int, share: float) -> int:
        """Return the offset in the content of a part that begins after a share of the shard."""
        least = math.ceil(share * int(self._source.manifest.num_bytes[shard]))
        if shard in self._marks:
            places, stops = self._marks[shard]
            return int(stops[min(int(np.searchsorted(places, least)), len(stops) - 1)])
        with (
            self._source.open_shard(shard) as file,
            shared_content(
                self._source.storage, file, self._codecs[shard], inside=least > 0, until=None
            ) as content,
        ):
            try:
                return content.skip_stored(least)[0]
            except DamagedError:
                return content.produced


_codecs_of: WeakKeyDictionary[Source, list[str | None]] = WeakKeyDictionary()


def _codecs(source: Source) -> list[str | None]:
    """Return the compression of each shard; nothing for sources without files."""
    if (
        source not in _codecs_of
        and isinstance(source, FileSource)
        and isinstance(source, Compressed)
    ):
        _codecs_of[source] = [source.codec(shard) for shard in range(len(source.manifest))]
    return _codecs_of.get(source, [])
