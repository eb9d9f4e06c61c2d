"""Conversion of one part of a corpus: its documents in order, in shards of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from streampack.conversion.folders import writing_to
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import (
    HIDDEN,
    OVERHEAD,
    Payload,
    part_shard_name,
    payloads_of,
    write_shard,
)
from streampack.errors import ContentError
from streampack.sources.error_policy import NAMED, ErrorPolicy


@dataclass(frozen=True)
class PartNote:
    """Note of a finished part, kept in the destination until all parts are finished.

    Attributes:
        part: index of the part.
        shards: number of its shards.
        documents: number of documents in them.
        tokens: number of token ids; 0 for text.
        skipped: number of broken documents or shards left out.
        named: facts about the first of these.
    """

    part: int
    shards: int
    documents: int
    tokens: int
    skipped: int
    named: tuple[str, ...]

    @classmethod
    def loaded(cls, data: bytes) -> PartNote:
        """Return the note with this content of a file."""
        content: dict[str, Any] = json.loads(data)
        return cls(**{**content, "named": tuple(content["named"])})

    def names(self) -> list[str]:
        """Return the names of the part's shards."""
        return [part_shard_name(self.part, shard) for shard in range(self.shards)]


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
        ContentError: a document is broken, with on_error="raise".
        StorageError: reading or writing failed.
    """
    destination = conversion.destination
    skips = _NamedSkips(conversion.on_error)
    shards = documents = tokens = 0
    with destination.scratch() as scratch:
        for payloads in _shards(conversion, part, skips):
            with writing_to(scratch):
                file = write_shard(scratch / "shard", payloads, conversion.compression)
                destination.put(file, part_shard_name(part, shards))
            shards += 1
            documents += len(payloads)
            tokens += sum(len(p) for p in payloads if not isinstance(p, str))
        note = PartNote(part, shards, documents, tokens, skips.counts.skipped, skips.facts)
        with writing_to(scratch):
            destination.write(note_name(part), json.dumps(asdict(note)).encode(), scratch)
    return note


def _shards(conversion: Conversion, part: int, skips: ErrorPolicy) -> Iterator[list[Payload]]:
    """Yield the documents of each shard."""
    source = conversion.source
    reader = source.lanes(conversion.num_parts, seed=0, epoch=0, shuffle=False)[part]
    gathered: list[Payload] = []
    size = 0
    for block, _ in reader.read(None, skips):
        _, payloads, _ = payloads_of(
            block, source, conversion.tokenizer, conversion.dtype or "", skips, masks=True
        )
        for payload in payloads:
            more = OVERHEAD + (
                len(payload.encode()) if isinstance(payload, str) else payload.nbytes
            )
            if gathered and size + more > conversion.shard_bytes:
                yield gathered
                gathered, size = [], 0
            gathered.append(payload)
            size += more
    if gathered:
        yield gathered
