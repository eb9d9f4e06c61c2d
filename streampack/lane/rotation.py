"""Several lanes of one process in turn: one batch from each, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streampack.lane.lane import Lane, LaneBatch, LaneConfig, LaneEnd

__all__ = ["rotate"]


def rotate(
    config: LaneConfig, lanes: Sequence[int], states: Mapping[int, dict[str, Any] | None]
) -> Iterator[tuple[int, LaneBatch | LaneEnd]]:
    """Yield (lane, batch) in turn over `lanes`, each lane up to its last batch.

    A lane that has no batch at all gives its end, once. A lane starts when its turn comes first,
    so that the first batch waits for one lane only.
    """
    running: dict[int, Lane | None] = dict.fromkeys(lanes)
    while running:
        for lane in list(running):
            started = running[lane]
            if started is None:
                started = running[lane] = Lane(config, lane, states.get(lane))
            item = started.next()
            if isinstance(item, LaneEnd) or not item.has_next:
                del running[lane]
            yield lane, item
