"""The source that a path or an iterable stands for, where the caller names no kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.sources.jsonl.source import JSONL
from streampack.sources.parquet.source import Parquet

__all__ = ["as_source"]

_JSONL = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst")


def as_source(source: Any) -> Source:
    """`source` itself, or the one its file names or its kind imply.

    Args:
        source: a `Source`; a path, URL or pattern (or several) of Parquet or JSON-lines files;
            or an iterable of texts, token ids or dicts.

    Raises:
        ConfigError: the names do not tell the format, or the format does not tell the column.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _by_name([os.fspath(source)])
    if (
        isinstance(source, Sequence)
        and len(source)
        and all(isinstance(item, os.PathLike) or _is_path(item) for item in source)
    ):
        return _by_name([os.fspath(item) for item in source])
    from streampack.sources.iterable.source import Iterable

    return Iterable(source)


def _is_path(item: Any) -> bool:
    return isinstance(item, str) and item.lower().endswith((".parquet", ".tar", *_JSONL))


def _by_name(paths: list[str]) -> Source:
    names = [path.lower().rstrip("/") for path in paths]
    if all(name.endswith(".parquet") for name in names):
        return Parquet(paths)
    if all(name.endswith(_JSONL) for name in names):
        return JSONL(paths)
    raise ConfigError(
        f"{paths[0]!r} does not tell what the documents are.",
        "Only names that end in .parquet or .jsonl do.",
        'Name the source and the column: sources.MDS(path, column="tokens"), '
        'sources.WebDataset(url, key="npy"), sources.Parquet(folder, text="text").',
    )
