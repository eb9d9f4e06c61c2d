"""What an object that a user passed holds: which documents, or why none."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from streampack.arguments import with_article
from streampack.errors import ConfigError
from streampack.sources.fields import Fields
from streampack.sources.iterable.items import ids_of, is_several, kind_name
from streampack.sources.records import BrokenDocumentError, kind_of


def refuse_no_corpus(data: Any) -> None:
    """Raise `ConfigError` for what can be iterated and gives no documents, with what to pass."""
    if isinstance(data, Mapping):
        raise _refused_mapping(data)
    kind = kind_name(data)
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        raise ConfigError(
            f"data is {with_article(kind)}.",
            "Its characters or bytes would be the documents.",
            "Pass a list of texts, even if it is one; bytes have to be decoded first.",
        )
    if isinstance(data, (set, frozenset)):
        raise ConfigError(
            f"data is {with_article(kind)}.",
            "Its order differs from process to process, so a run could not be repeated.",
            "Pass sorted(data).",
        )
    if isinstance(data, io.IOBase):
        raise ConfigError(
            f"data is an open file ({kind}).",
            "Its lines would be the documents, whatever its format is.",
            "Pass its path; lines of plain text can be read by a function: "
            "lambda: (line for line in open(path)).",
        )
    if isinstance(data, type):
        raise ConfigError(
            f"data is the class {data.__qualname__}.", "It holds no documents.", "Pass an object."
        )


def _refused_mapping(data: Mapping[Any, Any]) -> ConfigError:
    names = list(data)
    kind = kind_name(data)
    values = [data[name] for name in names]
    shown = ", ".join(f"{name!r}" for name in names[:10]) or "none"
    fact = f"data is {with_article(kind)} with the keys {shown}."
    if kind.startswith("datasets.") and names:
        return ConfigError(
            fact, "A run reads one split.", f"Pass one of them, for example dataset[{names[0]!r}]."
        )
    if names and all(isinstance(value, list) for value in values):
        return ConfigError(
            fact,
            "It is a table by columns, and documents are its rows.",
            "Pass the column with the documents, or pyarrow.table(data).",
        )
    return ConfigError(
        fact,
        "Its keys would be the documents.",
        "Pass [data] if it is one record, list(data.values()) if its values are the documents, and "
        "sources.Mixture(data, weights={...}) if they are corpora.",
    )


def fields_of(first: Any, loss_mask: str | Sequence[str] | None) -> Fields:
    """The fields that are read of items, by the first of them.

    Args:
        loss_mask: the fields of the loss masks, if somebody named them.
        first: text, token ids, or a record with either in a field that is alone or has a usual
            name.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(first, Mapping):
        fields = Fields.named(text=None, tokens=None, loss_mask=loss_mask)
        fields = fields.found_in(_kinds_of(first), "The first item")
        if not is_several(first[fields.document]):
            _holds_ids(first[fields.document], f'The field "{fields.document}" of the first item')
        return fields
    named = Fields.named(text=None, tokens=None, loss_mask=loss_mask, default=None)
    return replace(named, tokenized=_holds_ids(first, "The first item"))


def fields_in(
    first_item: Callable[..., Any],
    *,
    text: str | None,
    tokens: str | None,
    loss_mask: str | Sequence[str] | None,
) -> Fields:
    """The fields of items that the arguments of a source name, or that the first item shows.

    Args:
        first_item: returns the first item; what it is called with, where there is none.
        text, tokens, loss_mask: the arguments.
    """
    if text is None and tokens is None:
        return fields_of(first_item(), loss_mask)
    named = Fields.named(text=text, tokens=tokens, loss_mask=loss_mask, default=None)
    return with_masks_of(named, first_item({})) if named.tokenized else named


def no_items(kind: str) -> ConfigError:
    """The error for data of this kind that is empty."""
    return ConfigError(
        f"There are no items in data ({kind}).",
        "It is unknown what the documents are.",
        "Pass data that holds documents, or name their field with text= or tokens=.",
    )


def with_masks_of(fields: Fields, first: Any) -> Fields:
    """The fields, with the loss masks that the first item has, if nobody said which there are."""
    if not fields.tokenized or not isinstance(first, Mapping):
        return fields
    return fields.found_in(_kinds_of(first), "The first item")


def _kinds_of(record: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): _kind_of(value) for name, value in record.items()}


def _kind_of(value: Any) -> str:
    try:
        if is_several(value):
            return "several"
        known = kind_of(value.tolist() if isinstance(value, np.ndarray) else value)
        return known or ("tokens" if ids_of(value) is not None else "")
    except BrokenDocumentError:
        return ""


def _holds_ids(value: Any, where: str) -> bool:
    """True for token ids, False for text."""
    if isinstance(value, str):
        return False
    try:
        ids_of(value)
    except BrokenDocumentError as reason:
        remedy = "Pass texts, lists of token ids, or records (dicts) with a field of either."
        if isinstance(value, (int, np.integer)):
            remedy = "If all of them are the ids of one document, pass [ids]."
        elif isinstance(value, PurePath):
            remedy = "Pass a list of the paths."
        elif hasattr(value, "as_py"):  # of an array of pyarrow
            remedy = 'Pass pyarrow.table({"text": data}), or {"tokens": data} if it has ids.'
        elif isinstance(value, bytes):
            remedy = "Decode it, for example by [text.decode() for text in data]."
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
            remedy = "Join it to one text, or pass the part of it that is the document."
        raise ConfigError(
            f"{where} {reason}.", "It is neither text nor token ids.", remedy
        ) from reason
    return True


def is_table(data: Any) -> bool:
    """True for tables with rows and columns: those of pyarrow, pandas, polars and the like."""
    arrow = ("__arrow_c_stream__", "__arrow_c_array__", "iloc")
    return hasattr(data, "columns") and any(hasattr(data, name) for name in arrow)


def is_by_columns(data: Any) -> bool:
    """True for what is read by columns: tables, and datasets without a transform."""
    is_dataset = kind_name(data) == "datasets.arrow_dataset.Dataset"
    return is_table(data) or (is_dataset and data.format["type"] != "custom")


def is_hf_stream(data: Any) -> bool:
    """True for streaming datasets of Hugging Face."""
    return kind_name(data).startswith("datasets.") and hasattr(data, "set_epoch")


def arrow_table(data: Any) -> Any:
    """A table of pyarrow of another library's.

    Raises:
        ConfigError: a column has values that Arrow has no type for, or two have one name.
    """
    import pyarrow as pa

    names = [str(name) for name in getattr(data, "columns", ())] if hasattr(data, "iloc") else []
    if len({*names}) < len(names):
        name, count = Counter(names).most_common(1)[0]
        raise ConfigError(
            f'The table has {count} columns named "{name}".',
            "Which of them is meant is unknown.",
            "Rename them, or keep the first of each name: data.loc[:, ~data.columns.duplicated()].",
        )
    try:
        return data if isinstance(data, pa.Table) else pa.table(data)
    except pa.ArrowException as error:
        reasons = [str(reason) for reason in error.args]
        found = re.search(r"for column (.+) with type", reasons[-1] if reasons else "")
        column = f'the column "{found[1]}"' if found else "a column"
        name = repr(found[1]) if found else "name"
        raise ConfigError(
            f"The table has {column} that Arrow has no type for: {reasons[0] if reasons else ''}.",
            "It is read by columns.",
            f"Leave it out, data.drop(columns=[{name}]) of a pandas frame; make it texts, "
            f'data.astype({{{name}: str}}); or pass rows as records, data.to_dict("records").',
        ) from error


class Rows:
    """The rows of a table, as records.

    Args:
        table: anything that pyarrow makes a table of.
    """

    def __init__(self, table: Any) -> None:
        self._table = arrow_table(table)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        record: dict[str, Any] = self._table.slice(number, 1).to_pylist()[0]
        return record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()
