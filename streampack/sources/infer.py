"""The source of what a user passes: the one place where it is decided."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.sources.arrow.table import Table
from streampack.sources.files import is_there, open_files, seems_path
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.objects import iterate, kind_name, own_copy
from streampack.sources.iterable.recognise import fields_of, is_table
from streampack.sources.iterable.source import Iterable

__all__ = ["as_source"]

_LOOKED_AT = 100  # strings of a list, to see whether they are paths


def as_source(source: Any) -> Source:
    """`source` itself, or the source that its names or its type imply.

    Strings are documents only in a list or another iterable, and only if they cannot be paths.

    Args:
        source: a `Source`; a file, folder, URL or pattern (or a list of them) of one format; a
            dataset of Hugging Face; or what `sources.Iterable` takes.

    Raises:
        ConfigError: it is none of these, or it is unknown which part of it is the document.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _by_path(os.fspath(source))
    if isinstance(source, Sequence) and _names_files(source):
        return open_files([os.fspath(item) for item in source])
    if kind_name(source).startswith("datasets.") and hasattr(source, "set_epoch"):
        return _hf_stream(source)
    made = Iterable(source)
    if (table := _by_columns(source, made)) is not None:
        return table
    if made.first_text is not None and not isinstance(source, Sequence):
        _refuse_path(made.first_text, kind_name(source))
    return made


def _by_path(path: str | bytes) -> Source:
    if isinstance(path, bytes) or not seems_path(path):
        raise ConfigError(
            f"The source is {path!r:.100}, a single text that names no file.",
            "A corpus has several documents, and a path would be the place of one.",
            "Pass a list of texts, [text], or a path.",
        )
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not is_there(path) and "*" not in path:
        known = re.search(r"\.\w+$", path)
        if known is None:
            raise ConfigError(
                f'There is no file or folder "{path}".',
                "If it is a dataset on the Hugging Face Hub: nothing is downloaded by its name.",
                f'Pass datasets.load_dataset("{path}", split="train", streaming=True), or correct '
                "the path.",
            )
    return open_files(path)


def _names_files(items: Sequence[Any]) -> bool:
    """True if the items are paths; raises `ConfigError` if some are and others are not."""
    looked_at = list(islice(items, _LOOKED_AT))
    paths = [item for item in looked_at if _seems_path(item)]
    if paths and len(paths) == len(looked_at):
        return True
    mixed = [item for item in looked_at if isinstance(item, Source)]
    mixed += [item for item in paths if os.path.isfile(item)]
    if mixed:
        raise ConfigError(
            f"The source is a list, and {str(mixed[0])!r:.200} in it is a corpus by itself.",
            "A list holds paths of one corpus, or documents.",
            "Pass paths only, or sources.Mixture({name: source, ...}, weights={...}).",
        )
    return False


def _seems_path(item: Any) -> bool:
    return isinstance(item, os.PathLike) or (isinstance(item, str) and seems_path(item))


def _refuse_path(text: str, kind: str) -> None:
    if seems_path(text):
        raise ConfigError(
            f"The first item of the {kind} is {text!r}, which can be a path.",
            "The path itself would be the document.",
            "Pass a list of the paths, list(data); or, if they are documents, records: "
            '[{"text": text} for text in data].',
        )


def _by_columns(data: Any, rows: Iterable) -> Table | None:
    """The table that data is, if its documents can be read by columns: no transform, one type."""
    by_index = kind_name(data) == "datasets.arrow_dataset.Dataset"
    if not (by_index and data.format["type"] != "custom") and not is_table(data):
        return None
    fields = rows.fields
    name = fields.document
    table = Table(data, tokens=name) if fields.tokenized else Table(data, text=name)
    try:
        table.prepare()
    except ConfigError:  # of another type: what is no document is named row by row
        return None
    return table


def _hf_stream(dataset: Any) -> Source:
    first = next(iterate(own_copy(dataset, made_new=False)), None)
    if first is None:
        raise ConfigError(
            "The streaming dataset has no rows.", "There is nothing to read.", "Pass another split."
        )
    fields = fields_of(first, lambda name: f'sources.HFStream(dataset, text="{name}"), or tokens=')
    if fields.tokenized:
        return HFStream(dataset, tokens=fields.document)
    return HFStream(dataset, text=fields.document)
