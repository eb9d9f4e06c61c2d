"""What cannot be cut where it lies, decoded once per host and cut there.

A part of a compressed file that begins inside it would decompress all that comes before, for every
part that some lane reads. So the first process that needs such a part writes the content into the
cache (`Storage.decoded`), and all others read it there. Where that is not possible, or the file is
damaged, each part is decoded from the beginning, with the same result.

Content that is read forwards is kept in frames: a header (where in the stored file the decoder was,
and the bytes that it gave), then these bytes; so parts lie where they lie in the stored file.

Record batches are kept in an Arrow file that is not compressed, so reading one copies nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.storage.decompression import (
    Chunk,
    Content,
    DamagedError,
    decompress,
    map_file,
    open_content,
    placed_chunks,
    unpack,
)
from streampack.storage.storage import Storage

#: Smaller files are decompressed again: they are hardly cut.
LEAST_BYTES = 1 << 20
_HEADER = struct.Struct("<qq")


@contextmanager
def shared_content(
    storage: Storage, path: str, file: Path, codec: str | None, *, inside: bool
) -> Iterator[Content]:
    """The content of a file, to be read forwards; see `open_content`.

    Args:
        storage: whose cache is used.
        path: of the file, as listed.
        file: local, with its content.
        codec: as for `open_content`.
        inside: reading is to begin inside of it.
    """
    with ExitStack() as stack:
        chunks = None
        if inside and codec and file.stat().st_size >= LEAST_BYTES:
            make = _FrameWriter(file, codec)
            copy = stack.enter_context(storage.decoded(path, f"{codec} frames", make))
            chunks = None if copy is None else _frames(map_file(copy))
        yield stack.enter_context(open_content(file, codec, chunks))


class _FrameWriter:
    def __init__(self, file: Path, codec: str) -> None:
        self.file, self.codec = file, codec

    def __call__(self, out: IO[bytes]) -> None:
        with open(self.file, "rb") as source:
            for place, chunk in placed_chunks(source, self.codec):
                out.write(_HEADER.pack(place, len(chunk)))
                out.write(chunk)


def _frames(data: NDArray[np.uint8]) -> Iterator[Chunk]:
    content, at = data.data, 0
    while at < len(content):
        place, size = _HEADER.unpack_from(content, at)
        at += _HEADER.size + size
        yield place, content[at - size : at]


def shared_bytes(
    storage: Storage, path: str, file: Path, codec: str, *, partly: bool
) -> tuple[NDArray[np.uint8], bool]:
    """The whole content of a file, mapped, and whether its compression ended; see `decompress`.

    Args:
        storage, path, file, codec: as for `shared_content`.
        partly: others read parts of it, too.
    """

    def make(out: IO[bytes]) -> None:
        if not unpack(file, codec, out):
            raise DamagedError("it is cut short")

    if partly and file.stat().st_size >= LEAST_BYTES:
        with storage.decoded(path, f"{codec} content", make) as copy:
            if copy is not None:
                return map_file(copy), True  # which stays readable if the file is removed
    return decompress(file, codec, folder=storage.cache_dir)


def shared_batches(
    storage: Storage,
    path: str,
    what: str,
    size: int,
    row: int,
    decode: Callable[[], Iterator[pa.RecordBatch]],
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """What `decode` gives, from the cache if it was decoded before on this host.

    Args:
        storage: whose cache is used.
        path: of the file that is decoded, as listed.
        what: is decoded of it; "" if it is not to be kept.
        size: rows of each batch but the last.
        row: the first that is wanted; batches before it may be left out.
        decode: gives batches of one schema.

    Yields:
        Batches, each with the number of its first row.
    """

    def write(out: IO[bytes]) -> None:
        batches = decode()
        batch = next(batches)
        with pa.ipc.new_file(out, batch.schema) as writer:
            writer.write_batch(batch)
            for following in batches:
                if batch.num_rows != size:
                    raise DamagedError(f"a batch has {batch.num_rows} rows, not {size}")
                writer.write_batch(batch := following)

    if what:
        with storage.decoded(path, what, write) as copy:
            if copy is not None:
                # A mapping of Arrow's own would hand every opening to a thread.
                options = pa.ipc.IpcReadOptions(use_threads=False)
                reader = pa.ipc.open_file(pa.py_buffer(map_file(copy)), options=options)
                for number in range(row // size, reader.num_record_batches):
                    yield reader.get_batch(number), number * size
                return
    first = 0
    for batch in decode():
        yield batch, first
        first += batch.num_rows
