"""A lane: document stream, window, plan and batches, with a state that reproduces them.

A lane is deterministic on its own: the same source, settings and seed give the same batches on any
machine, rank or worker. Its state consists of coordinates: a position in the stream, the documents
after it that the window held at the start of the current round, and the number of emitted batches
of the round. Restoring rereads the documents, replans the round and skips the emitted batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.deals.dealer import Dealer
from streampack.lane.config import LaneConfig
from streampack.lane.fill import Fill
from streampack.lane.round import Round, totals
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.metrics import Metrics


class Lane:
    """The batches of a lane, restored from `state` if given.

    Arguments and errors are the same as in `Fill`.
    """

    def __init__(
        self,
        config: LaneConfig,
        lane: int,
        state: Mapping[str, Any] | None = None,
        dealer: Dealer | None = None,
    ) -> None:
        self._lane = lane
        self._ends = config.epochs is not None
        self._fill = Fill(config, lane, state, dealer)
        self._round = None if state is None else Round.again(self._fill, state)
        self._step = 0 if state is None else state["step"] + state["emitted"]
        self._totals = totals(self._fill)
        self._metrics: Metrics | None = None  # metrics of the round, until a batch carries them
        self._following: LaneBatch | LaneEnd | None = None

    def next(self) -> LaneBatch | LaneEnd:
        """Return the next batch, or the lane's end once the last epoch is packed.

        `has_next` of a batch tells if another batch follows. For the last batch of a round this
        requires the next round, which is made before the batch is handed out.
        """
        item, self._following = self._following or self._make_next(), None
        if isinstance(item, LaneEnd) or not self._ends or not self._is_through():
            return item
        following = self._make_next()
        if isinstance(following, LaneEnd) and item.rows.composition.placed:
            metrics = following.metrics + (item.metrics or Metrics())
            return item._replace(
                start=following.start, emitted=following.emitted, metrics=metrics, has_next=False
            )
        self._following = following
        return item

    def _make_next(self) -> LaneBatch | LaneEnd:
        while self._is_through():
            if self._round is not None and self._round.final:
                ended = self._round
                metrics = self._take_metrics() or Metrics()
                return LaneEnd(self._lane, self._step, ended.start, ended.emitted, metrics)
            self._round = self._next_round()
        current = self._round
        assert current is not None
        rows = current.batches[current.emitted]
        current.emitted += 1
        self._step += 1
        return LaneBatch(
            self._lane, self._step - 1, rows, current.start, current.emitted, self._take_metrics()
        )

    def _is_through(self) -> bool:
        """Return whether all batches of the round are given."""
        return self._round is None or self._round.emitted == len(self._round.batches)

    def _next_round(self) -> Round:
        """Remove the delivered rows, fill the window and make the batches of a round."""
        fill, last = self._fill, self._round
        if last is not None:
            with fill.times.measure("pack_s"):
                fill.window.advance(last.planned, starved=last.starved)
        starved = fill.read(self._step)
        following = Round(fill, self._step, starved)
        before, self._totals = self._totals, totals(fill)
        met = {name: now - before[name] for name, now in self._totals.items()}
        spent = Metrics(composition=following.lost, **met)
        self._metrics = spent if self._metrics is None else self._metrics + spent
        return following

    def _take_metrics(self) -> Metrics | None:
        """Return losses and times since the last call; None if there are none."""
        metrics, self._metrics = self._metrics, None
        return metrics
