"""Record batches that are decoded once per host, into an Arrow file of the cache.

The file is not compressed and is mapped into memory, so reading a batch of it copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

import pyarrow as pa

from streampack.storage.storage import Storage


def shared_batches(
    storage: Storage, path: str, what: str, decode: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What `decode` gives, from the cache if it was decoded before on this host.

    Args:
        storage: whose cache is used.
        path: of the file that is decoded, as listed.
        what: is decoded of it; "" if it is not to be kept.
        decode: gives batches of one schema.
    """

    def write(out: IO[bytes]) -> None:
        batches = decode()
        batch = next(batches)
        with pa.ipc.new_file(out, batch.schema) as writer:
            writer.write_batch(batch)
            for batch in batches:
                writer.write_batch(batch)

    if not what:
        yield from decode()
        return
    with storage.decoded(path, what, write) as copy:
        if copy is None:
            yield from decode()
            return
        with pa.memory_map(str(copy)) as mapped:
            reader = pa.ipc.open_file(mapped)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
