"""Delivery: a batch on its way to the loop, with what the loop's state needs once it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from streampack.batch import PackedBatch
from streampack.metrics import Metrics

__all__ = ["Delivery", "LaneState"]

LaneState = dict[str, Any] | None


class Delivery(NamedTuple):
    """A batch on its way to the loop.

    Attributes:
        batch: as the loop gets it.
        metrics: what was lost or spent since the lane's batch before; None if nothing.
        state: the lane's, once the loop has taken the batch.
        dtype: of its token ids as they travel.
    """

    batch: PackedBatch
    metrics: Metrics | None
    state: LaneState | Callable[[], LaneState]
    dtype: np.dtype[Any]

    @property
    def lane(self) -> int:
        """The batch's lane."""
        return self.batch.lane

    @property
    def step(self) -> int:
        """The batch's number in its lane."""
        return self.batch.step

    @property
    def has_next(self) -> bool:
        """Whether its lane has another one."""
        return self.batch.has_next
