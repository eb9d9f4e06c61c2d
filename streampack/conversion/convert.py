"""Conversion: a source rewritten as shards, restartable after the last finished shard.

Steps: read the source in one lane, unshuffled; tokenize if asked to; cut shards by size; write
each shard locally, put it in place, then put a progress file for it with the place where the source
continues; at the end write the index and remove the progress files.

A killed run leaves whole shards and whole progress files. The same conversion continues after them
and ends with the same bytes, since its result depends on nothing but the source and the settings. A
shard without a progress file is written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from streampack.conversion.checks import check_content, check_shard_bytes, no_documents
from streampack.conversion.destination import HIDDEN, Destination
from streampack.conversion.payloads import payloads_of
from streampack.conversion.shard_writer import Payload, ShardWriter
from streampack.conversion.shard_writers import shard_writer
from streampack.errors import ConfigError
from streampack.reading.base import Cursor, Source
from streampack.reading.skips import Skips
from streampack.storage.listing import in_threads
from streampack.tokenization import Tokenizer

_SETTINGS = f"{HIDDEN}/settings.json"


@dataclass(frozen=True)
class Progress:
    """How far a conversion has come: everything up to the last finished shard.

    Attributes:
        cursor: of the source, before the block in which the next shard begins.
        inside: documents of that block that are written already.
        shards, documents, tokens: how many are written (tokens is 0 for text).
        skipped: broken documents left out.
        records: what was skipped in the block in which the next shard begins.
        dtype: of the ids, once known; "str" for text.
    """

    cursor: Cursor | None = None
    inside: int = 0
    shards: int = 0
    documents: int = 0
    tokens: int = 0
    skipped: int = 0
    records: list[list[Any]] = field(default_factory=list)
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert, where to and how.

    Attributes:
        source: read in one lane without shuffling.
        destination: empty, or holding an unfinished run of the same conversion.
        to: "mds", "webdataset" or "parquet".
        tokenizer: for a source of text; None writes the text itself.
        shard_bytes: a shard ends before it would hold more content than this.
        compression: for MDS: "zstd", "gz", "br", "bz2" or "snappy", or with a level "zstd:9".
        dtype: of the ids in the shards, "uint16" or "uint32"; None is the dtype of the tokenizer or
            the source.
        on_error: "raise" or "skip" for broken documents.
    """

    source: Source
    destination: Destination
    to: str
    tokenizer: Tokenizer | None = None
    shard_bytes: int = 64 << 20
    compression: str | None = None
    dtype: str | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        check_shard_bytes(self.shard_bytes)
        check_content(self.source, self.tokenizer)
        if self.dtype not in (None, "uint16", "uint32"):
            raise ConfigError(
                f'Ids are to be stored as "{self.dtype}".',
                "streampack reads and writes ids of 16 and 32 bits without sign.",
                "Use uint16 or uint32, or leave it out.",
            )
        self.writer("uint16").check()

    def writer(self, dtype: str) -> ShardWriter:
        """What writes its shards: of "uint16" or "uint32" ids, or of "str"."""
        return shard_writer(self.to, dtype, self.compression)

    def settings(self) -> dict[str, Any]:
        """What the result depends on; a run with other settings does not continue this one."""
        return {
            "version": 1,
            "source": self.source.describe(),
            "to": self.to,
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
        conversion: what to do.
        report: called after the start, each block and each shard.

    Returns:
        The final figures.

    Raises:
        ConfigError: the destination is not empty, or holds another conversion.
        ContentError: a broken document, with on_error="raise".
        StorageError: reading or writing failed; run the same again to continue.
    """
    destination = conversion.destination
    progress, infos = _resume(conversion)
    report(progress)
    scratch = destination.scratch()
    try:
        _note(destination, _SETTINGS, conversion.settings(), scratch)
        for after, first, payloads in _shards(conversion, progress, report):
            progress = after
            writer = conversion.writer(progress.dtype)
            number = progress.shards - 1
            file, info = _write(writer, scratch, number, first, payloads)
            destination.put(file, file.name)
            infos.append(info)
            name = f"{HIDDEN}/{number:05}.json"
            _note(destination, name, {"info": info, "progress": progress.__dict__}, scratch)
            report(progress)
        if not infos:
            raise no_documents()
        writer = conversion.writer(progress.dtype)
        index = writer.index(infos)
        if index is not None:
            destination.write(*index, scratch)
        # From the last to the first: a killed run leaves the files of the first shards, as always.
        for number in reversed(range(len(infos))):
            destination.remove(f"{HIDDEN}/{number:05}.json")
        destination.remove(_SETTINGS)
    finally:
        destination.clear(scratch)
    return progress


def _write(
    writer: ShardWriter, scratch: Path, number: int, first: int, payloads: list[Payload]
) -> tuple[Path, Any]:
    folder = scratch / "shard"
    folder.mkdir(exist_ok=True)
    return writer.write(folder, number, first, payloads)


def _note(destination: Destination, name: str, content: dict[str, Any], scratch: Path) -> None:
    destination.write(name, json.dumps(content, sort_keys=True).encode(), scratch)


def _resume(conversion: Conversion) -> tuple[Progress, list[Any]]:
    """Where to begin, and what the index needs of the shards that are done."""
    destination = conversion.destination
    names = set(destination.names())
    shards = [name for name in names if not name.startswith(f"{HIDDEN}/")]
    if _SETTINGS not in names or not shards:
        destination.refuse_filled("conversion")
        return Progress(), []
    found = json.loads(destination.read(_SETTINGS))
    destination.refuse_other("conversion", found, conversion.settings())
    done: list[str] = []
    while f"{HIDDEN}/{len(done):05}.json" in names:
        done.append(f"{HIDDEN}/{len(done):05}.json")
    notes = [json.loads(data) for data in in_threads(destination.read, done)]
    progress = Progress(**notes[-1]["progress"]) if notes else Progress()
    return progress, [note["info"] for note in notes]


def _shards(
    conversion: Conversion, progress: Progress, report: Callable[[Progress], None]
) -> Iterator[tuple[Progress, int, list[Payload]]]:
    """Yield (progress after a shard, number of its first document, its documents)."""
    overhead = conversion.writer("uint16").overhead
    skips = Skips(conversion.on_error)
    skips.expect(progress.records, progress.skipped)
    (reader,) = conversion.source.lanes(1, seed=0, epoch=0, shuffle=False)
    before, inside = progress.cursor, progress.inside
    first, tokens = progress.documents, progress.tokens
    dtype = progress.dtype or conversion.dtype or ""
    gathered: list[Payload] = []
    size = 0
    known = 0  # records that belong to earlier blocks

    def progress_at(cursor: Cursor | None, inside: int) -> Progress:
        return Progress(
            cursor=cursor,
            inside=inside,
            shards=progress.shards + 1,
            documents=first + len(gathered),
            tokens=tokens,
            skipped=skips.count,
            records=[list(record) for record in skips.records[known:]],
            dtype=dtype,
        )

    cursor = before
    for block, cursor in reader.read(before, skips):
        dtype, payloads, _ = payloads_of(block, conversion.tokenizer, dtype, skips, masks=True)
        for i, payload in enumerate(payloads[inside:], start=inside):
            more = overhead + (
                len(payload.encode()) if isinstance(payload, str) else payload.nbytes
            )
            if gathered and size + more > conversion.shard_bytes:
                progress = progress_at(before, i)
                yield progress, first, gathered
                first, gathered, size = progress.documents, [], 0
            gathered.append(payload)
            size += more
            tokens += 0 if isinstance(payload, str) else len(payload)
        before, inside, known = cursor, 0, len(skips.records)
        report(replace(progress_at(before, 0), shards=progress.shards))
    if gathered:
        yield progress_at(cursor, 0), first, gathered
