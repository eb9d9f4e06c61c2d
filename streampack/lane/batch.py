"""What a lane gives: a batch of rows with the state after it, or its end."""

from __future__ import annotations

from typing import Any, NamedTuple

from streampack.lane.state import Round
from streampack.metrics import Metrics
from streampack.window.packed_rows import PackedRows


class LaneBatch(NamedTuple):
    """One batch of a lane.

    Attributes:
        lane, step: it is batch number `step` of this lane.
        rows: the batch in compact form.
        round, emitted: the lane's state is ``round.state(emitted)`` once this batch is consumed.
        metrics: what was lost or spent since the batch before, as far as the rows do not say it;
            None if nothing, as for all but the first batch of a round.
        has_next: True if the lane has another batch. The last one's state is that of the end.
    """

    lane: int
    step: int
    rows: PackedRows
    round: Round | SavedRound
    emitted: int
    metrics: Metrics | None
    has_next: bool = True


class LaneEnd(NamedTuple):
    """The end of a lane, where no batch carries it.

    Attributes:
        lane: which lane; step: batches it has given.
        round, emitted: the lane's state is ``round.state(emitted)``.
        metrics: what was lost or spent since the last batch.
    """

    lane: int
    step: int
    round: Round | SavedRound
    emitted: int
    metrics: Metrics


class SavedRound(NamedTuple):
    """A round as its state: what another process knows of it.

    Attributes:
        start: the lane's state before any batch of the round.
    """

    start: dict[str, Any]

    def state(self, emitted: int) -> dict[str, Any]:
        """As `Round.state`."""
        return {**self.start, "emitted": emitted}
