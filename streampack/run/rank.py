"""RankRun: one rank's batches in order up to the common end, and the state of the batches taken.

Batches come from lanes of this process, or from worker processes. An empty batch (padding only)
takes the turn of a lane that has ended, until all lanes of all ranks have ended. The state covers
only batches that the loop has taken.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.deals.dealer import RankExchange
from streampack.deals.report_channel import ReportChannel
from streampack.errors import ConfigError, WorkerError
from streampack.job.connect import TIMEOUT_S, connect
from streampack.job.ending import Alone, End, Ending, Gap, Ranks, question
from streampack.lane.config import LaneShare
from streampack.lane.state import LaneEnd
from streampack.metrics import Metrics
from streampack.run.feeds import Feed, Items
from streampack.run.plan import RunPlan
from streampack.run.recent import Recent
from streampack.run.state import Deferred, RunState, batches_known
from streampack.sources.error_policy import ErrorPolicy

logger = logging.getLogger(__name__)


class RankRun:
    """The batches of one rank, and a record of the batches that its loop has taken.

    Args:
        plan: plan of the run.
        start: state to resume from; None is the beginning.
        ranks: connection of the ranks that agree on the end; None detects the job's processes.
        end: how a finite run ends; see `PackedLoader`.
        timeout_s: seconds to wait for the processes of the job.

    Attributes:
        state: state after the batches that the loop has taken.
        metrics: totals over these batches.
        kept: values that leaves keep since the start, by name.
    """

    def __init__(
        self,
        plan: RunPlan,
        start: RunState | None = None,
        *,
        ranks: Ranks | None = None,
        end: End = "drain",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.plan = plan
        self.state = plan.start() if start is None else start
        self.metrics = Metrics()
        self._ranks = ranks
        self.end = end
        self._timeout_s = timeout_s
        self._changes = 0  # digest of the values set in this process
        self.kept: dict[str, Any] = {}
        self.compared: list[int] | None = None  # digests of documents, once ranks compared them
        self._gave = False  # whether any document was given since the start
        self._logged = False  # True once lost tokens were logged
        # Turns of lanes without a batch for the loop, and the states after them, in order.
        self._untaken: list[tuple[int, int, Deferred]] = []  # pairs of lane and step
        self._recent = Recent(self.state)
        # Error of restarted workers, until the loop raises it.
        self._error: WorkerError | None = None

    @property
    def ranks(self) -> Ranks:
        """The ranks that agree: the processes of the job, or this rank alone."""
        if self._ranks is None:
            self._ranks = connect(self.plan.ranks, timeout_s=self._timeout_s)
        return self._ranks

    @property
    def num_ranks(self) -> int:
        """The number of ranks that agree: 1 if this rank is not connected with others."""
        return 1 if isinstance(self.ranks, Alone) else self.plan.ranks.world_size

    def place(self) -> int:
        """Return batch index and digest of changes, as a `question` for the other ranks."""
        return question("loss", self.state.next_batch, self._changes)

    @property
    def steps_taken(self) -> int:
        """Return the steps from the beginning of the run up to its state."""
        return self.plan.steps_before(self.state.next_batch)

    def lanes(self) -> list[int]:
        """Return the lanes of this rank's next batches, in the order of the rotation."""
        return self.plan.topology.lanes(self.state.next_batch, self.plan.config.lanes)

    def continue_from(self, plan: RunPlan, start: RunState) -> None:
        """Continue from another state, of this run or of another one."""
        self.plan, self.state = plan, start
        self._recent = Recent(start)
        self._error = None
        self._untaken.clear()
        self.kept.clear()

    def change(self, values: Mapping[str, Any], what: object) -> None:
        """Change the values of leaves in the state; `what` identifies the change on every rank."""
        self.state.beside = values
        self._recent.change(values)
        self._changes = question(self._changes, what)

    @property
    def oldest(self) -> int:
        """Return the index of the batch that follows the oldest state that may be asked for."""
        return self._recent.oldest

    # ------------------------------------------------------------------ giving

    def batches(
        self, source: Feed, *, sharing: ReportChannel | None = None
    ) -> Generator[PackedBatch, None, None]:
        """Yield the batches after the last one taken, in order, up to the common end.

        Args:
            source: feed of this rank's batches.
            sharing: part of the lanes in deals, if the loop's process has set one.

        Raises (while iterating):
            RankError: another rank died, or started another run or at another batch.
        """
        plan, start = self.plan, self.state.next_batch
        finite = plan.config.epochs is not None
        config = replace(plan.config, beside=plan.config.source._live(self.state.beside))
        self.kept["beside"] = config.beside
        if not isinstance(self.ranks, Alone):
            from streampack.distributed.same_start import check_same_start

            check_same_start(self)
        states = self.state.states()
        connected = sharing is None and self._is_connected()
        channel = sharing or self.state.sharing(connected=connected, name=source.name, kept=True)
        rule = plan.config.dealing
        exchange = channel.exchange(rule)
        dealer = channel.dealer(rule, exchange, states) if connected else None
        with_ranks = None if dealer is None else RankExchange(dealer, self.ranks)
        share = LaneShare(config, plan.topology, start, states)
        feed = source.open(share, channel, exchange, self)
        items = self._real(feed)
        # A DataLoader takes its workers' batches in turn, so each worker must give one.
        leaves_out, alone = sharing is None and not self._is_apart(), plan.topology.world_size == 1
        self._gave = False
        try:
            self._ending = Ending(
                items,
                topology=plan.topology,
                start=start,
                lanes=plan.config.lanes,
                known={lane: batches_known(state) for lane, state in states.items()},
                ranks=self.ranks if finite else None,
                end=self.end,
                leaves_out=leaves_out,
            )
            coming, first = iter(self._ending), start
            while True:
                if with_ranks is not None:
                    with_ranks.before_step(first)
                item = next(coming, None)
                if item is None:
                    break
                if isinstance(item, Gap):
                    item = self.empty_batch(item.lane, item.step)
                elif leaves_out and alone and not item.num_documents:
                    # Its lane waits for a deal, and no other rank has a batch in this step.
                    self._untaken.append((item.lane, item.step, item.lane_state))
                    self.metrics += item.spent or Metrics()
                    continue
                yield item
                first = plan.topology.step_after(self._number(item))
            if start == 0 and not self._gave:
                self._report_no_documents()
            elif start and first == start and sharing is None:
                logger.warning(
                    "The run had ended where the state was saved, and no batch follows. For more, "
                    "start a new run, without the state."
                )
            for left in self._ending.rest():
                self.metrics += left.spent or Metrics()
                self.metrics.left += left.composition
        finally:
            try:
                items.close()
                if isinstance(feed, Generator):
                    feed.close()
            finally:  # a second Ctrl-C may come
                exchange.close(remove=sharing is None)

    def interrupt(self, error: WorkerError) -> None:
        """Let the loop raise the error of restarted workers before its next batch."""
        self._error = error

    def interruption(self) -> WorkerError | None:
        """Return the error of restarted workers, once, for the loop to raise."""
        error, self._error = self._error, None
        return error

    def _report_no_documents(self) -> None:
        """Raise or warn at the end of a run in which no batch held a document."""
        titles = self.plan.config.preparation.titles()
        named = [f'the {kind} "{name}"' for kind, name in titles]
        fact = "The run has ended, and no batch held a document."
        remedy = (
            f"Look at what {' and '.join(named)} {'return' if named[1:] else 'returns'}."
            if named
            else "Look whether all are empty, skipped or longer than rows may be."
        )
        if named and self.plan.topology.world_size == 1:
            raise ConfigError(fact, remedy, setting=titles[0][0])
        logger.warning("%s %s", fact, remedy)

    def _is_apart(self) -> bool:
        """Return whether there are other ranks without a connection to this one."""
        return self.plan.topology.world_size > 1 and isinstance(self.ranks, Alone)

    def _is_connected(self) -> bool:
        """Return whether the ranks exchange the reports of their lanes for deals."""
        ranks, lanes = self.plan.topology.world_size, self.plan.config.lanes
        return 1 < ranks <= lanes and not self._is_apart()

    def empty_batch(self, lane: int, step: int) -> PackedBatch:
        """Return a batch of padding only, for a turn of a lane that has ended."""
        config = self.plan.config
        rows = config.finished(config.empty_batch(step), str, ErrorPolicy("raise"))
        return kind_of(rows)(rows, lane=lane, step=step, state=partial(self.state.lane, lane))

    def _real(self, feed: Items) -> Generator[PackedBatch, None, None]:
        """Yield the batches with documents; record the ends of lanes that no batch carries."""
        for item in feed:
            if isinstance(item, LaneEnd):
                self.metrics += item.metrics
                self._ending.end_lane(item.lane, item.step)
                after = partial(item.start.state, item.emitted)
                self._untaken.append((item.lane, item.step, after))
            else:
                self._gave = self._gave or item.num_documents > 0
                yield item

    # ------------------------------------------------------------------ taking

    def take(self, batch: PackedBatch, *, stepped_over: bool = False) -> None:
        """Record that the loop takes `batch`, the next one of this rank, or steps over it."""
        self._commit_step(batch)
        metrics = self.metrics
        if stepped_over:
            metrics.stepped_over += batch.composition
        else:
            metrics.batches += 1
            if batch.num_documents:
                metrics.composition += batch.composition
                metrics.loss_tokens += batch.num_loss_tokens
                for function in self.plan.config.on_take:
                    function(self, batch)
            else:
                metrics.empty_batches += 1
                metrics.empty_slots += batch.composition.slots
        self.metrics = metrics
        config = self.plan.config
        if not self._logged and metrics.composition.slots >= config.window.tokens(config.packer):
            self._logged = True
            self.log_lost("so far")
        self._recent.add(self._number(batch), batch, self.state)

    def transformed(self, batch: PackedBatch, item: Any) -> None:
        """Record that the loop gets `item` instead of a batch that it took."""
        self._recent.transformed(self._number(batch), item)

    def step_over(self, first: int) -> None:
        """Record that the batches from index `first` on were taken without being used."""
        self.state.step_over(first)
        self._recent.move(self.state)

    def _commit_step(self, batch: PackedBatch) -> None:
        """Record that the run is past the step of this rank's batch."""
        self._commit(batch)

    def _commit(self, batch: PackedBatch) -> None:
        """Record that the run is past a batch, this rank's or one beside it."""
        if batch.spent is not None:
            self.metrics += batch.spent
        has_state = batch.num_documents or batch.has_next
        lane_state = batch.lane_state if has_state else None
        if self._untaken:
            self._record_untaken(self.plan.topology.step_after(self._number(batch)))
        self.state.commit(batch.lane, batch.step, lane_state)

    def log_lost(self, whole: str) -> None:
        """Log on rank 0 the fraction of its tokens that is in no row, if any."""
        if self.metrics.composition.dropped and not self.plan.ranks.rank:
            from streampack.watching.lost_tokens import lost_summary

            logger.warning("%s", lost_summary(self.metrics, self.plan.config.packer, whole))

    def _record_untaken(self, following: int) -> None:
        """Commit the states of lanes with turns before `following` that give the loop no batch."""
        later = []
        for lane, step, state in self._untaken:
            if step * self.plan.config.lanes + lane < following:
                self.state.lanes[lane] = state
            else:
                later.append((lane, step, state))
        self._untaken = later

    def state_dict(self, after: Any = None, before: Any = None) -> dict[str, Any]:
        """Return the JSON-able state after the last batch taken, or at the batch that is named.

        Raises:
            StateError: the batch is not one of the last 16 taken.
        """
        if after is not None:
            return self._recent.after(after, self._number).as_dict()
        if before is not None:
            return self._recent.before(before, self._number).as_dict()
        return self.state.as_dict()

    def _number(self, batch: PackedBatch | Gap) -> int:
        return batch.step * self.plan.config.lanes + batch.lane


def run_of(plan: RunPlan, start: RunState, **options: Any) -> RankRun:
    """Start the run of a rank; see `RankRun` for the arguments."""
    if not plan.shares_batches:
        return RankRun(plan, start, **options)
    from streampack.context_parallel.run import GroupedPlan, GroupedRun

    assert isinstance(plan, GroupedPlan)
    return GroupedRun(plan, start, **options)
