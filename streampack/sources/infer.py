"""The source for a path or an iterable, if the caller names no format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.sharded import ShardedSource
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.source import MDS
from streampack.sources.parquet.source import Parquet
from streampack.sources.tar.source import WebDataset
from streampack.storage.patterns import has_ending

__all__ = ["as_source", "format_of"]

#: Asked in this order: an MDS index ends in ".json" as well.
_FORMATS: tuple[Any, ...] = (MDS, Parquet, JSONL, WebDataset)


def format_of(path: str) -> type[ShardedSource] | None:
    """The format whose files have names that end as this path does; None if there is none."""
    return next((known for known in _FORMATS if has_ending(path, known.endings)), None)


def as_source(source: Any) -> Source:
    """`source` itself, or the source that its file names or its type imply.

    Args:
        source: a `Source`; a path, URL or pattern (or several) of Parquet files or of JSON lines;
            or an iterable of texts, token ids or dicts.

    Raises:
        ConfigError: file names of no known format, of several, or of one that needs to know which
            part of a file is the document.
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
    return isinstance(item, str) and format_of(item) is not None


def _by_name(paths: list[str]) -> Source:
    formats: list[Any] = [format_of(path) for path in paths]
    found = formats[0]
    if None in formats:
        path = paths[formats.index(None)]
        raise ConfigError(
            f"The name {path!r} does not say what format the files have.",
            "They cannot be read.",
            "Pass the source of their format: "
            + ", ".join(known.example([path]) for known in _FORMATS)
            + ".",
        )
    if any(other is not found for other in formats):
        other = next(i for i, other in enumerate(formats) if other is not found)
        raise ConfigError(
            f"{paths[0]!r} is read by {found.__name__}, {paths[other]!r} by "
            f"{formats[other].__name__}.",
            "A source has one format.",
            "Pass the files of one format, or a sources.Mixture of several sources.",
        )
    if found.needed_argument:
        raise ConfigError(
            f"{found.__name__} shards such as {paths[0]!r} have several parts.",
            "Their names do not say which part is the document.",
            f"Pass {found.example(paths)}, with the name of yours.",
        )
    source: Source = found(paths)
    return source
