"""Rows of Arrow as JSON objects.

A struct of Arrow has every field that any row has; the fields that are null in a row are left out
of it. Values that are text of JSON (Arrow's type `arrow.json`, the feature `Json` of datasets) are
decoded, and keep their nulls. A map is an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents.blocks import make_origin
from streampack.errors import ConfigError
from streampack.file_info import shown
from streampack.files.file_source import ShardBlock
from streampack.files.json_records import MOST_NESTED, parse_json, too_deep
from streampack.formats.rows.columns import BlockMaker, cut, ended, kinds_of
from streampack.sources.fields import RecordSchema
from streampack.sources.records import BrokenDocumentError, block_of

if TYPE_CHECKING:
    from streampack.formats.rows.source import RowFiles

#: Converts a value of a row to its JSON value; None where they are the same.
_Convert = Callable[[Any], Any] | None

_JSON = "arrow.json"
_METADATA = b"huggingface"  # key under which `datasets` stores features in a schema


def record_blocks(source: RowFiles, shard: int, schema: pa.Schema) -> BlockMaker:
    """Return the maker of blocks from the whole rows of a file, for `RecordReader`."""
    reader, tokenized = source.fields.records, source.fields.tokenized
    assert reader is not None
    limits = (source.reading.documents_per_block, source.reading.block_bytes)
    parse = row_parser(schema)

    def blocks(rows: pa.RecordBatch, numbers: NDArray[np.int64]) -> Iterator[ShardBlock]:
        start = 0
        records: list[Any] = []  # rows from `start` on
        sizes: list[int] = []
        while start < rows.num_rows:
            more = rows.slice(start + len(records), limits[0] - len(records)).to_pylist()
            sizes += [reader.size(record, tokenized) for record in more]
            records += more
            _, count = next(cut(np.array(sizes), limits))
            origin = make_origin(shard, numbers[start : start + count])
            block, problems = block_of(
                records[:count], source.fields, origin, source.field_types, parse
            )
            start += count
            del records[:count], sizes[:count]
            yield ended(block, origin, problems)

    return blocks


def check_records(fields: RecordSchema, name: str, schema: pa.Schema) -> None:
    """Raise `ConfigError` for a file with records of another kind than the first file's."""
    other = fields.found_in(kinds_of(schema), shown(name))
    if fields.known and other.tokenized != fields.tokenized:
        raise ConfigError(
            f"{shown(name)} has records of another kind than the first file.",
            "Make them two sources of a Mixture.",
            path=shown(name),
        )


def row_parser(schema: pa.Schema | None, *, decoded: bool = False) -> Callable[[Any], Any]:
    """Return the function that makes a record of a row, a dict by column.

    It raises `BrokenDocumentError` for text that should be JSON and is not.

    Args:
        schema: schema of the rows, None if unknown. Nulls are left out of objects that have no type
            in it.
        decoded: True if datasets has decoded the features that are JSON.
    """
    features = _features(schema)
    types = {} if schema is None else {field.name: field.type for field in schema}
    known = {name: _converter(kind, features.get(name), decoded) for name, kind in types.items()}

    def parse(row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        return {name: _applied(known.get(name, _without_nulls), row[name], name) for name in row}

    return parse


def _applied(convert: _Convert, value: Any, name: str) -> Any:
    try:
        return _value(convert, value)
    except BrokenDocumentError:
        raise
    except ValueError as error:
        raise BrokenDocumentError(f'has text in "{name}" that is not JSON ({error})') from None


def _features(schema: pa.Schema | None) -> dict[str, Any]:
    """Return the features that datasets wrote into a schema, by column."""
    try:
        text = (schema.metadata or {})[_METADATA] if schema is not None else b"{}"
        features = json.loads(text)["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _converter(kind: pa.DataType, feature: Any, decoded: bool) -> _Convert:
    if _is_json(kind, feature):
        return None if decoded else _parsed
    if isinstance(kind, pa.BaseExtensionType):
        return _converter(kind.storage_type, feature, decoded)
    if pa.types.is_dictionary(kind):
        return _converter(kind.value_type, feature, decoded)
    below = feature if isinstance(feature, dict) else {}
    if pa.types.is_map(kind):
        return partial(_object, _converter(kind.item_type, None, decoded))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        converters = {f.name: _converter(f.type, below.get(f.name), decoded) for f in fields}
        return partial(_fields, converters)
    if hasattr(kind, "value_type"):  # true for a list of any kind
        inner = feature[0] if isinstance(feature, list) and feature else below.get("feature")
        convert = _converter(kind.value_type, inner, decoded)
        return None if convert is None else partial(_items, convert)
    return None


def _is_json(kind: pa.DataType, feature: Any) -> bool:
    named = isinstance(feature, dict) and feature.get("_type") == "Json"
    return getattr(kind, "extension_name", None) == _JSON or named


def _parsed(text: Any) -> Any:
    return parse_json(text.encode()) if isinstance(text, str) else text


def _object(convert: _Convert, pairs: Any) -> Any:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return {key: _value(convert, value) for key, value in items}


def _fields(converters: Mapping[str, _Convert], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    present = {name: item for name, item in value.items() if item is not None}
    return {
        name: _value(converters.get(name, _without_nulls), item) for name, item in present.items()
    }


def _items(convert: _Convert, values: Any) -> Any:
    if not isinstance(values, list | tuple):
        return values
    return [_value(convert, value) for value in values]


def _value(convert: _Convert, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _without_nulls(value: Any, depth: int = 0) -> Any:
    if depth > MOST_NESTED:  # for values in memory; parsed text is checked already
        raise too_deep()
    if isinstance(value, Mapping):
        items = value.items()
        return {key: _without_nulls(item, depth + 1) for key, item in items if item is not None}
    return [_without_nulls(item, depth + 1) for item in value] if isinstance(value, list) else value
