"""The function `convert`, which opens sources and converts them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from streampack.arguments import explained
from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.kept import parsed
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import as_source
from streampack.sources.resolve import open as open_source
from streampack.sources.sharded import ShardedSource
from streampack.tokenization import Tokenizer, load_tokenizer

IN_ORDER = ReadOptions(open_shards=1)


@explained
def convert(
    source: Any,
    destination: str,
    *,
    tokenizer: Any = None,
    eos_id: int | None = None,
    chat: bool = False,
    text: str | None = None,
    tokens: str | None = None,
    loss_mask: str | Sequence[str] | None = None,
    keep: Sequence[str] = (),
    part_bytes: int = 256 << 20,
    shard_bytes: int = 64 << 20,
    compression: str | None = None,
    dtype: Literal["uint16", "uint32"] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    address: str | None = None,
    workers: int | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Rewrite a corpus as Parquet shards of token ids, or of text without a tokenizer.

    The corpus is divided into parts, which several processes or machines convert. The shards have
    the same bytes with any number of them, and hold the documents in the order of the corpus. If
    the call is stopped, repeat it to continue after the finished parts. In a script, call it below
    ``if __name__ == "__main__":``, because processes import the script.

    Args:
        source: any source of `PackedDataset` that can be read more than once, but a mixture; or a
            list of `Source`, which are converted one after another.
        destination: empty folder or URL for the shards.
        tokenizer: see `PackedDataset`; None writes texts, or ids that are there already.
        eos_id: id of the end of a document: if the tokenizer declares none; or, without a
            tokenizer, in flat files of ids.
        chat: the records are conversations. They are rendered by the tokenizer's template; for
            other settings pass a `sources.Chat`.
        text: field or column with the documents as texts.
        tokens: field or column with the documents as token ids.
        loss_mask: field or column with loss masks or labels, as for `sources.open`.
        keep: fields that the shards hold beside the documents, each with a text or a number for
            every document, such as "url". The first documents determine the type of numbers;
            "score:float64" names another one. Training reads them as `document_fields`.
        part_bytes: approximate bytes of the source, as stored, in a part, the unit of work of a
            process. A part should give several shards.
        shard_bytes: most content of a shard, in bytes. Larger shards mean fewer requests; smaller
            ones shuffle better.
        compression: Parquet compression: "zstd", "gzip", "brotli", "snappy" or "lz4". None does
            not compress, which suits token ids.
        dtype: dtype of the ids in the shards, and in files that do not declare one; None uses the
            tokenizer's or the source's.
        on_error: policy for broken documents: "raise" stops, "skip" leaves them out and counts and
            names them.
        address: address of a Ray cluster with machines that see the same files; None uses
            processes of this machine.
        workers: processes on this machine, by default one per core that this process may use; on a
            cluster, parts at a time.
        report: called with the progress after the start and after each part.

    Returns:
        The final counts.

    Raises:
        ConfigError: the destination is not empty, or has another conversion; a setting is invalid;
            Ray is not installed, or there is no cluster at the address.
        ContentError: a document is broken, with on_error="raise".
        StateError: shards disappeared, or others appeared, during the conversion.
        StorageError: reading or writing failed; repeat the call to continue.
        WorkerError: workers repeatedly died in the same parts.
    """
    several = source if isinstance(source, (list, tuple)) else [source]
    if not several or not all(isinstance(each, Source) for each in several):
        several = [source]
    in_files = eos_id if tokenizer is None else None
    fields = {"text": text, "tokens": tokens, "loss_mask": loss_mask, "eos_id": in_files}
    given = {name: value for name, value in fields.items() if value is not None}
    opened = [open_in_order(each, chat=chat, dtype=dtype, **given) for each in several]
    conversion = Conversion(
        source=opened[0],
        more=tuple(opened[1:]),
        destination=Destination(destination),
        tokenizer=tokenizer if tokenizer is None else tokenizer_of(tokenizer, eos_id),
        shard_bytes=shard_bytes,
        compression=compression,
        dtype=dtype,
        on_error=on_error,
        part_bytes=part_bytes,
        keep=parsed(keep),
    )
    return convert_source(conversion, address=address, workers=workers, report=report)


def tokenizer_of(tokenizer: Any, eos_id: int | None) -> Tokenizer | None:
    """Return the tokenizer of shards, or None.

    Raises:
        ConfigError: `eos_id` is given without a tokenizer.
    """
    if tokenizer is not None:
        ids = {} if eos_id is None else {"eos_id": eos_id}
        return load_tokenizer(tokenizer, **ids)
    if eos_id is not None:
        raise ConfigError(
            f"eos_id (--eos-id) needs a tokenizer, got eos_id={eos_id} alone.",
            "Omit eos_id, or pass a tokenizer (--tokenizer).",
            setting="eos_id",
        )
    return None


def open_in_order(
    data: Any, *, chat: bool = False, dtype: str | None = None, **fields: Any
) -> Source:
    """Open a source that reads one shard after another.

    Args:
        data: see `convert`.
        chat: the records are conversations.
        dtype: dtype of the ids in files that do not declare one.
        fields: arguments of `sources.open`.

    Raises:
        ConfigError: see `sources.open`; or fields are named for conversations.
    """
    if chat:
        from streampack.chats.source import Chat

        if fields or isinstance(data, Source):
            raise ConfigError(
                "Conversations are found in files and records, without names of fields, got "
                f"{', '.join(fields) or type(data).__name__}.",
                "Omit the names of fields, and pass files or records; or omit chat (--chat).",
                setting="chat",
            )
        chats = Chat(data, reading=IN_ORDER)
        chats.prepare()
        return chats
    if isinstance(data, Source):
        opened = as_source(data, **fields)
        opened.prepare()
        return _one_by_one(opened)
    try:
        return open_source(data, reading=IN_ORDER, **fields)
    except ConfigError as error:
        if error.setting == "dtype" and dtype is not None:
            return open_source(data, reading=IN_ORDER, dtype=dtype, **fields)
        if error.setting != "reading":  # data in memory without shards
            raise
    return open_source(data, **fields)


def _one_by_one(source: Source) -> Source:
    """Return a copy of a source that opens one shard at a time."""
    inner = source._inner
    if not isinstance(inner, ShardedSource) or inner.reading.open_shards == 1:
        return source
    copied = copy.copy(inner)
    copied.reading = replace(inner.reading, open_shards=1)
    if inner is source:
        return copied
    outer = copy.copy(source)
    outer._records = copied  # type: ignore[attr-defined]
    return outer
