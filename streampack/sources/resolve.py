"""Choose the source for a user's argument, paths or objects: the one place where it is decided."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from streampack.arguments import explained
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.arguments import RecordFileOptions
from streampack.sources.base import Source
from streampack.sources.indexed import Items
from streampack.sources.items import is_random_access
from streampack.sources.recognise import is_by_columns, is_hf_stream

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Unpack

    from streampack.hooks.hook import Hook, RecordFunction


_LOOKED_AT = 100  # strings of a list that are checked for being paths
_OF_OBJECTS = ("text", "tokens", "loss_mask", "reading")


@explained
def open(
    source: Any,
    *,
    dtype: DTypeLike | None = None,
    eos_id: int | None = None,
    records: Hook | RecordFunction | None = None,
    where: Any = None,
    **options: Unpack[RecordFileOptions],
) -> Source:
    """Open files or objects as a source, and list its shards; its repr shows the chosen class.

    Files are recognised by their names: an `index.json` of MDS, a `.idx` beside a `.bin`, an
    ending. No field need be named if one field or column is called "text", "txt", "tokens" or
    "input_ids" and has the right type, or if there is only one. `PackedDataset` and the commands
    take paths in the same way.

    Args:
        source: a file, folder, URL or pattern, or a list of them; or any other source that
            `PackedDataset` takes.
        text: the field or column with the documents, as texts.
        tokens: the field or column with the documents, as token ids.
        loss_mask: the field or column with one bool (or 1 or 0) per token, or labels: a token's own
            id where it is learnt, and -100 where not; with several, a token is learnt if it is
            learnt in all. None reads "loss_mask", "labels", "assistant_masks" and
            "completion_mask" beside token ids.
        dtype: dtype of the integers of raw files, of a `bytes` column of MDS or of bare arrays in
            tar.
        eos_id: the token that ends a document, in flat files of tokens.
        records: function of a record (a dict with all of its fields) that returns a record with a
            text or ids, or None to leave it out. Fields are named as in its results. A state
            identifies it by module and name; wrap a lambda in `Hook`.
        where: a condition on the columns of Parquet, Arrow or a table; see `sources.Parquet`.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: the source is missing or of an unknown kind, or an argument is missing or does
            not fit it; the message lists the existing columns or files.
    """
    opened = as_source(source, dtype=dtype, eos_id=eos_id, records=records, where=where, **options)
    opened.prepare()
    return opened


def as_source(source: Any, **options: Any) -> Source:
    """Return `source` itself, or the source that its names or its type imply, not listed yet.

    Strings are documents only in a list that cannot be a list of paths, or in another iterable.

    Args:
        source: a `Source`; a file, folder, URL or pattern (or a list of them) of one format; a
            dataset of Hugging Face; a pair of arrays (tokens, offsets); or an argument of
            `sources.Items` or `sources.Iterable`.
        options: arguments of `open`.

    Raises:
        ConfigError: `source` has another type, or the part of it with the documents is unknown.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if "records" in options and (not isinstance(source, Source) or hasattr(source, "where")):
        _refuse_others(source, options, ("records", "storage", "where", *_OF_OBJECTS))
        from streampack.iterables.record_documents import open_records

        return open_records(source, **options)
    if isinstance(source, (str, os.PathLike)):
        return _open_files(os.fspath(source), **options)
    if isinstance(source, Sequence) and _names_files(source):
        return _open_files([os.fspath(item) for item in source], **options)
    if isinstance(source, Source):
        _refuse_others(source, options, ())
        if not type(source).__module__.startswith("streampack."):
            from streampack.wrong_calls.private_names import refuse_private_names

            refuse_private_names(source)
        return source
    if isinstance(source, Documents) or is_ragged(source):
        _refuse_others(source, options, ("reading",))
        from streampack.iterables.table import of_arrays

        return of_arrays(source, **options)
    _refuse_others(source, options, _OF_OBJECTS)
    if is_hf_stream(source):
        from streampack.iterables.hf import HFStream

        return HFStream(source, **options)
    if is_by_columns(source):
        from streampack.iterables.table import Table

        return Table(source, **options)
    if getattr(source, "is_nested", False) is True:  # a torch nested tensor
        source = source.unbind()
    if is_random_access(source):
        return Items(source, **options)
    from streampack.iterables.source import Iterable

    return Iterable(source, **options)


def _open_files(paths: str | Sequence[str], **options: Any) -> Source:
    from streampack.files.paths import open_files

    return open_files(paths, **options)


def is_ragged(data: Any) -> bool:
    """Return True for a tuple of two arrays of one dimension, as ``(tokens, offsets)`` is."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and all(hasattr(part, "__array__") and getattr(part, "ndim", 0) == 1 for part in data)
    )


def _refuse_others(source: Any, arguments: Mapping[str, Any], takes: Collection[str]) -> None:
    for name, value in arguments.items():
        if name not in takes:
            from streampack.wrong_calls.calls import refused

            raise refused(source, name, value)


def _names_files(items: Sequence[Any]) -> bool:
    """Return True if the items are paths; raise `ConfigError` if some are and others are not."""
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
    if not isinstance(item, str):
        return isinstance(item, os.PathLike)
    from streampack.files.paths import seems_path

    return seems_path(item)
