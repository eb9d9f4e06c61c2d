"""What a lane reads its documents from: streams put together, and in order if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampack.deals.dealer import Dealer
from streampack.metrics import LaneTimes
from streampack.packing.rng import derive_seed
from streampack.sources.skips import Skips
from streampack.streams.base import LaneStream, StreamPosition
from streampack.streams.stream import DocumentStream, StreamConfig

if TYPE_CHECKING:
    from streampack.streams.mixed_stream import MixedStream


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
    inner = position
    if config.order is not None:
        from streampack.streams.ordered_stream import OrderedStream

        inner = OrderedStream.inner_position(position)
    base: type[DocumentStream | MixedStream] = DocumentStream
    if config.source.mixed:
        from streampack.streams.mixed_stream import MixedStream

        base = MixedStream
    stream = base(config, lane, skips=skips, times=times, position=inner, dealer=dealer)
    if config.order is None:
        return stream
    return OrderedStream(
        stream,
        config.order,
        source=config.source,
        lane=lane,
        seed=derive_seed(config.seed, 3, lane),
        times=times,
        position=position,
    )
