"""Record batches that this host decodes once, so that lanes can read parts of them.

They are kept as streams of Arrow that are not compressed, one each, after its size and aligned, so
reading one copies nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import IO, TypeVar

import pyarrow as pa

from streampack.storage.decoded import MADE_BY
from streampack.storage.decompression import DamagedError
from streampack.storage.files import StoredFile
from streampack.storage.growing import GrowingFile, NotMadeError
from streampack.storage.storage import Storage

F = TypeVar("F")

_SIZE = struct.Struct("<q56x")  # size of an Arrow stream


def shared_batches(
    storage: Storage,
    file: StoredFile,
    content: str,
    size: int,
    row: int,
    decode: Callable[[F], Iterator[pa.RecordBatch]],
    opened: F,
    open_file: Callable[[StoredFile], AbstractContextManager[F]],
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of `decode`, from the cache if this host has decoded them already.

    Args:
        storage: storage with the cache.
        file: file to decode.
        content: name of the decoded content.
        size: rows of each batch except the last.
        row: first row needed; batches before it may be left out.
        decode: yields batches of one schema from an open file.
        opened: this file, opened by `open_file`.
        open_file: opens the file for another thread.

    Yields:
        Batches, each with the index of its first row.
    """

    def write(file: StoredFile, out: IO[bytes]) -> None:
        with open_file(file) as opened:
            batches = decode(opened)
            batch = next(batches)
            _write_batch(out, batch)
            for following in batches:
                if batch.num_rows != size:
                    raise DamagedError(f"a batch has {batch.num_rows} rows, not {size}")
                _write_batch(out, following)
                batch = following

    number = row // size
    try:
        for batch in _batches(storage.decoded(file, f"{content} {MADE_BY}", write), number):
            yield batch, number * size
            number += 1
        return
    except NotMadeError:
        pass
    first = number * size
    for batch in islice(decode(opened), number, None):
        yield batch, first
        first += batch.num_rows


def _write_batch(out: IO[bytes], batch: pa.RecordBatch) -> None:
    with pa.BufferOutputStream() as stream:
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        data = stream.getvalue()
    out.write(_SIZE.pack(data.size))
    out.write(data)
    out.write(bytes(-data.size % _SIZE.size))


def _batches(file: GrowingFile, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, from index `number` on."""
    options = pa.ipc.IpcReadOptions(use_threads=False)
    starts: dict[int, int] = file.known  # offsets of batches known so far
    k = min(number, max(len(starts) - 1, 0))
    at = starts.setdefault(k, 0)
    while file.has(at + _SIZE.size):
        (size,) = _SIZE.unpack(file.view(at, _SIZE.size))
        begin, at = at + _SIZE.size, at + _SIZE.size + size + -size % _SIZE.size
        k += 1
        starts[k] = at
        if k <= number:
            continue
        if not file.has(at):
            raise NotMadeError
        yield pa.ipc.open_stream(
            pa.py_buffer(file.view(begin, size)), options=options
        ).read_next_batch()
