"""Decode compressed files once per host, so that lanes can read parts of them.

A part inside a compressed file can only be read by decompressing everything before it, for every
part that a lane reads. So the first process that needs such a part writes the content into the
cache (`Storage.decoded`), and all others read it there while it grows. If that is not possible, or
the file is damaged, each part of lines or rows is decoded from the beginning, with the same result.

Content that is read forwards is kept in pieces: a header; for each chunk, the decoder's offset in
the stored file and the number of bytes it gave; then these bytes. So the order of the stored file
is kept, and a reader that begins inside it moves from header to header.
"""

from __future__ import annotations

import io
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import IO

import numpy as np
import pyarrow as pa

from streampack.storage.decompression import (
    Chunk,
    Content,
    Convert,
    DamagedError,
    open_content,
    placed_chunks,
    unpack,
)
from streampack.storage.files import LEAST_BYTES, MemoryFile, StoredFile
from streampack.storage.growing import GrowingFile, NotMadeError, derived_key
from streampack.storage.storage import Storage

_PIECE_BYTES = 1 << 20
_HEADER = struct.Struct("<qqq")  # number of chunks, their bytes, offset of the last
_PLACE = struct.Struct("<qq")  # offset and size of a chunk
#: Part of the cached file's name, because other versions may cut content differently.
MADE_BY = f"by Python {platform.python_version()} and pyarrow {pa.__version__}"


def shared_content(
    storage: Storage,
    file: StoredFile,
    codec: str | None,
    *,
    inside: bool,
    until: int | None,
    convert: Convert | None = None,
) -> AbstractContextManager[Content]:
    """Open the content of a file, to be read forwards; see `open_content`.

    Args:
        storage: storage with the cache.
        file: a file opened by `storage`.
        codec, until, convert: as for `open_content`.
        inside: True if reading begins inside the file.
    """
    kept = None
    if inside and (codec or convert) and file.num_bytes >= LEAST_BYTES:
        what = f"{codec} in pieces {convert and convert.__name__} {MADE_BY}"
        kept = partial(_Pieces, storage.decoded(file, what, partial(_write_pieces, codec, convert)))
    return open_content(file, codec, kept, until, convert)


def is_decoded(storage: Storage, file: StoredFile, codec: str) -> bool:
    """Return True if the cache has the beginning of a file's content, which is not converted."""
    return storage._cache().has(derived_key(file, f"{codec} in pieces None {MADE_BY}"), 0)


def _write_pieces(
    codec: str | None, convert: Convert | None, file: StoredFile, out: IO[bytes]
) -> None:
    chunks: list[Chunk] = []
    size = 0
    file.plan([(0, file.num_bytes)])
    with file.stream() as source:
        for place, chunk in placed_chunks(source, codec, convert):
            chunks.append((place, chunk))
            size += len(chunk)
            if size >= _PIECE_BYTES or not chunk:
                places = [_PLACE.pack(place, len(chunk)) for place, chunk in chunks]
                header = _HEADER.pack(len(chunks), size, place)
                out.write(b"".join([header, *places, *(chunk for _, chunk in chunks)]))
                chunks, size = [], 0


class _Pieces:
    """Chunks from a file of pieces, or from the decoder if that file cannot be made."""

    def __init__(self, file: GrowingFile, decoded: Iterator[Chunk]) -> None:
        self._file, self._decoded = file, decoded

    def __call__(self, offset: int, least: int) -> tuple[int, bytes, Iterator[Chunk]]:
        at = content = passed = number = 0
        known: dict[int, tuple[int, int, int, int]] = self._file.known
        try:
            while True:
                if number not in known:
                    known[number] = self._header(at)
                chunks, size, last, end = known[number]
                is_there = content + size > offset and last >= least
                if is_there or (number + 1 not in known and not self._file.has(end + _HEADER.size)):
                    break
                at, content, passed = end, content + size, passed + chunks
                number += 1
        except NotMadeError:
            return 0, b"", self._decoded
        before = bytes(self._file.view(at - 1, 1)) if at else b""
        return content, before, self._chunks(at, passed)

    def _header(self, at: int) -> tuple[int, int, int, int]:
        """Read the header at a byte: count of chunks, their bytes, last offset, end of piece."""
        if not self._file.has(at + _HEADER.size):
            raise NotMadeError
        chunks, size, last = _HEADER.unpack(self._file.view(at, _HEADER.size))
        return chunks, size, last, at + _HEADER.size + chunks * _PLACE.size + size

    def _chunks(self, at: int, passed: int) -> Iterator[Chunk]:
        """Yield chunks of the piece at a byte and of all later ones; `passed` come before it."""
        file = self._file
        try:
            while file.has(at + _HEADER.size):
                chunks, size, _, end = self._header(at)
                if not file.has(end):
                    raise NotMadeError
                table = file.view(at + _HEADER.size, chunks * _PLACE.size)
                begin = end - size
                for place, part in _PLACE.iter_unpack(table):
                    yield place, file.view(begin, part)
                    begin, passed = begin + part, passed + 1
                at = end
        except NotMadeError:
            yield from islice(self._decoded, passed, None)


def shared_bytes(
    storage: Storage, file: StoredFile, codec: str, *, exact_bytes: int = -1
) -> tuple[StoredFile, Callable[[], str]]:
    """Return the content of a file, which may still grow, and a function that waits for its end.

    That returns the fault at which the content ends, or "". Before the fault of a large file, some
    bytes may be wrong, as in any stream that is read as it comes; small files raise it here.

    Args:
        storage, file, codec: as for `shared_content`.
        exact_bytes: required size of the content, at most as much is written; -1 if it is unknown.

    Raises:
        DamagedError: the data is corrupt, or its content has another size.
    """

    def make(file: StoredFile, out: IO[bytes]) -> str:
        try:
            return unpack(file, codec, out, exact_bytes=exact_bytes)
        except DamagedError as error:
            return str(error)

    if file.num_bytes < LEAST_BYTES:
        out = io.BytesIO()
        fault = unpack(file, codec, out, exact_bytes=exact_bytes)
        return MemoryFile(np.frombuffer(out.getvalue(), dtype=np.uint8)), lambda: fault
    content = storage.decoded(file, f"{codec} content {exact_bytes}", make, exact_bytes)
    return content, content.fault
