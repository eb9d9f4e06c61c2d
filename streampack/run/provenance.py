"""From the provenance of a batch to the names of shards and documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.sources.mixture.source import Mixture, sources_of

__all__ = ["Piece", "locate"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one document piece of a batch came from.

    Attributes:
        source: name of the source in a mixture; None if it is the only one.
        shard: its path or URL; of an iterable, the lane.
        index: of the document in the shard: its number, or in JSON lines its first byte.
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
