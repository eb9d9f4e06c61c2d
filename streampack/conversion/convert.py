"""Conversion of a source to Parquet shards, restartable after the last finished shard.

The source is read in one lane, unshuffled, and tokenized if requested. Shards are cut by size. Each
is written locally and moved into place; then a progress file records the position at which the
source continues. It is removed at the end.

A killed run leaves complete shards and a complete progress file. The same conversion continues
after them and produces the same bytes, because its result depends only on the source and the
settings. A shard that is missing from the progress file is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from streampack.arguments import one_of, whole_number
from streampack.conversion.folders import alone, writing_to
from streampack.conversion.shards import (
    HIDDEN,
    OVERHEAD,
    Destination,
    Payload,
    no_documents,
    payloads_of,
    write_shard,
)
from streampack.errors import ConfigError
from streampack.sources.base import Cursor, Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer

_NOTE = f"{HIDDEN}/progress.json"
_COMPRESSIONS = ("zstd", "gzip", "brotli", "snappy", "lz4")


@dataclass(frozen=True)
class Progress:
    """Progress of a conversion up to the last finished shard.

    Attributes:
        cursor: position in the source before the block in which the next shard begins.
        inside: number of documents of that block in finished shards.
        shards: number of finished shards.
        documents: number of written documents.
        tokens: number of written tokens; 0 for text.
        skipped: number of broken documents skipped before that block; at the end, in total.
        dtype: dtype of the ids, or "" before it is known; "str" for text.
    """

    cursor: Cursor | None = None
    inside: int = 0
    shards: int = 0
    documents: int = 0
    tokens: int = 0
    skipped: int = 0
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Source, destination and settings of a conversion.

    Attributes:
        source: the corpus, read in one lane without shuffling.
        destination: an empty folder, or one with an unfinished run of the same conversion.
        tokenizer: tokenizer for a source of text; None writes the text itself.
        shard_bytes: most content of a shard, in bytes. Larger shards mean fewer requests; smaller
            ones shuffle better and resume sooner.
        compression: Parquet compression: "zstd", "gzip", "brotli", "snappy" or "lz4". None does
            not compress, which suits token ids.
        dtype: dtype of the ids in the shards, "uint16" or "uint32"; None uses the tokenizer's or
            the source's.
        on_error: policy for broken documents, "raise" or "skip".
    """

    source: Source
    destination: Destination
    tokenizer: Tokenizer | None = None
    shard_bytes: int = 64 << 20
    compression: str | None = None
    dtype: str | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        whole_number("shard_bytes", self.shard_bytes)
        for name, known in (("compression", _COMPRESSIONS), ("dtype", ("uint16", "uint32"))):
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), known)
        if self.tokenizer is not None and self.source.tokenized:
            raise ConfigError(
                "A tokenizer is for documents of text, but these are tokenized already.",
                "Omit --tokenizer, or name a column of text with --text.",
                setting="tokenizer",
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the result; only an equal run can continue it."""
        return {
            "version": 1,
            "source": self.source.describe(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.fingerprint,
            "shard_bytes": self.shard_bytes,
            "compression": self.compression,
            "dtype": self.dtype,
            "on_error": self.on_error,
        }


def convert_source(
    conversion: Conversion, report: Callable[[Progress], None] = lambda _: None
) -> Progress:
    """Run a conversion to its end, or continue one that was stopped.

    Args:
        conversion: the conversion.
        report: called with the progress after the start, each block and each shard.

    Returns:
        The final progress.

    Raises:
        ConfigError: the destination is not empty, or has another conversion.
        ContentError: a document is broken, with on_error="raise".
        StorageError: reading or writing failed; repeat the call to continue.
    """
    destination = conversion.destination
    if destination.local is None:
        return _converted(conversion, report)
    with alone(destination.local / HIDDEN, destination.url):
        return _converted(conversion, report)


def _converted(conversion: Conversion, report: Callable[[Progress], None]) -> Progress:
    destination = conversion.destination
    progress = _resume(conversion)
    report(progress)
    scratch = destination.scratch()

    def note() -> None:
        content = {"settings": conversion.settings(), "progress": asdict(progress)}
        destination.write(_NOTE, json.dumps(content, sort_keys=True).encode(), scratch)

    try:
        note()
        for after, payloads in _shards(conversion, progress, report):
            progress = after
            with writing_to(scratch):
                file = write_shard(scratch, progress.shards - 1, payloads, conversion.compression)
                destination.put(file, file.name)
                note()
            report(progress)
        if not progress.shards:
            raise no_documents()
        destination.remove(_NOTE)
    finally:
        destination.clear(scratch)
    return progress


def _resume(conversion: Conversion) -> Progress:
    """Return the progress to continue from; without a finished shard, settings may change."""
    destination = conversion.destination
    names = destination.names()
    if _NOTE not in names or not any(not name.startswith(f"{HIDDEN}/") for name in names):
        destination.begin("conversion")
        return Progress()
    saved = json.loads(destination.read(_NOTE))
    destination.refuse_other("conversion", saved["settings"], conversion.settings())
    return Progress(**saved["progress"])


def _shards(
    conversion: Conversion, progress: Progress, report: Callable[[Progress], None]
) -> Iterator[tuple[Progress, list[Payload]]]:
    """Yield shards as (progress after the shard, documents of the shard)."""
    skips = ErrorPolicy(conversion.on_error)
    skips.counts.skipped = progress.skipped
    (reader,) = conversion.source.lanes(1, seed=0, epoch=0, shuffle=False)
    before, inside = progress.cursor, progress.inside
    first, tokens = progress.documents, progress.tokens
    dtype = progress.dtype or conversion.dtype or ""
    gathered: list[Payload] = []
    size = 0
    skipped = skips.counts.skipped  # before the block, which is re-read after a restart

    def progress_at(cursor: Cursor | None, inside: int) -> Progress:
        return Progress(
            cursor=cursor,
            inside=inside,
            shards=progress.shards + 1,
            documents=first + len(gathered),
            tokens=tokens,
            skipped=skipped,
            dtype=dtype,
        )

    cursor = before
    for block, cursor in reader.read(before, skips):
        dtype, payloads, _ = payloads_of(
            block, conversion.source, conversion.tokenizer, dtype, skips, masks=True
        )
        for i, payload in enumerate(payloads[inside:], start=inside):
            more = OVERHEAD + (
                len(payload.encode()) if isinstance(payload, str) else payload.nbytes
            )
            if gathered and size + more > conversion.shard_bytes:
                progress = progress_at(before, i)
                yield progress, gathered
                first, gathered, size = progress.documents, [], 0
            gathered.append(payload)
            size += more
            tokens += 0 if isinstance(payload, str) else len(payload)
        before, inside, skipped = cursor, 0, skips.counts.skipped
        report(replace(progress_at(before, 0), shards=progress.shards))
    skipped = skips.counts.skipped
    if gathered:
        yield progress_at(cursor, 0), gathered
