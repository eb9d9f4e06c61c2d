"""Tokens of one epoch of a source, with an error, from a sample."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.files.converted import converted_tokens
from streampack.forecasts.contents import Contents
from streampack.forecasts.sampling import (
    SAMPLE_DOCUMENTS,
    SAMPLE_LANES,
    SAMPLE_TOKENS,
    begun,
    first_documents,
    joined,
    joined_sizes,
)
from streampack.lane.config import LaneConfig
from streampack.packing.request import DocumentSizes
from streampack.sources.base import Source
from streampack.sources.indexed import InMemory
from streampack.sources.sharded import ShardedSource
from streampack.sources.span_reader import SpanReader
from streampack.stages.ids import IDS_AS_THEY_ARE

FINER = 4  # factor of positions, with fewer documents each, if seeking costs nothing
PARTS = 1024  # parts of a compressed source, of which those at equal distances of content are read
QUANTILES = 32  # these distances
READ_WHOLE = 2 << 20  # bytes of compressed content
_AS_THEY_ARE = [type(stage) for stage in IDS_AS_THEY_ARE]  # stages that keep all tokens


@dataclass(frozen=True, slots=True)
class Size:
    """Size of one epoch of a source.

    Attributes:
        tokens: tokens of an epoch.
        error: standard error of `tokens`.
        chance: expected excess of the longest lane over the mean lane, as a fraction of the mean.
        sample: sizes of the sampled documents.
    """

    tokens: float
    error: float
    chance: float
    sample: DocumentSizes


def size_of(config: LaneConfig, source: Source, number: int) -> Size | None:
    """Estimate the size of one epoch of a source; None if it is unknown."""
    if source.once:
        return None
    if config.wrappers:
        from streampack.exclusion.leaf import with_masks_of

        config = with_masks_of(config, number)
    preparation = config.preparation
    of_source = replace(preparation, stages=preparation.stages[number : number + 1])
    alone = replace(config, source=source, preparation=of_source, epochs=1, order=None)
    contents = Contents.of(source._inner)
    if contents is not None:
        return _compressed(config, alone, contents)
    finer = FINER if isinstance(source._inner, InMemory) else 1
    places = finer * min(SAMPLE_LANES, source.max_lanes() or SAMPLE_LANES)
    alone = replace(alone, lanes=places)
    samples = [_place(alone, place, finer) for place in range(places)]
    sample_of = joined([sizes for _, _, sizes in samples])
    lengths = sample_of.lengths
    if all(whole for _, whole, _ in samples):
        tokens = float(lengths.sum())
        return Size(tokens, 0.0, _chance(config, lengths, len(lengths)), sample_of)
    if not isinstance(source._inner, ShardedSource):
        return None
    read = np.array([units for units, _, _ in samples], dtype=np.float64)
    held = np.array([sample.lengths.sum() for _, _, sample in samples], dtype=np.float64)
    if not read.all():
        rough = source.estimate_tokens()
        return None if rough is None else Size(float(rough), rough / 2, 0.0, sample_of)
    per_unit = held.sum() / read.sum()
    residual = float(((held - per_unit * read) ** 2).sum())
    units = float(source._inner.manifest.weight)
    spread = math.sqrt(places / max(places - 1, 1) * residual) / read.sum() * units
    tokens = per_unit * units
    if all(type(stage) in _AS_THEY_ARE for stage in preparation.of(number)):
        exact = converted_tokens(source)
        tokens, spread = (tokens, spread) if exact is None else (float(exact), 0.0)
    documents = tokens / max(float(lengths.mean()), 1e-9)
    return Size(tokens, spread, _chance(config, lengths, documents), sample_of)


def _place(config: LaneConfig, place: int, finer: int) -> tuple[float, bool, DocumentSizes]:
    """Return the weight read at one position, True if it is everything, and the document sizes.

    The weight is 0 if no position in a shard was known. Groups are counted as their member
    documents.
    """
    cursor, sizes = _begun(config, place, SAMPLE_DOCUMENTS // finer, SAMPLE_TOKENS // finer)
    source = config.source._inner
    if not isinstance(source, ShardedSource):
        return 1.0, cursor is None, sizes
    if cursor == {}:
        return 0.0, False, sizes
    low, high = source._share(place, config.lanes)
    left = 0 if cursor is None else _span(config, source, place).left(cursor)
    return float(high - low - left), cursor is None, sizes


def _begun(
    config: LaneConfig, place: int, documents: int, tokens: int
) -> tuple[dict[str, Any] | None, DocumentSizes]:
    """Read the first documents of a lane; return the cursor, and the sizes of those before it.

    The cursor is None if they are all, and empty if none is known.
    """
    stream, blocks, ended = begun(config, place, documents=documents, tokens=tokens)
    if ended or stream.peek() is None:
        return None, joined_sizes(first_documents(blocks, stream.serial), config)
    position = stream.position_before(stream.serial)
    sizes = joined_sizes(first_documents(blocks, position.serial), config)
    return position.cursor.get("at") or {}, sizes


def _span(config: LaneConfig, source: ShardedSource, place: int) -> SpanReader:
    low, high = source._share(place, config.lanes)
    return source._span(low, high, seed=config.seed, epoch=0, shuffle=config.shuffle)


def _compressed(config: LaneConfig, alone: LaneConfig, contents: Contents) -> Size:
    """Estimate the size of a compressed source from places at equal distances of content."""
    source = alone.source._inner
    assert isinstance(source, ShardedSource)
    units, units_error = contents.total()
    if contents.is_known and units <= READ_WHOLE:
        _, sizes = _begun(replace(alone, lanes=1), 0, sys.maxsize, sys.maxsize)
        tokens = float(sizes.lengths.sum())
        return Size(tokens, 0.0, _chance(config, sizes.lengths, len(sizes.lengths)), sizes)
    alone = replace(alone, lanes=PARTS)
    spans = [_span(alone, source, part) for part in range(PARTS)]
    ends = np.cumsum([sum(map(contents.of_piece, span.pieces)) for span in spans])
    wanted = (np.arange(QUANTILES) + 0.5) / QUANTILES * ends[-1]
    chosen, times = np.unique(np.searchsorted(ends, wanted), return_counts=True)
    share = SAMPLE_LANES * SAMPLE_DOCUMENTS // QUANTILES
    most = SAMPLE_LANES * SAMPLE_TOKENS // QUANTILES
    rates, samples = [], []
    for part, count in zip(chosen.tolist(), times.tolist(), strict=True):
        cursor, sizes = _begun(alone, part, share * count, most * count)
        read = contents.before(spans[part], cursor)
        samples.append(sizes)
        rates += [float(sizes.lengths.sum()) / read] * count if read else []
    sample_of = joined(samples)
    rate = float(np.mean(rates)) if rates else 0.0
    # Neighbours are alike, so differences between them are the error of equal distances.
    spread = float(np.sqrt((np.diff(rates) ** 2).mean() / 2 / len(rates))) if rates[1:] else rate
    error = math.hypot(spread * units, rate * units_error)
    documents = rate * units / max(float(sample_of.lengths.mean()) if rates else 1.0, 1e-9)
    return Size(rate * units, error, _chance(config, sample_of.lengths, documents), sample_of)


def _chance(config: LaneConfig, lengths: NDArray[np.int64], documents: float) -> float:
    """Return the excess of the longest lane over the mean if documents are dealt at random."""
    if not len(lengths) or config.lanes == 1:
        return 0.0
    each = max(documents * (config.epochs or 1) / config.lanes, 1.0)
    deviation = float(lengths.std() / max(lengths.mean(), 1e-9)) / math.sqrt(each)
    return deviation * math.sqrt(2 * math.log(config.lanes))
