"""The source of what a user passes, paths or objects: the one place where it is decided."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from numpy.typing import DTypeLike

from streampack.arguments import explained
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.job.listed_once import listed_once
from streampack.sources.arrow import Arrow
from streampack.sources.base import Reading, Source
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.indexed import Items
from streampack.sources.iterable.items import is_random_access, kind_name
from streampack.sources.iterable.recognise import is_by_columns, is_hf_stream
from streampack.sources.iterable.source import Iterable
from streampack.sources.jsonl import JSONL
from streampack.sources.mds.source import MDS
from streampack.sources.megatron import MegatronIndexed
from streampack.sources.parquet.source import Parquet
from streampack.sources.table import Table, is_ragged, table_of_documents, table_of_ragged
from streampack.sources.tar.source import WebDataset
from streampack.sources.text import TextFiles
from streampack.sources.tokens import Tokens
from streampack.storage.listing import has_ending, refuse_pipes
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

#: Formats of which nothing but text or ids need be chosen.
DOCUMENT_FORMATS: tuple[Any, ...] = (Parquet, JSONL, Arrow, TextFiles)
#: Arguments that a format may need, as `sources.open` names them.
_NAMED = ("text", "tokens", "loss_mask", "dtype", "eos_id")
#: Asked in this order: an MDS index ends in ".json" as well.
_FORMATS: tuple[Any, ...] = (MDS, WebDataset, *DOCUMENT_FORMATS, MegatronIndexed, Tokens)

#: What Hugging Face's library writes beside the Arrow files of a dataset.
_OF_DATASETS = ("/dataset_dict.json", "/dataset_info.json", "/state.json")
_LONGEST_PATH = 4096
_NAME = re.compile(r"[^\s<>\"|]*(/|\\|\.\w{1,8}$)[^\s<>\"|]*")  # no marks, as of "</s>"


def seems_path(text: str) -> bool:
    """True if a string can be meant as a path, URL or pattern: by its ending, or without blanks."""
    if not text or len(text) > _LONGEST_PATH or not text.isprintable():
        return False
    known = _format_of(text) is not None or _NAME.fullmatch(text) is not None
    return known or is_there(text)


def is_there(path: str) -> bool:
    """True for a local file or folder, or the prefix of an indexed dataset."""
    return os.path.exists(path) or os.path.exists(f"{path}.idx")


def open_files(
    paths: str | Sequence[str],
    *,
    reading: Reading | None = None,
    storage: Storage | None = None,
    formats: Sequence[Any] = _FORMATS,
    **given: Any,
) -> Source:
    """The source of files of any format, by their names and what they hold.

    One process of a job looks at them, and the others take what it found.

    Args:
        paths: a file, folder, glob or URL, or several of one format.
        reading, storage: how the files are read and reached.
        formats: those that are wanted.
        given: arguments of `sources.open`; None is as if it were left out.

    Raises:
        ConfigError: no file is there, they have several formats or none that is known, or an
            argument is missing or does not go with the format.
    """
    storage = Storage() if storage is None else storage
    several = [paths] if isinstance(paths, str) else list(paths)
    refuse_pipes(several)
    given = {name: value for name, value in given.items() if value is not None}
    described = {
        "look": several,
        "given": given,
        "formats": [known.__name__ for known in formats],
        "storage": storage.storage_options,
    }
    known = listed_once(described, lambda: _look(several, storage, formats, given))
    source: Source = known(several, **given, reading=reading, storage=storage)
    return source


def _look(paths: list[str], storage: Storage, formats: Sequence[Any], given: dict[str, Any]) -> Any:
    """The format of files, which takes what is given."""
    known: Any = _one_format(paths, storage, formats)
    takes = inspect.signature(known).parameters
    for name, value in given.items():
        if name not in takes:
            named = [option for option in _NAMED if option in takes]
            raise ConfigError(
                f"{name}={value!r} was given, and the files are read by {known.__name__}.",
                remedy=f"It takes {', '.join(named) or 'none of the kind'}.",
                setting=name,
            )
    return known


def _format_of(path: str) -> Any:
    """The format whose files have names that end as this path does; None if there is none."""
    return next((known for known in _FORMATS if has_ending(path, known.endings)), None)


def _one_format(paths: list[str], storage: Storage, wanted: Sequence[Any]) -> Any:
    """The format of the files at paths, by their names or else by what is listed there."""
    first: dict[Any, str] = {}
    for path in paths:
        found = None if os.path.isdir(path) else _format_of(path)
        if _is_indexed(path, storage):
            found = MegatronIndexed
        if found in wanted:
            first.setdefault(found, path)
            continue
        listed: dict[Any, str] = {}
        names = {file.path for file in storage.list(path)}
        if any(has_ending(name, Arrow.endings) for name in names):
            names = {name for name in names if not has_ending(name, _OF_DATASETS)}
        for name in sorted(names):
            indexed = has_ending(name, (".bin",)) and f"{name[:-4]}.idx" in names
            listed.setdefault(MegatronIndexed if indexed else _format_of(name), name)
        if MDS in wanted and MDS in listed:  # there may be other files beside an index
            listed = {MDS: listed[MDS]}
        if not set(listed) & set(wanted):
            endings = ", ".join(ending for known in wanted for ending in known.endings[:1])
            other = listed.get(None, next(iter(listed.values())))
            raise ConfigError(
                f'"{shown(path)}" names files of no kind that is read here, such as '
                f"{shown(other)}.",
                remedy=f"Name files that end in {endings} or the like, or pass a source of "
                "streampack.sources.",
                path=shown(path),
            )
        for known in set(listed) & set(wanted):
            first.setdefault(known, listed[known])
    if len(first) > 1:
        shown_files = ", ".join(sorted(map(shown, first.values()))[:3])
        raise ConfigError(
            f"{_words(paths)} names files of {len(first)} kinds that can be read here "
            f"({shown_files}).",
            'Use a pattern that names one kind, such as "folder/*.jsonl", or a sources.Mixture of '
            "several sources.",
            setting="source",
        )
    (known,) = first
    return known


def _is_indexed(path: str, storage: Storage) -> bool:
    """True for a `.bin` with a `.idx` beside it, and for the prefix of both."""
    if has_ending(path, (".bin",)):
        try:
            return bool(storage.list(f"{path[:-4]}.idx"))
        except ConfigError:
            return False
    return not os.path.exists(path) and is_there(path)


def _words(paths: list[str]) -> str:
    return f'"{shown(paths[0])}"' + (f" with {len(paths) - 1} more" if paths[1:] else "")


_LOOKED_AT = 100  # strings of a list, to see whether they are paths
_OF_OBJECTS = ("text", "tokens", "loss_mask", "reading")


@explained
def open(
    source: Any,
    *,
    text: str | None = None,
    tokens: str | None = None,
    loss_mask: str | Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    eos_id: int | None = None,
    reading: Reading | None = None,
    storage: Storage | None = None,
) -> Source:
    """The source of what there is, which says what it was taken for; its shards are listed.

    Files are known by their names: an `index.json` of MDS, a `.idx` beside a `.bin`, an ending. If
    one of the fields or columns is named "text", "txt", "tokens" or "input_ids" and is of its type,
    or if there is only one, nothing need be named. `PackedDataset` and the commands take paths in
    the same way.

    Args:
        source: a file, folder, URL or pattern, or a list of them; or anything else that
            `PackedDataset` takes.
        text: the field or column with the documents, as texts.
        tokens: the same, as token ids.
        loss_mask: the field or column with one bool (or 1 or 0) per token, or labels: a token's own
            id where it is learnt, and -100 where not; of several, all must say so. If nothing is
            named, "loss_mask", "labels", "assistant_masks" and "completion_mask" beside token ids.
        dtype: the integers of raw files, of a `bytes` column of MDS or of bare arrays in tar.
        eos_id: the token that ends a document, in flat files of tokens.
        reading: how it is read.
        storage: how files are reached.

    Raises:
        ConfigError: nothing is there, it is of no kind that can be read, or an argument is missing
            or does not go with it; the message has the columns or files that are there.
    """
    opened = as_source(
        source,
        text=text,
        tokens=tokens,
        loss_mask=loss_mask,
        dtype=dtype,
        eos_id=eos_id,
        reading=reading,
        storage=storage,
    )
    opened.prepare()
    return opened


def as_source(source: Any, **given: Any) -> Source:
    """`source` itself, or the source that its names or its type imply; nothing is listed yet.

    Strings are documents only in a list that cannot be one of paths, or in another iterable.

    Args:
        source: a `Source`; a file, folder, URL or pattern (or a list of them) of one format; a
            dataset of Hugging Face; a pair of arrays (tokens, offsets); or what
            `sources.Items` or `sources.Iterable` take.
        given: arguments of `open`.

    Raises:
        ConfigError: it is none of these, or it is unknown which part of it is the document.
    """
    if isinstance(source, (str, os.PathLike)):
        return open_files(os.fspath(source), **given)
    if isinstance(source, Sequence) and _names_files(source):
        return open_files([os.fspath(item) for item in source], **given)
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(source, Source):
        _refuse_others(source, given, ())
        return source
    if isinstance(source, Documents) or is_ragged(source):
        _refuse_others(source, given, ("reading",))
        if isinstance(source, Documents):
            mask = [] if source.loss_mask is None else "loss_mask"
            return Table(table_of_documents(source), tokens="tokens", loss_mask=mask, **given)
        return Table(table_of_ragged(*source), tokens="tokens", **given)
    _refuse_others(source, given, _OF_OBJECTS)
    if is_hf_stream(source):
        return HFStream(source, **given)
    if is_by_columns(source):
        return Table(source, **given)
    if getattr(source, "is_nested", False) is True:  # a nested tensor of torch
        source = source.unbind()
    return Items(source, **given) if is_random_access(source) else Iterable(source, **given)


def _refuse_others(source: Any, given: Mapping[str, Any], takes: Collection[str]) -> None:
    for name in given:
        if name not in takes:
            raise ConfigError(
                f"{name}={given[name]!r:.80} was given, and the source is {kind_name(source)}.",
                f"Leave {name} out.",
                setting=name,
            )


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
            "Pass paths only, or sources.Mixture({name: source, ...}, weights={...}).",
            setting="source",
        )
    return False


def _seems_path(item: Any) -> bool:
    return isinstance(item, os.PathLike) or (isinstance(item, str) and seems_path(item))
