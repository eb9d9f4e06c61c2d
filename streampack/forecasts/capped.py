"""Forecast from a sample the tokens that caps of a run leave out."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampack.accounts.caps import Cap, Capped, above_caps
from streampack.documents.blocks import Documents, joined_fields
from streampack.forecasts.sampling import (
    SAMPLE_DOCUMENTS,
    SAMPLE_LANES,
    SAMPLE_TOKENS,
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


def cap_forecasts(config: LaneConfig, tokens: float) -> tuple[tuple[CapForecast, ...], float]:
    """Return a forecast of each cap of a run, and the share of all tokens below caps.

    Args:
        config: configuration of the run.
        tokens: estimated tokens that the run draws without caps.
    """
    caps: tuple[Cap, ...] = next(each.caps for each in config.wrappers if isinstance(each, Capped))
    lanes = min(SAMPLE_LANES, config.source.max_lanes() or SAMPLE_LANES)
    once = replace(config, lanes=lanes, epochs=1, order=None)
    names = {cap.field for cap in caps}
    sizes, fields = [np.zeros(0, np.int64)], [{name: np.zeros(0, np.int64) for name in names}]

    def keep(block: Documents) -> None:
        sizes.append(block.lengths)
        fields.append({name: block.document_fields[name] for name in names})

    for lane in range(lanes):
        first_blocks(once, lane, keep, documents=SAMPLE_DOCUMENTS, tokens=SAMPLE_TOKENS)
    lengths = np.concatenate(sizes)
    share = max(int(lengths.sum()), 1) / max(tokens, 1.0)
    parts = np.array([cap.tokens * share for cap in caps], dtype=np.int64)
    nothing = np.zeros(len(caps), dtype=np.int64)
    hits, met = above_caps(caps, parts, nothing, lengths, joined_fields(fields))
    forecasts = tuple(
        CapForecast(cap.field, cap.name, cap.tokens, round(count / share))
        for cap, count in zip(caps, met[:, -1].tolist(), strict=True)
    )
    return forecasts, float(lengths[~hits].sum()) / max(int(lengths.sum()), 1)
