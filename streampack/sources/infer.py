"""The source of what a user passes: the one place where it is decided."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from numpy.typing import DTypeLike

from streampack.arguments import explained
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.options import Reading
from streampack.sources.arrow.arrays import is_ragged, table_of_documents, table_of_ragged
from streampack.sources.arrow.table import Table
from streampack.sources.files import is_there, open_files, seems_path
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.indexed import Items
from streampack.sources.iterable.objects import is_random_access, iterate, kind_name, own_copy
from streampack.sources.iterable.recognise import fields_of, is_by_columns, is_hf_stream
from streampack.sources.iterable.source import Iterable
from streampack.storage.storage import Storage

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

    Strings are documents only in a list or another iterable, and only if they cannot be paths.

    Args:
        source: a `Source`; a file, folder, URL or pattern (or a list of them) of one format; a
            dataset of Hugging Face; a pair of arrays (tokens, offsets); or what
            `sources.Items` or `sources.Iterable` take.
        given: arguments of `open`.

    Raises:
        ConfigError: it is none of these, or it is unknown which part of it is the document.
    """
    if isinstance(source, (str, os.PathLike)):
        return _by_path(os.fspath(source), given)
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
        return _hf_stream(source, given)
    if is_by_columns(source):
        return Table(source, **given)
    if getattr(source, "is_nested", False) is True:  # a nested tensor of torch
        source = source.unbind()
    made = Items(source, **given) if is_random_access(source) else Iterable(source, **given)
    fields = made.fields
    if fields.document is None and not fields.tokenized and not isinstance(source, Sequence):
        _refuse_path(made.first_item(), kind_name(source))
    return made


def _refuse_others(source: Any, given: Mapping[str, Any], takes: Collection[str]) -> None:
    for name in given:
        if name not in takes:
            raise ConfigError(
                f"{name}={given[name]!r:.80} was given, and the source is {kind_name(source)}.",
                f"What it takes is {', '.join(takes) or 'given where it is made'}.",
                f"Leave {name} out.",
            )


def _by_path(path: str | bytes, given: Mapping[str, Any]) -> Source:
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
    return open_files(path, **given)


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


def _hf_stream(dataset: Any, given: Mapping[str, Any]) -> Source:
    if "text" in given or "tokens" in given:
        return HFStream(dataset, **given)
    first = next(iterate(own_copy(dataset, made_new=False)), None)
    if first is None:
        raise ConfigError(
            "The streaming dataset has no rows.", "There is nothing to read.", "Pass another split."
        )
    fields = fields_of(first, given.get("loss_mask"))
    named = {"tokens" if fields.tokenized else "text": fields.document}
    masks = {"loss_mask": fields.loss_mask or []} if fields.tokenized else {}
    return HFStream(dataset, **{**named, **masks, **given})
