"""Conversion of one part of a corpus: its documents in order, in shards of its own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
from numpy.typing import NDArray

from streampack.conversion.folders import writing_to
from streampack.conversion.inputs import stamp_of
from streampack.conversion.kept import columns, with_values
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import (
    HIDDEN,
    OVERHEAD,
    Payload,
    checksum_of,
    encoded,
    part_shard_name,
    write_shard,
)
from streampack.errors import ContentError
from streampack.sources.error_policy import NAMED, ErrorPolicy


class ShardCounts(NamedTuple):
    """A shard.

    Attributes:
        name: name of its file.
        num_bytes: bytes of its file.
        documents, tokens, loss_tokens: its documents, token ids (0 for text), and those with loss.
        checksum: CRC-32 of its file; None in notes of before.
    """

    name: str
    num_bytes: int
    documents: int
    tokens: int
    loss_tokens: int
    checksum: int | None = None


@dataclass(frozen=True)
class PartNote:
    """Note of a finished part, kept in the destination until all parts are finished.

    Attributes:
        part: index of the part.
        shards: its shards.
        skipped: number of broken documents or shards left out.
        named: facts about the first of these.
        input: stamp of its input, see `inputs`; None in notes of before.
    """

    part: int
    shards: tuple[ShardCounts, ...]
    skipped: int
    named: tuple[str, ...]
    input: str | None = None

    @classmethod
    def of(cls, content: dict[str, Any]) -> PartNote:
        """Return the note of these contents.

        Raises:
            ValueError: they are damaged; also `KeyError` or `TypeError`.
        """
        shards = tuple(ShardCounts(*shard) for shard in content["shards"])
        named, stamp = tuple(content["named"]), content.get("input")
        note = cls(content["part"], shards, content["skipped"], named, stamp)
        checksums = [shard.checksum for shard in shards]
        is_old = "checksum" not in content and {stamp, *checksums} == {None}
        if not is_old and content["checksum"] != note.checksum:
            raise ValueError("a note is damaged")
        return note

    def contents(self) -> dict[str, Any]:
        """Return the contents of the note, with their checksum."""
        return {**asdict(self), "checksum": self.checksum}

    @property
    def checksum(self) -> int:
        """CRC-32 of the note without this checksum."""
        return zlib.crc32(json.dumps(asdict(self), sort_keys=True).encode())


def note_name(part: int) -> str:
    """Return the name of a part's note in the destination."""
    return f"{HIDDEN}/part-{part:05}.json"


@dataclass(slots=True)
class _NamedSkips(ErrorPolicy):
    """Skips that are named by the process that runs the conversion, and not by a worker."""

    facts: tuple[str, ...] = ()

    def _log(self, error: ContentError) -> None:
        if len(self.facts) < NAMED:
            self.facts = (*self.facts, error.fact)


def convert_part(conversion: Conversion, part: int) -> PartNote:
    """Write the shards of a part, and then its note.

    Raises:
        ContentError: a document is broken, with on_error="raise"; it names the part too.
        StorageError: reading or writing failed.
    """
    try:
        return _converted(conversion, part)
    except ContentError as error:
        raise ContentError(
            f"In part {part}: {error.fact}",
            *error.args[1:],
            setting=error.setting,
            path=error.path,
            document=error.document,
        ) from error


def _converted(conversion: Conversion, part: int) -> PartNote:
    destination = conversion.destination
    skips = _NamedSkips(conversion.on_error)
    stamp = stamp_of(conversion, part)
    shards: list[ShardCounts] = []
    with destination.scratch() as scratch:
        for payloads, beside in _shards(conversion, part, skips):
            name = part_shard_name(part, len(shards))
            with writing_to(scratch):
                file = write_shard(scratch / "shard", payloads, conversion.compression, beside)
                shards.append(_counts(name, file, payloads))
                destination.put(file, name)
        note = PartNote(part, tuple(shards), skips.counts.skipped, skips.facts, stamp)
        with writing_to(scratch):
            destination.write(note_name(part), json.dumps(note.contents()).encode(), scratch)
    return note


def _counts(name: str, file: Path, payloads: list[Payload]) -> ShardCounts:
    with file.open("rb") as opened:
        checksum = checksum_of(opened)
    ids: list[NDArray[Any]] = [p for p in payloads if not isinstance(p, str)]
    learnt = [p["loss_mask"].sum() if p.dtype.names else len(p) for p in ids]
    tokens, loss_tokens = sum(map(len, ids)), int(sum(learnt))
    num_bytes = file.stat().st_size
    return ShardCounts(name, num_bytes, len(payloads), tokens, loss_tokens, checksum)


def _shards(
    conversion: Conversion, part: int, skips: ErrorPolicy
) -> Iterator[tuple[list[Payload], dict[str, pa.Array]]]:
    """Yield the documents of each shard, and the columns of kept fields."""
    source, reader = conversion.reader(part)
    chats = conversion.chats(source)
    types = source.field_types
    for texts in types.keys.values():
        texts.clear()  # from the part before
    gathered: list[Payload] = []
    kept: list[tuple[Any, ...]] = []
    size = 0
    for block, _ in reader.read(None, skips):
        if chats is not None:
            block = chats.encode(cast(Any, block), skips)
        documents = encoded(
            block, source, conversion.tokenizer, conversion.dtype or "", skips, masks=True
        )
        for payload, values, num_bytes in with_values(documents, source, skips):
            more = (
                OVERHEAD
                + num_bytes
                + (len(payload.encode()) if isinstance(payload, str) else payload.nbytes)
            )
            if gathered and size + more > conversion.shard_bytes:
                yield gathered, columns(kept, types)
                gathered, kept, size = [], [], 0
            gathered.append(payload)
            kept.append(values)
            size += more
    if gathered:
        yield gathered, columns(kept, types)
