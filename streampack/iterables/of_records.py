"""Sources that pass whole records to a reader: of files, or of data in memory."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from streampack.errors import ConfigError
from streampack.files.paths import open_files
from streampack.names.listing import named_paths
from streampack.sources.fields import RecordReader, RecordSchema
from streampack.sources.formats import RECORD_FORMATS
from streampack.sources.items import kind_name
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from streampack.storage.storage import Storage

if TYPE_CHECKING:
    from streampack.iterables.source import ItemSource


def source_of_records(
    data: Any,
    reader: RecordReader,
    reading: ReadOptions | None,
    storage: Storage | None,
    formats: Sequence[str] = RECORD_FORMATS,
    text: str | None = None,
) -> ShardedSource | ItemSource:
    """Open files, or data in memory, as a source that passes whole records to `reader`.

    Raises:
        ConfigError: the data hold no records, or `storage` is given without paths.
    """
    if _names_files(data):
        paths = named_paths(data)
        files: Any = open_files(paths, text=text, reading=reading, storage=storage, formats=formats)
        if hasattr(files, "beside"):  # the format has no columns
            files.beside = reader
        else:
            files.fields = RecordSchema(False, "", records=reader)
        return cast(ShardedSource, files)
    if isinstance(data, ShardedSource) and storage is None:
        from streampack.formats.rows.source import RowFiles

        if isinstance(data, RowFiles):  # made by the user, such as a table
            opened = copy.copy(data)
            opened.fields, opened._manifest = RecordSchema(False, "", records=reader), None
            opened._lines = {}
            opened.reading = data.reading if reading is None else reading
            return opened
    if storage is not None:
        raise ConfigError(
            f"storage applies only to paths, but data is {kind_name(data)}.",
            "Leave storage out.",
            setting="storage",
        )
    from streampack.iterables.records import records_in_memory

    return records_in_memory(data, RecordSchema(False, "", records=reader), reading)


def _names_files(data: Any) -> bool:
    """Return True for a path, or a list of paths."""
    first = data[0] if isinstance(data, Sequence) and len(data) else data
    return isinstance(first, (str, os.PathLike))
