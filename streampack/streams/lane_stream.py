"""Open the document stream of a lane, with mixture and order if configured."""

from __future__ import annotations

from streampack.deals.dealer import Dealer
from streampack.leaves import ORDERED, load
from streampack.metrics import LaneTimes
from streampack.sources.error_policy import ErrorPolicy
from streampack.streams.base import LaneStream, StreamPosition
from streampack.streams.stream import StreamConfig


def open_stream(
    config: StreamConfig,
    lane: int,
    *,
    skips: ErrorPolicy,
    times: LaneTimes,
    position: StreamPosition | None = None,
    dealer: Dealer | None = None,
) -> LaneStream:
    """Open the documents of one lane, from `position` on (None: from the beginning).

    Args:
        config: configuration of the run.
        lane: index of the lane.
        skips: policy for broken documents and shards.
        times: accumulates the seconds of each stage.
        position: return value of `position_before` of an equal stream.
        dealer: deals the lanes their parts of the sources; None divides these equally.
    """
    opened = load(config.source.stream if config.order is None else ORDERED)
    stream: LaneStream = opened(
        config, lane, skips=skips, times=times, position=position, dealer=dealer
    )
    return stream
