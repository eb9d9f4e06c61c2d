"""The lengths of a run's documents in files, from which `ledger.replay` makes its batches again.

A run with ``ledger=`` writes a record for each block that a lane reads: the position before it,
the block's part and position, the position after it, and of its documents, as they come from all
stages, places, lengths and integer fields.

A record is keyed by the settings that reading depends on, the lane, and the position. Reading from
a position gives the same block each time, so records of several processes, of resumes and of
replays may repeat each other. A process appends to files of its own, each record at once, so one
that is killed loses the blocks that it had not read to the end. The numbers of a column take the
fewest bytes that hold all of them, above the lowest one, and none if they are equal.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.deals.spans import LanePart
from streampack.documents.blocks import Documents
from streampack.streams.base import LaneStream
from streampack.streams.stream import DocumentStream

logger = logging.getLogger(__name__)

#: Version of the records, a part of their key.
_VERSION = 2
#: Bytes of a number in a record.
_WIDTHS = (0, 1, 2, 4, 8)
#: Size of a record, CRC-32 of its rest, and the hash of its position.
_HEAD = struct.Struct("<II16s")
#: Index of a part, and the position in it; None is its beginning.
Position = tuple[int, Any]


def lengths_folder() -> Path:
    """Return the folder of the records of all runs on this host, in the cache folder."""
    from streampack.storage.blocks import default_cache_dir

    return default_cache_dir() / "lengths"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a lane, as its stream prepared it.

    Attributes:
        parts: `identity_of` each part from the position before the block up to its own.
        place: position at which it begins; after: position in the part after it.
        chunks: for each chunk with documents, their number and the fraction of the block's
            documents that is not prepared after it.
        names: names of the integer fields.
        columns: (4 + fields, N) int64: source, shard, index and length of N documents, and fields.
    """

    parts: list[Any]
    place: Position
    after: Any
    chunks: list[tuple[int, float]]
    names: list[str]
    columns: NDArray[np.int64]

    def packed(self) -> bytes:
        """Return the block as bytes."""
        numbers, sizes = [], []
        least, most = (each(axis=1).tolist() for each in (self.columns.min, self.columns.max))
        for column, low, high in zip(self.columns, least, most, strict=True):
            width = next(n for n in _WIDTHS if high - low < 1 << 8 * n)
            sizes.append((low, width))
            numbers.append((column - low).astype(f"<u{width}").tobytes() if width else b"")
        head = [self.parts, self.place, self.after, self.chunks, self.names, sizes]
        return json.dumps(head).encode() + b"\n" + b"".join(numbers)

    @classmethod
    def unpacked(cls, data: bytes) -> Block:
        """Return the block from its bytes."""
        head, _, numbers = data.partition(b"\n")
        parts, place, after, chunks, names, sizes = json.loads(head)
        count, at = sum(number for number, _ in chunks), 0
        columns = np.empty((len(sizes), count), dtype=np.int64)
        for column, (low, width) in zip(columns, sizes, strict=True):
            column[:] = low
            if width:
                column += np.frombuffer(numbers, f"<u{width}", count, at).astype(np.int64)
            at += width * count
        return cls(parts, tuple(place), after, chunks, names, columns)


def identity_of(stream: DocumentStream, index: int, part: LanePart) -> Any:
    """Return the rules of a part by which the same documents are in it, as JSON holds them."""
    span = None if part.span is None else list(part.span)
    return [part.epoch, span, stream._parts.entries(index)]


def _key(position: Position) -> bytes:
    text = json.dumps(position, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).digest()


def _folder(folder: Path, stream: DocumentStream) -> Path:
    """Return the folder of a source's records, by all settings that reading depends on."""
    config, number = stream._config, stream._number
    described = {
        k: v for k, v in config.preparation.described.items() if k not in ("exclude", "caps")
    }
    settings = [
        _VERSION, config.source.describe(), config.preparation.described_by(number), described,
        config.seed, config.shuffle, config.lanes, number,
    ]  # fmt: skip
    text = json.dumps(settings, sort_keys=True, default=str)
    return folder / blake2b(text.encode(), digest_size=16).hexdigest()


class Records:
    """The records of one lane and source, in all files of a folder."""

    def __init__(self, folder: Path, lane: int) -> None:
        self._found: dict[bytes, tuple[mmap.mmap, int, int]] = {}
        for path in sorted(folder.glob(f"{lane}-*.lengths")):
            with path.open("rb") as file, suppress(ValueError):  # an empty file
                self._scan(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _scan(self, data: mmap.mmap) -> None:
        at = 0
        while at + _HEAD.size <= len(data):
            size, crc, key = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            if at + size > len(data) or zlib.crc32(key + data[at : at + size]) != crc:
                return  # its process was killed meanwhile
            self._found[key] = data, at, size
            at += size

    def get(self, position: Position) -> Block | None:
        """Return the block that is read next from a position; None if it is not known."""
        entry = self._found.get(_key(position))
        if entry is None:
            return None
        data, at, size = entry
        return Block.unpacked(data[at : at + size])


@dataclass(slots=True)
class Writer:
    """Appends the records of one lane and source, to a file that the first one makes."""

    folder: Path
    lane: int
    _file: IO[bytes] | None = None
    _failed: bool = False
    _warned: ClassVar[set[Path]] = set()

    def put(self, position: Position, block: Block) -> None:
        """Append a block that is read next from a position; warn once if it is not possible."""
        if self._failed:
            return
        try:
            data, key = block.packed(), _key(position)
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                name = f"{self.lane}-{os.getpid()}-{token_hex(4)}.lengths"
                self._file = (self.folder / name).open("xb", buffering=0)
            self._file.write(_HEAD.pack(len(data), zlib.crc32(key + data), key) + data)
        except (OSError, TypeError) as error:  # a cursor may be no JSON
            self._failed, root = True, self.folder.parent
            if root not in self._warned:
                self._warned.add(root)
                logger.warning("Lengths for the ledger are not kept in %s: %s.", root, error)


@dataclass(frozen=True, slots=True)
class KeptLengths:
    """Wrapper that writes the records of a lane; see `LaneConfig`.

    Attributes:
        folder: folder of the records of all runs.
    """

    folder: Path

    def __call__(self, stream: LaneStream, state: Mapping[str, Any] | None) -> LaneStream:
        """Return the same stream, with its blocks noted."""
        inner = stream
        while hasattr(inner, "inner"):  # an `AroundStream`
            inner = inner.inner
        members = [member.stream for member in getattr(inner, "_members", ())] or [inner]
        for each in members:
            if type(each) is DocumentStream:  # not the one of an order, which sees contents
                each._blocks = self._blocks(each, each._blocks, _folder(self.folder, each))
        return stream

    def _blocks(
        self, stream: DocumentStream, blocks: Iterator[Documents | None], folder: Path
    ) -> Iterator[Documents | None]:
        """Return the blocks of a stream with records in a folder."""
        return noted(stream, blocks, Writer(folder, stream._lane))


def noted(
    stream: DocumentStream, blocks: Iterator[Documents | None], writer: Writer
) -> Iterator[Documents | None]:
    """Yield the blocks of a stream, and write the records of blocks that are read to the end."""
    before = stream._after
    # A resumed stream is inside a block, of which the first chunks are not seen here.
    partial = stream._before if stream._unprepared else None
    place: Any = None
    after: Any = None
    chunks: list[tuple[int, float]] = []
    columns: list[NDArray[np.int64]] = []
    names: list[str] = []
    identities: dict[int, Any] = {}

    def put() -> None:
        (first, at), last = before, place[0] if chunks else -1
        # An endless source that has an empty part goes on by rules that records lack.
        if chunks and (stream._config.epochs is not None or last - first <= (at is not None)):
            parts = [_identity(stream, n, identities) for n in range(first, last + 1)]
            every = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
            writer.put(before, Block(parts, place, after, chunks, names, every))
        chunks.clear()
        columns.clear()

    for documents in blocks:
        if documents is not None and stream._before is not partial:
            if documents.members is not None:  # plans see more of groups than their lengths
                yield documents
                break
            if stream._before is not place:  # each block has a new tuple
                put()  # its last chunks had no documents
                before = (place[0], after) if place is not None else before
                place, after = stream._before, stream._after[1]
            names = _integer_fields(documents)
            chunks.append((len(documents), stream._unprepared))
            columns.append(_columns(documents, names))
            if not stream._unprepared:
                put()
        yield documents
    yield from blocks


def _identity(stream: DocumentStream, index: int, known: dict[int, Any]) -> Any:
    """Return the identity of a part that was read; `known` has the one of the latest part."""
    if index not in known:
        part = stream._parts.part(index)
        assert part is not None
        known.clear()
        known[index] = identity_of(stream, index, part)
    return known[index]


def _integer_fields(documents: Documents) -> list[str]:
    fields = documents.document_fields.items()
    return [name for name, values in fields if values.ndim == 1 and values.dtype.kind in "iub"]


def _columns(documents: Documents, names: Sequence[str]) -> NDArray[np.int64]:
    """Return (4 + fields, N) int64, as in `Block`."""
    origin, fields = documents.origin, documents.document_fields
    columns = [origin["source"], origin["shard"], origin["index"], documents.lengths]
    every = [*columns, *map(fields.__getitem__, names)]
    return np.stack([column.astype(np.int64) for column in every])  # together they may be floats
