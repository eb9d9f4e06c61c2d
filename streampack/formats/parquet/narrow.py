"""Dictionaries with fewer indices than a row group has values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from streampack.storage.files import StoredFile


def footer_without_dictionaries(file: StoredFile) -> pq.FileMetaData:
    """Return a file's footer with the types of Parquet instead of the written table.

    pyarrow cannot make a dictionary with narrow indices of a row group with more values than they
    can number, which come from several dictionaries.
    """
    size = file.num_bytes
    length = int.from_bytes(file.read(size - 8, size - 4), "little")
    footer = file.read(size - length - 8, size).replace(b"ARROW:schema", b"Arrow schema")
    return pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
