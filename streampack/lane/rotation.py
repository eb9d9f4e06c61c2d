"""Several lanes of one process in turn: one batch from each, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streampack.lane.lane import Lane, LaneBatch, LaneConfig, LaneEnd

__all__ = ["rotate"]


def rotate(
    config: LaneConfig, states: Mapping[int, dict[str, Any] | None]
) -> Iterator[LaneBatch | LaneEnd]:
    """Yield batches of these lanes in turn, each lane up to its last batch.

    A lane that has no batch at all gives its end, once. A lane starts when its turn comes first,
    so that the first batch waits for one lane only.

    Args:
        config: of the run.
        states: of each lane, where it goes on from; None is its beginning. Their order is that
            of the rotation.
    """
    running: dict[int, Lane | None] = dict.fromkeys(states)
    while running:
        for lane in list(running):
            started = running[lane]
            if started is None:
                started = running[lane] = Lane(config, lane, states[lane])
            item = started.next()
            if isinstance(item, LaneEnd) or not item.has_next:
                del running[lane]
            yield item
