"""What every part is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Sizes and times.

    Attributes:
        folder: of the workloads' files; scale: share of their full size.
        rounds: of which medians are taken; seconds: that a rate is measured for.
        tokens: of the stream that a worker's memory is read over.
    """

    folder: Path
    scale: float
    rounds: int
    seconds: float
    tokens: int
