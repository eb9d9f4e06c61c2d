"""Open the document stream of a lane, with mixture and order if configured."""

from __future__ import annotations

from streampack.leaves import ORDERED, load
from streampack.streams.base import LaneStream, Opening


def open_stream(opening: Opening) -> LaneStream:
    """Open the documents of one lane."""
    config = opening.config
    stream: LaneStream = load(config.source.stream if config.order is None else ORDERED)(opening)
    return stream
