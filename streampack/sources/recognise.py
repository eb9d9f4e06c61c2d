"""Recognise the documents in a user's object, or refuse it with a reason."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streampack.arguments import with_article
from streampack.errors import ConfigError
from streampack.sources.arguments import NamedFields
from streampack.sources.fields import RecordSchema
from streampack.sources.items import kind_name
from streampack.sources.records import BrokenDocumentError, ids_of, is_several, kind_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


def refuse_no_corpus(data: Any) -> None:
    """Raise `ConfigError` for an iterable without documents, or without a fixed order."""
    no_items = (Mapping, str, bytes, bytearray, memoryview, set, frozenset, io.IOBase, type)
    if isinstance(data, no_items) or is_table(data) or kind_name(data).startswith(LAZY):
        from streampack.wrong_calls.corpora import refuse_no_corpus as refuse

        refuse(data)


#: Beginnings of the names of classes without rows in memory.
LAZY = ("polars.lazyframe.", "pyarrow.", "lance.", "deltalake.")


def fields_of(first: Any, loss_mask: str | Sequence[str] | None) -> RecordSchema:
    """Return the fields to read of items, by the first item.

    Args:
        loss_mask: the fields of the loss masks; None chooses them by the first item.
        first: text, token ids, or a record with either in its only field or in one with a usual
            name.

    Raises:
        ConfigError: `first` is neither text, token ids nor such a record.
    """
    if isinstance(first, Mapping):
        fields = RecordSchema.named(loss_mask=loss_mask)
        fields = fields.found_in(_kinds_of(first), "The first item")
        if not is_several(first[fields.document]):
            _holds_ids(first[fields.document], f'The field "{fields.document}" of the first item')
        return fields
    named = RecordSchema.named(loss_mask=loss_mask, default=None)
    return replace(named, tokenized=_holds_ids(first, "The first item"))


def fields_in(first_item: Callable[..., Any], **named: Unpack[NamedFields]) -> RecordSchema:
    """Return the fields of items that a source's arguments name, or that the first item has.

    Args:
        first_item: returns the first item, or its argument if there is none.
        named: the arguments.
    """
    if named.get("text") is None and named.get("tokens") is None:
        return fields_of(first_item(), named.get("loss_mask"))
    fields = RecordSchema.named(**named, default=None)
    return with_masks_of(fields, first_item({})) if fields.tokenized else fields


def no_items(kind: str) -> ConfigError:
    """Return the error for empty data of this kind."""
    return ConfigError(
        f"data must hold documents, got no items ({kind}).",
        "Pass data that holds documents, or name their field with text= or tokens=.",
        setting="data",
    )


def with_masks_of(fields: RecordSchema, first: Any) -> RecordSchema:
    """Add the loss masks that the first item has, if no argument names any."""
    if not fields.tokenized or not isinstance(first, Mapping):
        return fields
    return fields.found_in(_kinds_of(first), "The first item")


def _kinds_of(record: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): kind_of(value) for name, value in record.items()}


def _holds_ids(value: Any, where: str) -> bool:
    """Return True for token ids, False for text."""
    if isinstance(value, str):
        return False
    try:
        ids_of(value)
    except BrokenDocumentError as reason:
        raise ConfigError(
            f"{where} {reason}, so it is neither text nor token ids.",
            remedy="Pass texts, lists of token ids, or records (dicts) with a field of either.",
            setting="data",
        ) from reason
    return True


def is_table(data: Any) -> bool:
    """Return True for tables with rows and columns, as in pyarrow, pandas and polars."""
    arrow = ("__arrow_c_stream__", "__arrow_c_array__", "iloc")
    return any(hasattr(data, name) for name in arrow) and hasattr(data, "columns")


def is_by_columns(data: Any) -> bool:
    """Return True for data that are read by columns: tables, and datasets without a transform."""
    is_dataset = kind_name(data) == "datasets.arrow_dataset.Dataset"
    return is_table(data) or (is_dataset and data.format["type"] != "custom")


def is_hf_stream(data: Any) -> bool:
    """Return True for streaming datasets of Hugging Face."""
    return kind_name(data).startswith("datasets.") and hasattr(data, "set_epoch")


def arrow_table(data: Any) -> Any:
    """Convert another library's table to one of pyarrow.

    Raises:
        ConfigError: a column has values that Arrow has no type for, or two have one name.
    """
    import pyarrow as pa

    if kind_name(data).startswith(LAZY):
        from streampack.wrong_calls.corpora import refuse_no_corpus as refuse

        refuse(data, is_table=True)
    try:
        return data if isinstance(data, pa.Table) else pa.table(data)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            f"{with_article(kind_name(data)).capitalize()} is no table for Arrow: {error}.",
            remedy="Leave the column out or make it text, or pass the rows as records.",
            setting="data",
        ) from error
