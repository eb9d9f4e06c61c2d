"""Open the document stream of a lane, with mixture and order if configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampack.streams.base import LaneStream, Opening
from streampack.streams.stream import DocumentStream

if TYPE_CHECKING:
    from streampack.mixtures.stream import MixedStream


def open_stream(opening: Opening) -> LaneStream:
    """Open the documents of one lane."""
    if opening.config.order is None:
        return open_unordered(opening)
    from streampack.orders.stream import open_ordered

    return open_ordered(opening)


def open_unordered(opening: Opening) -> DocumentStream | MixedStream:
    """Open the documents of one lane as the source gives them."""
    if not opening.config.source._mixes:
        return DocumentStream(opening)
    from streampack.mixtures.stream import MixedStream

    return MixedStream(opening)
