"""Tokens per second of the films and sounds of a run, and the share that no row takes."""

from __future__ import annotations

from typing import NamedTuple

from streampack.images.attachments import MEDIA, NOUNS, ROWS, Attachments, kind_of
from streampack.lane.config import LaneConfig
from streampack.sources.error_policy import ErrorPolicy
from streampack.streams.base import Opening
from streampack.streams.lane_stream import open_stream

DOCUMENTS = 256  # documents of the sample


class MediaShares(NamedTuple):
    """Films or sounds of sampled documents.

    Attributes:
        kind: "video" or "audio".
        number: how many there are.
        seconds: their length.
        tokens: their tokens.
        lost: share of their seconds in documents that no row takes, 0 to 1.
    """

    kind: str
    number: int
    seconds: float
    tokens: int
    lost: float

    def __str__(self) -> str:
        return (
            f"{self.number:,} {NOUNS[self.kind]}s of {self.seconds / self.number:,.3g} s on "
            f"average, {self.tokens / self.seconds:,.3g} tokens per second; {self.lost:.2%} of the "
            "seconds in documents that no row takes"
        )


def media_shares(config: LaneConfig) -> tuple[MediaShares, ...]:
    """Return the shares of films and of sounds in the first documents of a run.

    Args:
        config: source, preparation and packer of the run.
    """
    stream = open_stream(Opening(config, 0, ErrorPolicy("skip")))
    media: dict[str, list[tuple[float, int, bool]]] = {}
    while stream.serial < DOCUMENTS and (block := stream.peek()) is not None:
        lengths = block.lengths.tolist()
        for length, attached in zip(lengths, block.document_fields[MEDIA], strict=True):
            is_lost = length > config.packer.seq_lens[-1]
            for kind, seconds, tokens in _lengths(attached):
                media.setdefault(kind, []).append((seconds, tokens, is_lost))
        stream.consume(len(block))
    return tuple(_share(kind, media[kind]) for kind in ROWS if kind in media)


def _lengths(attached: Attachments) -> list[tuple[str, float, int]]:
    """Return the kind, seconds and tokens of each film and sound of a document."""
    if attached.sizes is None or attached.tokens is None:
        return []
    sized = zip(attached.references, attached.sizes, attached.tokens.tolist(), strict=True)
    return [
        (kind_of(reference), size.seconds, tokens)
        for reference, size, tokens in sized
        if hasattr(size, "seconds")
    ]


def _share(kind: str, media: list[tuple[float, int, bool]]) -> MediaShares:
    seconds = sum(each for each, _, _ in media)
    lost = sum(each for each, _, is_lost in media if is_lost)
    return MediaShares(kind, len(media), seconds, sum(each for _, each, _ in media), lost / seconds)
