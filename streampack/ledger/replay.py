"""Replayed: lanes that are made again on the lengths of documents, without their tokens.

Where a lane's records have the position that it is at, it gets documents of the lengths there,
with tokens that are zeros, in memory that all blocks share. Window, packer, deals and mixture work
on them as on others, so the batches have the same pieces. Other blocks are read from the corpus,
and recorded for the next replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.accounts.caps import Capped
from streampack.accounts.lengths import Block, KeptLengths, Records, Writer, identity_of, noted
from streampack.documents.blocks import ORIGIN, Documents, offsets_of
from streampack.exclusion.leaf import FindKeys
from streampack.exclusion.mask import Mask
from streampack.lane.config import LaneConfig
from streampack.packing.packer import fields_of
from streampack.stages.base import Place
from streampack.streams.base import LaneStream
from streampack.streams.stream import DocumentStream


@dataclass(frozen=True, slots=True)
class Replayed(KeptLengths):
    """Wrapper that gives documents without tokens where a lane's records have their lengths.

    Attributes:
        counts: documents that came from "lengths", and from the "corpus".
        watch: documents that are looked for; lanes: lanes that may have met some of them.
    """

    counts: dict[str, int] = field(default_factory=lambda: {"lengths": 0, "corpus": 0})
    watch: Mask | None = None
    lanes: set[int] = field(default_factory=set)

    def __call__(self, stream: LaneStream, state: Mapping[str, Any] | None) -> LaneStream:
        """Return the same stream, with other blocks."""
        if state is not None:  # its window may hold some
            self.lanes.add(state["lane"])
        return KeptLengths.__call__(self, stream, state)

    def _blocks(
        self, stream: DocumentStream, blocks: Iterator[Documents | None], folder: Path
    ) -> Iterator[Documents | None]:
        config = stream._config
        assert isinstance(config, LaneConfig)
        records, writer = Records(folder, stream._lane), Writer(folder, stream._lane)
        finders = [stage for stage in stream._stages if isinstance(stage, FindKeys)]
        capped = (each.caps for each in config.wrappers if isinstance(each, Capped))
        kept = {*fields_of(config.packer), *(cap.field for caps in capped for cap in caps)}
        needed = kept.union(*(finder.lookups for finder in finders))
        read = noted(stream, blocks, writer)
        while True:
            block = None if stream._unprepared else records.get(stream._after)
            if block is None or not _fits(stream, block, needed):
                try:
                    documents = next(read)
                except StopIteration:
                    return
                self._note(stream, documents, _read_from(stream, documents))
                yield documents
                continue
            other = bool(finders) or not kept.issuperset(block.names)
            for documents in _played(stream, block):
                if other and documents is not None:
                    place = Place(
                        config.source, stream._number, config.seed, stream.epoch, stream.skips
                    )
                    for finder in finders:
                        documents = finder(documents, place)
                    fields = {name: documents.document_fields[name] for name in kept}
                    documents = replace(documents, document_fields=fields)
                self._note(stream, documents, "lengths")
                yield documents
            read = noted(stream, stream._read(*stream._after), writer)

    def _note(self, stream: DocumentStream, documents: Documents | None, where: str) -> None:
        if documents is not None:
            self.counts[where] += len(documents)
            if self.watch is None or self.watch.hits(documents.origin).any():
                self.lanes.add(stream._lane)


def _read_from(stream: DocumentStream, documents: Documents | None) -> str:
    """Return "lengths" for documents of shards with the lengths of documents, else "corpus"."""
    known = getattr(stream._config.source, "known", ())
    return "lengths" if known and documents and documents.origin["shard"][0] in known else "corpus"


def _fits(stream: DocumentStream, block: Block, needed: set[str]) -> bool:
    """Return True if a block has these fields, and is of the part that the stream is in."""
    index = stream._after[0]
    part = stream._parts.part(index)
    if part is None:
        same = not stream._parts.ended
    else:
        same = identity_of(stream, index, part) == block.parts[0]
    return same and needed <= {*block.names}


def _played(stream: DocumentStream, block: Block) -> Iterator[Documents | None]:
    """Yield the documents of a block as `DocumentStream` yields them; see `DocumentStream._read`.

    If a part on the way is another one than the record's, nothing further is yielded.
    """
    first, (number, start) = stream._after[0], block.place
    for index, known in enumerate(block.parts, start=first):
        if index > first:
            stream._before = stream._after = (index, None)
            stream._tokens_before = stream._tokens
            stream._remember(index, None, None)
        while (part := stream._parts.part(index)) is None:
            if stream._parts.ended:
                return
            yield None
        if identity_of(stream, index, part) != known:
            return
    assert part is not None
    stream._remember(number, part, start)
    stream._before, stream._after = (number, start), (number, block.after)
    stream._empty_parts = 0
    sources, shards, indices, lengths, *fields = block.columns
    origin, offsets = np.empty(len(indices), dtype=ORIGIN), offsets_of(lengths)
    origin["source"], origin["shard"], origin["index"] = sources, shards, indices
    columns = dict(zip(block.names, fields, strict=True))
    whole = Documents(zeros(int(offsets[-1])), offsets, origin, document_fields=columns)
    at = 0
    for count, unprepared in block.chunks:
        chunk = whole[at : at + count]
        at += count
        stream._unprepared = unprepared
        stream._tokens += chunk.num_tokens
        stream.skips.in_a_row, stream.epoch = 0, part.epoch
        yield chunk
    stream._unprepared = 0.0
    stream._remember(number, part, block.after)


_shared = np.zeros(1 << 20, dtype=np.uint16)


def zeros(count: int, dtype: DTypeLike = np.uint16) -> NDArray[Any]:
    """Return zeros (count,), in memory that all calls share."""
    global _shared
    width = np.dtype(dtype).itemsize // _shared.itemsize
    if len(_shared) < width * count:
        _shared = np.zeros(width * count, dtype=np.uint16)
    return _shared[: width * count].view(dtype)
