"""Provenance of the tokens in batches: shards and documents."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.chats.conversations import Conversations
from streampack.documents.blocks import Texts
from streampack.errors import ConfigError
from streampack.forms.text import decoder
from streampack.mixtures.source import Mixture, sources_of
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.sharded import ShardedSource


@dataclass(frozen=True, slots=True)
class Piece:
    """Origin of one document piece of a batch.

    Attributes:
        source: name of the source in a mixture; None if it is the only one.
        shard: path or URL of the shard; the lane for an iterable.
        index: index of the document in the shard; in JSON lines the byte offset of its line, in
            flat files of ids the offset of its first token.
        start, stop: token range ``[start, stop)`` of the piece in the packed document, after
            tokenizer and hooks.
    """

    source: str | None
    shard: str
    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        source = "" if self.source is None else f"{self.source}, "
        return f"{source}{self.shard}, index {self.index}, tokens {self.start} to {self.stop}"


def locate(source: Source, batch: Any) -> list[Piece]:
    """Return the pieces of a `PackedBatch`, or of its provenance (N,), in order.

    Raises:
        ConfigError: the batch has no provenance, or comes from another dataset.
    """
    provenance: NDArray[np.void] | None = getattr(batch, "provenance", batch)
    if provenance is None:
        raise ConfigError(
            "The batch must carry provenance, got none.",
            "Pass provenance=True to the dataset.",
            setting="provenance",
        )
    members = sources_of(source)
    names = list(source.sources) if isinstance(source, Mixture) else [None]
    shards: dict[tuple[int, int], str] = {}
    pieces = []
    for number, shard, index, start, stop in provenance.tolist():
        if not 0 <= number < len(members):
            raise ConfigError(
                f"The source index of a piece must be below {len(members)}, got {number}.",
                "Ask the dataset that made the batch.",
                setting="batch",
            )
        if (number, shard) not in shards:
            shards[number, shard] = members[number]._shard_name(shard)
        pieces.append(Piece(names[number], shards[number, shard], index, start, stop))
    return pieces


def text_of(source: Source, piece: Piece, tokenizer: Any) -> str:
    """Return the whole document of a piece, as stored; see `PackedDataset.text_of`."""
    if not isinstance(piece, Piece):
        raise ConfigError(
            f"piece must be a Piece, got {piece!r:.80}.",
            "Pass a piece that dataset.locate(batch) returned.",
            setting="piece",
        )
    inner = source.sources.get(str(piece.source)) if isinstance(source, Mixture) else source
    inner = inner and inner._inner
    if not isinstance(inner, ShardedSource) or piece.shard not in inner.manifest.paths:
        raise ConfigError(
            f"The piece must be from a file of the dataset's source, got {piece.shard!r}.",
            "Ask the dataset that made the batch; for documents of an iterable use "
            "batch.decode(number, tokenizer).",
            path=piece.shard,
        )
    shard = inner.manifest.paths.index(piece.shard)
    weight = int(inner.manifest.weights[shard])
    for block, _, _ in inner.read_shard(shard, 0, weight, None, ErrorPolicy("skip")):
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
        "Locate it with the files that the run read.",
        path=piece.shard,
    )
