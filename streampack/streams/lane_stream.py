"""What a lane reads its documents from: the streams between source and window, put together.

DocumentStream              one per source: reading, tokenizer, checks, hooks, epochs
  MixedStream               of a mixture: which source gives the next documents
    OrderedStream           if documents are to be ordered
"""

from __future__ import annotations

from streampack.dealing.dealer import Dealer
from streampack.metrics import LaneTimes
from streampack.packing.rng import derive_seed
from streampack.reading.skips import Skips
from streampack.sources.mixture.source import Mixture
from streampack.streams.base import LaneStream, Mark
from streampack.streams.mixed_stream import MixedStream
from streampack.streams.ordered_stream import OrderedStream
from streampack.streams.stream import DocumentStream, StreamConfig


def open_stream(
    config: StreamConfig,
    lane: int,
    *,
    skips: Skips,
    times: LaneTimes,
    mark: Mark | None = None,
    dealer: Dealer | None = None,
) -> LaneStream:
    """The documents of one lane, from `mark` on (None: from the beginning).

    Args:
        config: of the run.
        lane: number of the lane.
        skips: what to do with broken content.
        times: where the streams add up their seconds.
        mark: what `mark_before` of such a stream returned.
        dealer: deals the lanes their parts of the sources; None divides these equally.
    """
    inner = mark if config.order is None else OrderedStream.inner_mark(mark)
    kind = MixedStream if isinstance(config.source, Mixture) else DocumentStream
    stream: MixedStream | DocumentStream = kind(
        config, lane, skips=skips, times=times, mark=inner, dealer=dealer
    )
    if config.order is None:
        return stream
    return OrderedStream(
        stream,
        config.order,
        source=config.source,
        lane=lane,
        seed=derive_seed(config.seed, 3, lane),
        times=times,
        mark=mark,
    )
