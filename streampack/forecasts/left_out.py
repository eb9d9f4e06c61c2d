"""Forecast from a sample the tokens that a run leaves out: taken out, or above its caps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.accounts.caps import Capped, above_caps
from streampack.documents.blocks import Documents, Fields, joined_fields, part_of
from streampack.exclusion.mask import mask_of
from streampack.forecasts.sampling import (
    SAMPLE_DOCUMENTS,
    SAMPLE_TOKENS,
    at_positions,
    first_blocks,
)
from streampack.lane.config import LaneConfig


class CapForecast(NamedTuple):
    """A cap, and the tokens that a run meets of its value.

    Attributes:
        field, value: field and value of the documents.
        most: largest number of tokens that are delivered.
        met: estimated tokens of these documents, without the ones above caps of earlier fields.
    """

    field: str
    value: str
    most: int
    met: int

    def __str__(self) -> str:
        out = max(self.met - self.most, 0)
        return (
            f'{self.field} "{self.value}": at most {self.most:,} tokens; about {self.met:,} are '
            f"met, and {out:,} left out"
        )


class Delivered(NamedTuple):
    """The share of a run's tokens that it delivers, 0 to 1, its standard error, and its caps."""

    share: float
    error: float
    caps: tuple[CapForecast, ...]


def delivered(config: LaneConfig, tokens: float) -> Delivered:
    """Return the share of tokens that a run does not leave out, and a forecast of each cap.

    Args:
        config: configuration of the run.
        tokens: estimated tokens that the run draws, with the ones that it leaves out.
    """
    mask = mask_of(config)
    caps = next((each.caps for each in config.wrappers if isinstance(each, Capped)), ())
    if not (caps or mask.places or config.preparation.find("lookups")):
        return Delivered(1.0, 0.0, ())
    once = at_positions(config)
    names = {cap.field for cap in caps}

    def keep(block: Documents) -> _Block:
        fields = {name: block.document_fields[name] for name in names}
        return _Block(block.lengths, ~mask.hits(block.origin), fields)

    none = np.zeros(0, np.int64)
    blocks = [_Block(none, none.astype(np.bool_), dict.fromkeys(names, none))]
    of_lanes: list[float] = []
    is_whole = True
    for lane in range(once.lanes):
        _, read, ended = first_blocks(
            once, lane, keep, documents=SAMPLE_DOCUMENTS, tokens=SAMPLE_TOKENS
        )
        blocks += read
        of_lanes.append(_share(read))
        is_whole &= ended
    lengths = np.concatenate([block.lengths for block in blocks])
    kept = np.concatenate([block.kept for block in blocks])
    fields = part_of(joined_fields([block.fields for block in blocks]), kept)
    sampled = max(int(lengths.sum()), 1)
    parts = np.array([cap.tokens * sampled / max(tokens, 1.0) for cap in caps], dtype=np.int64)
    nothing = np.zeros(len(caps), dtype=np.int64)
    above, met = above_caps(caps, parts, nothing, lengths[kept], fields)
    forecasts = tuple(
        CapForecast(cap.field, cap.name, cap.tokens, round(count * tokens / sampled))
        for cap, count in zip(caps, met[:, -1].tolist(), strict=True)
    )
    share = float(lengths[kept][~above].sum()) / sampled
    by_chance = math.sqrt(kept.mean() * (1 - kept.mean()) / len(kept)) if len(kept) else 0.0
    by_place = float(np.std(of_lanes, ddof=1)) / math.sqrt(once.lanes) if once.lanes > 1 else 0.0
    return Delivered(share, 0.0 if is_whole else max(by_chance, by_place), forecasts)


class _Block(NamedTuple):
    """Lengths (N,) of documents, True (N,) where they are not taken out, and fields of caps."""

    lengths: NDArray[np.int64]
    kept: NDArray[np.bool_]
    fields: Fields


def _share(blocks: Sequence[_Block]) -> float:
    """Return the share of tokens that are not taken out."""
    tokens = sum(int(block.lengths.sum()) for block in blocks)
    return sum(int(block.lengths[block.kept].sum()) for block in blocks) / max(tokens, 1)
