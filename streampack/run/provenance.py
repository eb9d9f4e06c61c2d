"""From the provenance of a batch to the names of shards and documents, and to their texts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.batch.text import decoder
from streampack.documents.blocks import Texts
from streampack.documents.conversations import Conversations
from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources.mixture.source import Mixture, sources_of


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one document piece of a batch came from.

    Attributes:
        source: name of the source in a mixture; None if it is the only one.
        shard: its path or URL; of an iterable, the lane.
        index: of the document in the shard: its number; in JSON lines the byte at which its line
            begins, in flat files of ids the token.
        start, stop: its tokens ``[start, stop)`` in the document as it was packed, after
            tokenizer and hooks.
    """

    source: str | None
    shard: str
    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        of = "" if self.source is None else f"{self.source}, "
        return f"{of}{self.shard}, index {self.index}, tokens {self.start} to {self.stop}"


def locate(source: Source, batch: Any) -> list[Piece]:
    """The pieces of a `PackedBatch`, or of its provenance (N,), in their order.

    Raises:
        ConfigError: it has no provenance, or that of another dataset.
    """
    provenance: NDArray[np.void] | None = getattr(batch, "provenance", batch)
    if provenance is None:
        raise ConfigError(
            "The batch has no provenance.",
            "Its documents cannot be named.",
            "Pass provenance=True to the dataset.",
        )
    members = sources_of(source)
    names = list(source.sources) if isinstance(source, Mixture) else [None]
    shards: dict[tuple[int, int], str] = {}
    pieces = []
    for number, shard, index, start, stop in provenance.tolist():
        if not 0 <= number < len(members):
            raise ConfigError(
                f"A piece is of source number {number}, and there are {len(members)}.",
                "It is of another dataset.",
                "Ask the dataset that made the batch.",
            )
        if (number, shard) not in shards:
            shards[number, shard] = members[number].shard_name(shard)
        pieces.append(Piece(names[number], shards[number, shard], index, start, stop))
    return pieces


def text_of(source: Source, piece: Piece, tokenizer: Any) -> str:
    """The whole document that a piece is of, as its shard holds it; see `PackedDataset.text_of`."""
    if not isinstance(piece, Piece):
        raise ConfigError(
            f"The piece is {piece!r:.80}.",
            "It names no document.",
            "Pass one of those that dataset.locate(batch) returns.",
        )
    found = source.sources.get(str(piece.source)) if isinstance(source, Mixture) else source
    found = found and found.inner
    if not isinstance(found, ShardedSource) or piece.shard not in found.manifest.paths:
        raise ConfigError(
            f"The piece is of {piece.shard!r}, which is no file of the dataset's source.",
            "Its document cannot be read again.",
            "Ask the dataset that made the batch; for what comes from an iterable there is "
            "batch.decode(number, tokenizer).",
        )
    shard = found.manifest.paths.index(piece.shard)
    weight = int(found.manifest.weights[shard])
    for block, _, _ in found.read_shard(shard, 0, weight, None, Skips("skip")):
        (places,) = np.nonzero(block.origin["index"] == piece.index)
        if not len(places):
            continue
        document = block.take(places[:1])
        if isinstance(document, Texts):
            return document.texts[0]
        if isinstance(document, Conversations):
            return json.dumps(asdict(document.conversations[0]), ensure_ascii=False, default=list)
        return decoder(tokenizer)(document.document(0).astype(np.int64))
    raise ConfigError(
        f"{piece.shard} has no document {piece.index}.",
        "It is not the file that the batch was made from.",
        "Ask for it beside the files as they were.",
    )
