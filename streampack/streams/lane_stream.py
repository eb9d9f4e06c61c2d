"""What a lane reads its documents from: streams put together, and in order if asked."""

from __future__ import annotations

from streampack.deals.dealer import Dealer
from streampack.leaves import ORDERED, load
from streampack.metrics import LaneTimes
from streampack.sources.skips import Skips
from streampack.streams.base import LaneStream, StreamPosition
from streampack.streams.stream import StreamConfig


def open_stream(
    config: StreamConfig,
    lane: int,
    *,
    skips: Skips,
    times: LaneTimes,
    position: StreamPosition | None = None,
    dealer: Dealer | None = None,
) -> LaneStream:
    """The documents of one lane, from `position` on (None: from the beginning).

    Args:
        config: of the run.
        lane: number of the lane.
        skips: what to do with broken content.
        times: where the streams add up their seconds.
        position: what `position_before` of such a stream returned.
        dealer: deals the lanes their parts of the sources; None divides these equally.
    """
    opened = load(config.source.stream if config.order is None else ORDERED)
    stream: LaneStream = opened(
        config, lane, skips=skips, times=times, position=position, dealer=dealer
    )
    return stream
