"""Shard files as byte arrays: mapped where they lie, decompressed into a temporary file if need be.

A compressed shard is decompressed once per opening into a file that has no name, so memory stays
bounded whatever the shard's size, and nothing is left behind when a process dies.
"""

from __future__ import annotations

import bz2
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from streampack.errors import StorageError

__all__ = ["DamagedError", "copy_stream", "decompress", "map_file", "sniff_codec"]

_CHUNK = 1 << 20
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
# Frames that hold no content, with which pzstd begins.
_MAGIC |= {bytes((0x50 + n, 0x2A, 0x4D, 0x18)): "zstd" for n in range(16)}


class DamagedError(ValueError):
    """Compressed data that does not decompress to what it should; the message says how."""


def map_file(path: Path) -> NDArray[np.uint8]:
    """(B,) uint8: the bytes of a file, read-only and paged in as they are touched."""
    with open(path, "rb") as file:
        return _map(file)


def sniff_codec(path: Path) -> str | None:
    """What a file is compressed with, by its first bytes: "gz", "bz2", "zstd" or None."""
    with open(path, "rb") as file:
        head = file.read(8)
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


def decompress(
    path: Path, codec: str, *, folder: Path | None = None, exact_bytes: int | None = None
) -> tuple[NDArray[np.uint8], bool]:
    """Decompress a file and map the result.

    Args:
        path: the compressed file.
        codec: "gz", "bz2", "zstd", "br" or "snappy" (raw; needs `exact_bytes`).
        folder: where the temporary file goes; None means the system's place.
        exact_bytes: the size the content must have; never more than this is written.

    Returns:
        (B,) uint8, and whether the compressed data ended properly: of gz and bz2 that were cut
        short, everything before the cut is returned.

    Raises:
        DamagedError: the data is corrupt, or its content has another size.
        StorageError: the temporary file cannot be written.
    """
    with open(path, "rb") as source, _temporary(folder) as out:
        complete = True
        written = 0
        for chunk in _chunks(source, codec, exact_bytes):
            if chunk is None:
                complete = False
                break
            written += len(chunk)
            if exact_bytes is not None and written > exact_bytes:
                raise DamagedError(f"it decompresses to more than {exact_bytes} bytes")
            _write(out, chunk)
        if exact_bytes is not None and written != exact_bytes:
            raise DamagedError(f"it decompresses to {written} bytes instead of {exact_bytes}")
        out.flush()
        return _map(out), complete


def copy_stream(stream: IO[bytes], target: Path) -> None:
    """Write everything a stream yields to a new file."""
    with open(target, "wb") as out:
        while chunk := stream.read(_CHUNK):
            _write(out, chunk)


def _map(file: IO[bytes]) -> NDArray[np.uint8]:
    if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _temporary(folder: Path | None) -> IO[bytes]:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return cast("IO[bytes]", tempfile.TemporaryFile(dir=folder))
    except OSError as error:
        raise _no_room(error) from error


def _write(out: IO[bytes], chunk: bytes) -> None:
    try:
        out.write(chunk)
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> StorageError:
    return StorageError(
        f"Writing a temporary file failed: {error}.",
        "Compressed shards are decompressed into one before they are read.",
        "Free some space, or let the storage's cache_dir (or TMPDIR) point where there is some.",
    )


def _chunks(source: IO[bytes], codec: str, exact_bytes: int | None) -> Iterator[bytes | None]:
    """The decompressed content, piece by piece; None at last if it breaks off."""
    if codec == "gz":
        yield from _stdlib_chunks(source, lambda: zlib.decompressobj(wbits=31), zlib.error)
    elif codec == "bz2":
        yield from _stdlib_chunks(source, bz2.BZ2Decompressor, OSError)
    else:
        yield from _arrow_chunks(source, codec, exact_bytes)


def _stdlib_chunks(
    source: IO[bytes], new: Any, error_type: type[Exception]
) -> Iterator[bytes | None]:
    """Members of a gz or bz2 file one after the other, at most a chunk of output at a time."""
    decoder = new()
    pending = b""
    while True:
        # A bz2 decoder keeps input it has not used to itself; zlib hands it back.
        if not pending and getattr(decoder, "needs_input", True):
            pending = source.read(_CHUNK)
            if not pending:
                yield None
                return
        try:
            chunk = decoder.decompress(pending, _CHUNK)
        except error_type as error:
            raise DamagedError(f"it does not decompress ({error})") from error
        if chunk:
            yield chunk
        pending = getattr(decoder, "unconsumed_tail", b"")
        if decoder.eof:
            pending = decoder.unused_data or source.read(_CHUNK)
            if not pending.strip(b"\0"):  # the end, or padding behind it
                return
            decoder = new()


def _arrow_chunks(source: IO[bytes], codec: str, exact_bytes: int | None) -> Iterator[bytes]:
    import pyarrow

    try:
        if codec == "snappy":
            if exact_bytes is None:
                raise DamagedError("raw snappy data does not say its size")
            data = source.read()
            # pyarrow takes a size that is too large at its word and pads with what it finds.
            if _snappy_size(data) != exact_bytes:
                raise DamagedError(f"it says it decompresses to {_snappy_size(data)} bytes")
            yield pyarrow.decompress(data, exact_bytes, codec="snappy", asbytes=True)
            return
        name = {"br": "brotli"}.get(codec, codec)
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(source, "r"), name) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except (OSError, pyarrow.ArrowException) as error:
        raise DamagedError(f"it does not decompress ({error})") from error


def _snappy_size(data: bytes) -> int:
    """The decompressed size that raw snappy data begins with: seven bits a byte, low ones first."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 127) << (7 * i)
        if byte < 128:
            return size
    return -1
