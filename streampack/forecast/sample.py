"""A sample of a corpus: first documents of some of its lanes, read and prepared as in the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.lane.config import LaneConfig
from streampack.metrics import LaneTimes
from streampack.reading.skips import Skips
from streampack.streams.base import LaneStream
from streampack.streams.lane_stream import open_stream

SAMPLE_LANES = 4  # places of the corpus that a sample is taken from
SAMPLE_DOCUMENTS = 1024  # at each place, unless a number is given
SAMPLE_TOKENS = 4 << 20  # at each place, in case documents are very long; more for larger samples


def sample_lengths(config: LaneConfig, *, documents: int | None = None) -> NDArray[np.int64]:
    """(N,) int64: tokens of some thousand documents, the same on every rank and at every start.

    They are read from up to four places of the first epoch and prepared as in the run. The number
    of lanes and the topology do not matter.

    Args:
        config: source and preparation; the packer is not used.
        documents: how many to read (fewer if the source has fewer, or if they are very long);
            None is 1024 at each place.

    Raises:
        ConfigError: the source can be read only once, so a sample would be lost to the run.
    """
    source = config.source
    if source.once:
        raise ConfigError(
            "The source can be read only once, and the packer measures shares on a sample.",
            "The sample's documents would be missing from the run.",
            "Pass the packer shares=, or a source that can be read again.",
        )
    lanes = min(SAMPLE_LANES, source.max_lanes() or SAMPLE_LANES)
    share = SAMPLE_DOCUMENTS if documents is None else -(-documents // lanes)
    most_tokens = SAMPLE_TOKENS * max(share // (2 * SAMPLE_DOCUMENTS), 1)
    once = replace(config, lanes=lanes, epochs=1, order=None)
    lengths = [np.zeros(0, dtype=np.int64)]
    for lane in range(lanes):
        _, blocks, _ = begun(once, lane, documents=share, tokens=most_tokens)
        own = [block.lengths for block in blocks]
        lengths.append(np.concatenate([*lengths[:1], *own])[:share])
    return np.concatenate(lengths)


def begun(
    config: LaneConfig, lane: int, *, documents: int, tokens: int
) -> tuple[LaneStream, list[Documents], bool]:
    """A lane's stream after its first blocks, which hold so many documents or tokens.

    Returns:
        The stream, the blocks, and True if it ended before.
    """
    skips = Skips(config.on_error, config.skip_limit)
    stream = open_stream(config, lane, skips=skips, times=LaneTimes())
    blocks: list[Documents] = []
    read = 0
    while stream.serial < documents and read < tokens:
        block = stream.peek()
        if block is None:
            return stream, blocks, True
        blocks.append(block)
        read += block.num_tokens
        stream.consume(len(block))
    return stream, blocks, False
