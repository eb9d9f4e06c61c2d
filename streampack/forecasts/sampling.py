"""Read a sample of a run's documents: the sizes of some thousand, at up to four positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, Fields, joined_fields, part_of
from streampack.errors import ConfigError
from streampack.lane.config import LaneConfig
from streampack.packing.packer import fields_of
from streampack.packing.request import DocumentSizes, MemberLengths
from streampack.sources.error_policy import ErrorPolicy
from streampack.streams.base import LaneStream, Opening
from streampack.streams.lane_stream import open_stream
from streampack.window.entries import sizes_of

T = TypeVar("T")

SAMPLE_LANES = 4  # positions in the corpus that a sample is taken from
SAMPLE_DOCUMENTS = 1024  # documents read at each position by default
SAMPLE_TOKENS = 4 << 20  # limit at each position for long documents; larger samples raise it


class Sample(NamedTuple):
    """Sizes of sampled documents.

    Attributes:
        lengths: (N,) int64, tokens of each document.
        weights: further document fields that the packer uses, by name, each (N,) int64.
        empty: number of documents without a token, which are left out.
        skipped: number of broken documents and shards.
    """

    lengths: NDArray[np.int64]
    weights: Fields
    empty: int
    skipped: int


def sample(config: LaneConfig, *, documents: int | None = None) -> Sample:
    """Read a sample of some thousand documents, the same on every rank and at every start.

    The documents come from up to four positions of the first epoch and are prepared as in the run.
    The sample does not depend on the number of lanes or the topology.

    Args:
        config: source, preparation, and the fields that the packer uses.
        documents: documents to read (fewer if the source is smaller, or documents are very long);
            None reads 1024 at each position.

    Raises:
        ConfigError: the source can be read only once, so a sample would be lost to the run.
    """
    source = config.source
    if source.once:
        raise ConfigError(
            "A sample must be read before the run, but the source can be read only once.",
            "Pass a source that can be read again; to Buckets also shares=.",
            setting="shares",
        )
    once = at_positions(config)
    share = SAMPLE_DOCUMENTS if documents is None else -(-documents // once.lanes)
    most_tokens = SAMPLE_TOKENS * max(share // (2 * SAMPLE_DOCUMENTS), 1)
    sizes = []
    empty = skipped = 0
    for lane in range(once.lanes):
        stream, blocks, _ = begun(once, lane, documents=share, tokens=most_tokens)
        sizes += first_documents([block._replace(members=None) for block in blocks], share)
        counts = stream.skips.counts
        empty, skipped = empty + counts.empty_documents, skipped + counts.skipped
    every = joined_sizes(sizes, config)
    return Sample(every.lengths, every.weights, empty, skipped)


def at_positions(config: LaneConfig) -> LaneConfig:
    """Return a configuration with a lane at each position of a sample, for one epoch."""
    lanes = min(SAMPLE_LANES, config.source.max_lanes() or SAMPLE_LANES)
    return replace(config, lanes=lanes, epochs=1, order=None)


def begun(
    config: LaneConfig, lane: int, *, documents: int, tokens: int
) -> tuple[LaneStream, list[DocumentSizes], bool]:
    """Read the first blocks of a lane, up to `documents` documents or `tokens` tokens.

    Returns:
        The stream, the sizes of the blocks, and True if the stream ended first.
    """
    sizes = partial(sizes_of, packer=config.packer)
    return first_blocks(config, lane, sizes, documents=documents, tokens=tokens)


def first_blocks(
    config: LaneConfig,
    lane: int,
    keep: Callable[[Documents], T],
    *,
    documents: int,
    tokens: int,
) -> tuple[LaneStream, list[T], bool]:
    """Read the first blocks of a lane like `begun`; return the result of `keep` for each."""
    stream = open_stream(Opening(config, lane, ErrorPolicy(config.on_error)))
    blocks: list[T] = []
    read = 0
    while stream.serial < documents and read < tokens:
        block = stream.peek()
        if block is None:
            return stream, blocks, True
        blocks.append(keep(block))
        read += block.num_tokens
        stream.consume(len(block))
    return stream, blocks, False


def first_documents(blocks: list[DocumentSizes], count: int) -> list[DocumentSizes]:
    """Return the first `count` documents of the blocks."""
    sizes = []
    for lengths, weights, members in blocks:
        if members is not None:
            offsets = members.offsets[: count + 1]
            members = MemberLengths(members.lengths[: offsets[-1]], offsets)
        first = DocumentSizes(lengths[:count], part_of(weights, slice(count)), members)
        sizes.append(first)
        count = max(count - len(lengths), 0)
    return sizes


def joined_sizes(parts: list[DocumentSizes], config: LaneConfig) -> DocumentSizes:
    """Return the sizes of all parts as one; there may be no part."""
    none = np.zeros(0, dtype=np.int64)
    nothing = DocumentSizes(none, dict.fromkeys(fields_of(config.packer), none))
    return joined([nothing, *parts])


def joined(parts: Sequence[DocumentSizes]) -> DocumentSizes:
    """Return the sizes of one or more parts as one; members count as documents."""
    return DocumentSizes(
        np.concatenate([(part.members or part).lengths for part in parts]),
        joined_fields([part.weights for part in parts]),
    )
