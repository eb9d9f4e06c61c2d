"""Sources of records in memory: lists, tables, iterables and datasets of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.errors import ConfigError
from streampack.iterables.hf import HFStream, dataset_parser
from streampack.iterables.source import ItemSource, Iterable
from streampack.iterables.table import Table
from streampack.sources.fields import RecordSchema
from streampack.sources.indexed import Items
from streampack.sources.items import is_random_access
from streampack.sources.reading import ReadOptions
from streampack.sources.recognise import is_by_columns, is_hf_stream
from streampack.sources.sharded import ShardedSource


def records_in_memory(
    data: Any, fields: RecordSchema, reading: ReadOptions | None
) -> ShardedSource | ItemSource:
    """Return the source of the records in `data`, which reads the given fields of them.

    Raises:
        ConfigError: the data hold no records.
    """
    source: ShardedSource | ItemSource
    if is_by_columns(data):
        source = Table(data, reading=reading)
        source.fields = fields
        return source
    if is_random_access(data):
        source = Items(data, text="messages", reading=reading)
        first, where = source.first_items(), f"The {source.words[1]}"
    else:
        source = Iterable(data, text="messages", reading=reading)
        first, where = [source.first_item()], "The first item of data"
        if is_hf_stream(data):
            source = HFStream(data, text=next(iter(first[0]), None), reading=reading)
    source.parse = dataset_parser(data)
    source.fields = fields.found_in(dict.fromkeys(_field_names(first), ""), where)
    return source


def _field_names(items: Sequence[Any]) -> set[str]:
    """Return the fields of records in memory; raise `ConfigError` if there are no records."""
    if not len(items):
        raise ConfigError(
            "data must hold records, got none.", "Pass data that holds records.", setting="data"
        )
    names = {str(name) for item in items if isinstance(item, Mapping) for name in item}
    if not names:
        raise ConfigError(
            f"data must hold records, but its first item is {items[0]!r:.80}.",
            'Pass records, such as [{"messages": messages} for messages in data]; paths go in a '
            "list.",
            setting="data",
        )
    return names
