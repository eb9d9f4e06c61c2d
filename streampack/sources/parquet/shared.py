"""Record batches that are decoded once per host, into an Arrow file of the cache.

The file is not compressed and is mapped into memory, so reading a batch of it copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

import pyarrow as pa

from streampack.sources.records import DamagedFileError
from streampack.storage.decompression import map_file
from streampack.storage.storage import Storage


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
                    raise DamagedFileError(f"a batch has {batch.num_rows} rows, not {size}")
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
