"""Decompress files as streams."""

from __future__ import annotations

import bz2
import io
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from streampack.storage.files import DamagedError as DamagedError
from streampack.storage.files import is_of_system

if TYPE_CHECKING:
    from streampack.storage.files import StoredFile

#: Codec by the ending of a file name.
CODEC_OF_ENDING = {".gz": "gz", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}

_CHUNK = 1 << 20
_FEED = 16 << 10  # bytes of compressed data at a time: the granularity of cuts in the content
_PART = 64 << 10  # bytes of content at a time, if the library reads the source itself
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
# Frames that hold no content, with which pzstd begins.
_MAGIC |= {bytes((0x50 + n, 0x2A, 0x4D, 0x18)): "zstd" for n in range(16)}


class _CutShortError(DamagedError):
    """Raised for compressed data that is valid but ends too early."""

    def __init__(self) -> None:
        super().__init__("its compressed data breaks off")


def codec_of(head: bytes) -> str | None:
    """Return the codec of a file by its first bytes: "gz", "bz2", "zstd" or None."""
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


def unpack(file: StoredFile, codec: str, out: IO[bytes], *, exact_bytes: int = -1) -> str:
    """Write the content of a file to `out`; return "", or a clause if the data breaks off.

    Args:
        file: the compressed file.
        codec: "gz", "bz2", "zstd", "br" or "snappy" (raw; needs `exact_bytes`).
        out: gets the content up to a cut.
        exact_bytes: required size of the content, at most as much is written; -1 if it is unknown.

    Raises:
        DamagedError: the data is corrupt, or its content has another size.
    """
    file.plan([(0, file.num_bytes)])
    with file.stream() as source:
        fault, written = "", 0
        try:
            for chunk in _chunks(source, codec, exact_bytes):
                written += len(chunk)
                if 0 <= exact_bytes < written:
                    raise DamagedError(f"it decompresses to more than {exact_bytes} bytes")
                out.write(chunk)
        except _CutShortError as error:
            fault = str(error)
        if exact_bytes >= 0 and written != exact_bytes:
            raise DamagedError(f"it decompresses to {written} bytes instead of {exact_bytes}")
        return fault


#: Bytes of stored data read when the decoder gave some content, and this content.
Chunk = tuple[int, "bytes | memoryview"]
#: Replaces the chunks of a content by others of the same sizes, such as the lines of a JSON array.
Convert = Callable[[Iterator[Chunk]], Iterator[Chunk]]
#: Takes an offset in the content and one in the stored data. Returns the content offset of the
#: first chunk, at most at both; the byte before it (empty at the beginning); and the chunks.
ChunksFrom = Callable[[int, int], "tuple[int, bytes, Iterator[Chunk]]"]


@contextmanager
def open_content(
    file: StoredFile | bytes,
    codec: str | None,
    kept: Callable[[Iterator[Chunk]], ChunksFrom] | None = None,
    until: int | None = None,
    convert: Convert | None = None,
) -> Iterator[Content]:
    """Open the content of a file, or of bytes in memory.

    Args:
        file: stored data.
        codec: "gz", "bz2", "zstd", "br", or None for uncompressed data.
        kept: replaces decompression by stored chunks. It is called with the decompressing iterator.
        until: stored data is read up to this byte, or a little further; None is the end.
        convert: converts the content.
    """
    is_plain = codec is None and convert is None
    if not (is_plain or kept or isinstance(file, bytes)):
        file.plan([(0, file.num_bytes if until is None else until)])
    with io.BytesIO(file) if isinstance(file, bytes) else file.stream() as source:
        if is_plain:
            yield Content(source, None)
            return
        chunks = placed_chunks(source, codec, convert)
        yield Content(source, kept(chunks) if kept else lambda _offset, _least: (0, b"", chunks))


def placed_chunks(
    source: IO[bytes], codec: str | None, convert: Convert | None = None
) -> Iterator[Chunk]:
    """Yield the content of stored data in chunks with their offsets; the last one is empty.

    Raises:
        DamagedError: after the last piece before the damage.
    """
    if convert:
        yield from convert(placed_chunks(source, codec))
        return
    chunks = _chunks(source, codec)
    while True:
        position = source.tell()
        chunk = next(chunks, b"")
        yield position, chunk
        if not chunk:  # the decoder may have closed the source
            return


class Content:
    """The content of a file, read forwards, with offsets in the stored file.

    For compressed data, an offset is the number of bytes read when the decoder gave the content: it
    is the same for every reader, regardless of its start.

    Args:
        source: stored data.
        chunks: chunks of the content, if it is compressed.

    Attributes:
        file: reads the content. It raises `DamagedError` where the data is corrupt or ends too
            early, after all content before that.
    """

    def __init__(self, source: IO[bytes], chunks: ChunksFrom | None) -> None:
        self._chunks = None if chunks is None else _ChunkReader(chunks)
        self.file = source if self._chunks is None else io.BufferedReader(self._chunks, _CHUNK)

    def skip_stored(self, least: int) -> tuple[int, bytes]:
        """Skip to the first content that was stored at byte `least` or later.

        To be called before anything is read.

        Returns:
            Its offset in the content, and the byte before it (empty at the beginning).
        """
        if self._chunks is not None:
            return self._chunks.skip(least=least)
        self.file.seek(max(least - 1, 0))
        return least, self.file.read(1) if least else b""

    def skip(self, offset: int) -> None:
        """Skip to an offset in the content, before anything is read."""
        if self._chunks is not None:
            self._chunks.skip(offset=offset)
        else:
            self.file.seek(offset)

    def stored(self, offset: int) -> int:
        """Return the stored offset of the content at `offset`; calls must be in order."""
        return offset if self._chunks is None else self._chunks.stored(offset)

    @property
    def produced(self) -> int:
        """Number of bytes decompressed so far."""
        return 0 if self._chunks is None else self._chunks.offset


class _ChunkReader(io.RawIOBase):
    """Chunks of content as a raw stream, which tracks the stored offset of each."""

    def __init__(self, chunks: ChunksFrom) -> None:
        self._from = chunks
        self._chunks: Iterator[Chunk] | None = None
        self._rest = memoryview(b"")
        self.offset = 0  # offset of the content after `_rest`
        self._positions: deque[tuple[int, int]] = deque()  # (offset, stored at) of recent chunks

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the rest of the current chunk, or from the next one."""
        if not len(self._rest):
            self._next()
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _next(self) -> int:
        """Take the next chunk, which is empty at the end; return its stored offset."""
        if self._chunks is None:
            self.offset, _, self._chunks = self._from(0, 0)
        chunk = next(self._chunks, None)
        if chunk is None:
            return self._positions[-1][1]
        position, self._rest = chunk[0], memoryview(chunk[1])
        if not self._positions or self._positions[-1][1] != position:
            self._positions.append((self.offset, position))
        self.offset += len(self._rest)
        return position

    def skip(self, *, offset: int = 0, least: int = 0) -> tuple[int, bytes]:
        """Drop content before an offset, and content stored before byte `least`."""
        self.offset, before, self._chunks = self._from(offset, least)
        while True:
            position = self._next()
            if not len(self._rest):
                return self.offset, before
            if position >= least and self.offset > offset:
                start = max(self.offset - len(self._rest), offset)
                self._rest = self._rest[len(self._rest) - (self.offset - start) :]
                return start, before
            before = bytes(self._rest[-1:])
            self._rest = self._rest[:0]
            self.stored(self._positions[-1][0])  # earlier offsets are not needed

    def stored(self, offset: int) -> int:
        while len(self._positions) > 1 and self._positions[1][0] <= offset:
            self._positions.popleft()
        return self._positions[0][1] if self._positions else 0


def _chunks(source: IO[bytes], codec: str | None, exact_bytes: int = -1) -> Iterator[bytes]:
    """Yield the decompressed content in chunks; raise `DamagedError` at the damage."""
    if codec is None:
        yield from iter(lambda: source.read(_PART), b"")
    elif codec == "gz":
        yield from _stdlib_chunks(source, lambda: zlib.decompressobj(wbits=31), zlib.error)
    elif codec == "bz2":
        yield from _stdlib_chunks(source, bz2.BZ2Decompressor, OSError)
    else:
        yield from _arrow_chunks(source, codec, exact_bytes)


def _stdlib_chunks(source: IO[bytes], new: Any, error_type: type[Exception]) -> Iterator[bytes]:
    """Decompress the members of a gz or bz2 file in order, at most a chunk of output at a time."""
    decoder = new()
    pending = b""
    while True:
        # A bz2 decoder keeps the input that it has not used yet; zlib hands it back.
        if not pending and getattr(decoder, "needs_input", True):
            pending = source.read(_FEED)
            if not pending:
                raise _CutShortError
        try:
            chunk = decoder.decompress(pending, _CHUNK)
        except error_type as error:
            raise DamagedError(f"it does not decompress ({error})") from error
        if chunk:
            yield chunk
        pending = getattr(decoder, "unconsumed_tail", b"")
        if decoder.eof:
            pending = decoder.unused_data
            while not (pending := pending.lstrip(b"\0")):  # padding, as of tapes
                pending = source.read(_FEED)
                if not pending:
                    return
            decoder = new()


def _arrow_chunks(source: IO[bytes], codec: str, exact_bytes: int) -> Iterator[bytes]:
    import pyarrow

    try:
        if codec == "snappy":
            data = source.read()
            # pyarrow trusts a size that is too large, and pads with other memory.
            if _snappy_size(data) != exact_bytes:
                raise DamagedError(
                    f"its header declares {_snappy_size(data)} bytes instead of {exact_bytes}"
                )
            yield pyarrow.decompress(data, exact_bytes, codec="snappy", asbytes=True)
            return
        name = {"br": "brotli"}.get(codec, codec)
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(source, "r"), name) as stream:
            while chunk := stream.read(_PART):
                yield chunk
    except (OSError, pyarrow.ArrowException) as error:
        if is_of_system(error):
            raise
        if str(error).startswith("Truncated"):
            raise _CutShortError from error
        if "too much memory" in str(error):
            raise DamagedError(
                "its zstd window is larger than 128 MiB; compress it with --long=27 or less"
            ) from error
        raise DamagedError(f"it does not decompress ({error})") from error


def _snappy_size(data: bytes) -> int:
    """Return the decompressed size at the start of raw snappy data, a varint; -1 if invalid."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 127) << (7 * i)
        if byte < 128:
            return size
    return -1
