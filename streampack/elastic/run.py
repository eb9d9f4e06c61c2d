"""ElasticRun: one rank's part in the steps of a run, and the states of all lanes.

Before each step its members exchange one message. Each tells which of its lanes give a batch, and
the states of lanes that begin a round; `emitted`, the only other number of a state, follows. So
after every step each member knows the states of all lanes, and can run any of them.

A new membership is agreed upon before its first step:
  1. Each member tells the step that it shall begin with, and whether it knows the states there: it
     is at this step, or behind it and can go back, or has just started.
  2. If one lacks them, the first member that has them sends them.
  3. If any lane changes its rank, all members close their lanes, and open from the states the lanes
     that are theirs now. This rereads the windows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streampack.batch import PackedBatch
from streampack.deals.dealer import RankExchange
from streampack.deals.report_channel import ReportChannel
from streampack.distributed.same_start import check_same_start
from streampack.elastic.members import MemberRanks, Members
from streampack.elastic.plan import ElasticPlan
from streampack.errors import ConfigError, RankError, StateError
from streampack.job.ending import OtherPlaceError, question
from streampack.job.topology import Topology
from streampack.lane.config import LaneShare
from streampack.lane.state import LaneEnd
from streampack.metrics import Metrics
from streampack.run.feeds import Feed
from streampack.run.plan import RunPlan
from streampack.run.rank import RankRun
from streampack.run.recent import Recent
from streampack.run.state import LaneState, RunState

Resume = Callable[[Mapping[str, Any]], tuple[RunPlan, RunState]]


@dataclass(frozen=True, slots=True)
class Membership:
    """This process's place among the ranks.

    Attributes:
        rank: its rank; None if it takes no batches.
        world_size: number of ranks that take batches.
        members: connection of all of them, and of processes that take none.
    """

    rank: int | None
    world_size: int
    members: Members


@dataclass(frozen=True, slots=True)
class ComingStep:
    """A step that the members agreed on.

    Attributes:
        batches: batches of this rank, empty ones last.
        num_loss_tokens: loss tokens of the step on all ranks.
        lanes: states of all lanes after the step.
        end: index of the first batch after it.
    """

    batches: list[PackedBatch]
    num_loss_tokens: int
    lanes: dict[int, LaneState]
    end: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the run that this process can return to."""

    state: RunState
    metrics: Metrics
    changes: int


class ElasticRun(RankRun):
    """A rank's batches of every step, for ranks that come and go.

    Args:
        plan, start: plan and state of the whole run.
        resume: returns plan and state for another member's state.

    Attributes:
        step: index of the next step, counted as `at_step` counts.
        coming: the step that is being given.
    """

    plan: ElasticPlan

    def __init__(self, plan: ElasticPlan, start: RunState, *, resume: Resume) -> None:
        super().__init__(plan, start)
        self._resume = resume
        self._membership: Membership | None = None
        self._at: int | None = None  # step that a new membership begins with
        self._is_new = False  # True if the membership was not agreed upon yet
        self._opened_for: tuple[int | None, int] | None = None
        self._before: _Place | None = None
        self._begun = False  # whether this process knows a step that ranks have agreed on
        self.step = plan.steps_before(start.next_batch)
        self.coming = ComingStep([], 0, {}, start.next_batch)

    def continue_from(self, plan: RunPlan, start: RunState) -> None:
        """See `RankRun`."""
        elastic = ElasticPlan.of_run(plan, self.plan.step_batches, self.plan.members)
        super().continue_from(elastic, start)
        self._before, self._begun = None, False
        self.step = elastic.steps_before(start.next_batch)

    def set_members(self, membership: Membership, at_step: int | None) -> None:
        """Continue with these members before the next step."""
        self._membership, self._at, self._is_new = membership, at_step, True

    # ------------------------------------------------------------------ giving

    def batches(
        self, source: Feed, *, sharing: ReportChannel | None = None
    ) -> Generator[PackedBatch, None, None]:
        """Yield this rank's batches of every step, up to the common end; `coming` has the step.

        Raises (while iterating):
            RankError: a member died or is elsewhere; the run is as before the step.
        """
        if self._membership is None:
            raise ConfigError(
                "The ranks must be set before the loop, and they are not.",
                "Call set_ranks(rank, world_size, members), or set_ranks(0, 1) on a single rank.",
                setting="rank",
            )
        self._opened_for = None
        self._agree(self._membership)
        has_more = True
        while has_more:
            check_same_start(self)
            has_more = yield from self._opened(source, self._membership)

    def _opened(self, source: Feed, membership: Membership) -> Generator[PackedBatch, None, bool]:
        """Yield batches of the lanes that are this rank's now; return False at the end of the run.

        Return True if other ranks have come or gone.
        """
        plan, first, rank = self.plan, self.state.next_batch, membership.rank
        config = replace(plan.config, beside=plan.config.source._live(self.state.beside))
        self.kept["beside"] = config.beside
        states = self.state.states()
        mine = {lane: state for lane, state in states.items() if plan.rank_of(lane) == rank}
        channel = ReportChannel(source.name, kept=True)
        exchange = channel.exchange(config.dealing)
        dealer = channel.dealer(config.dealing, exchange, states)
        deals = None if dealer is None else RankExchange(dealer, self.ranks)
        share = LaneShare(config, plan.topology, first, mine)
        feed = source.open(share, channel, exchange, self) if mine else iter(())
        step = _Steps(self, membership, iter(feed), set(mine), states, deals)
        self._opened_for = (rank, membership.world_size)
        self._gave = False
        start = first
        try:
            while True:
                if self._is_new:
                    assert self._membership is not None
                    if self._agree(self._membership):
                        return True
                    step.membership = self._membership
                coming = step.next(first)
                if coming is None:
                    break
                first = coming.end
                if coming.batches:
                    self._gave, self.coming = True, coming
                    yield from coming.batches
            if start == 0 and not self._gave:
                self._report_no_documents()
            return False
        finally:
            try:
                if isinstance(feed, Generator):
                    feed.close()
            finally:
                exchange.close(remove=True)

    # ------------------------------------------------------------------ agreeing

    def _agree(self, membership: Membership) -> bool:
        """Agree with all members on the next step; return whether lanes must be reopened.

        Raises:
            RankError: a member is gone, or shall begin with another step; or none knows its states.
        """
        step = self.step if self._at is None else self._at
        self._ranks = MemberRanks(membership.members)
        self._error = None
        place = self._place_of(step)
        knows = place is not None
        here = (membership.rank, membership.world_size)
        reopens = self._opened_for != here or place is None or place is self._before
        told = {
            "step": step,
            "lost": not knows and (self._begun or (step > 0 and not self.state.next_batch)),
            "place": None if place is None else [place.state.next_batch, place.changes],
            "reopens": reopens,
        }
        answers = _gathered(membership.members, told)
        if any(answer["step"] != step for answer in answers):
            steps = sorted({answer["step"] for answer in answers})
            raise RankError(
                f"All ranks must continue with one step, got steps {steps}.",
                "Pass the same at_step to set_ranks on every rank.",
                setting="at_step",
            )
        knowing = [number for number, answer in enumerate(answers) if answer["place"] is not None]
        if not knowing and any(answer["lost"] for answer in answers):
            raise RankError(
                f"A rank must know the batches of step {step}; this one is at step {self.step}.",
                "Load the state of a checkpoint on every rank, or pass at_step=0 to begin the run.",
                setting="at_step",
            )
        if len({tuple(answers[number]["place"]) for number in knowing}) > 1:
            raise OtherPlaceError
        if place is self._before and place is not None:
            self.state, self.metrics, self._changes = place.state, place.metrics, place.changes
            self._recent = Recent(self.state)
        if 0 < len(knowing) < len(answers):
            state = json.dumps(self.state.as_dict()).encode() if knows else b""
            states = membership.members.gather(state)
            if not knows:
                self._adopt(json.loads(states[knowing[0]]), answers[knowing[0]]["place"][1])
        self.step, self._is_new, self._at = step, False, None
        self._before = None
        self.plan = replace(
            self.plan, members=Topology(membership.rank or 0, membership.world_size)
        )
        return any(answer["reopens"] for answer in answers)

    def _place_of(self, step: int) -> _Place | None:
        """Return the place before this step; None if this process does not know it."""
        if not self._begun:
            return None
        if step == self.step:
            return _Place(self.state, self.metrics, self._changes)
        return self._before if step == self.step - 1 else None

    def _adopt(self, state: Mapping[str, Any], changes: int) -> None:
        """Continue from another member's state."""
        try:
            plan, start = self._resume(state)
        except (ConfigError, StateError):  # of another run, which `check_same_start` tells to all
            plan, start = self.plan, self.state
            start.next_batch = state["next_batch"]
        self.continue_from(plan, start)
        self._changes, self._begun = changes, True

    # ------------------------------------------------------------------ taking

    def _commit_step(self, batch: PackedBatch) -> None:
        """Record that the loop takes a batch: all of its step, since a step is taken whole."""
        coming = self.coming
        if self.state.next_batch != coming.end:
            self._before = _Place(self.state.copy(), self.metrics + Metrics(), self._changes)
            self.state.lanes.update(coming.lanes)
            self.state.next_batch = coming.end
            self._begun = True
            self.step += 1
        if batch.spent is not None:
            self.metrics += batch.spent


class _Steps:
    """The steps of opened lanes, one after another.

    Args:
        run: run of the rank; membership: its members.
        items: items of this rank's lanes, in the order of batches.
        running: lanes of this rank that have not ended.
        states: states of all lanes.
        deals: exchange of reports, which a step of more batches than lanes needs inside, too.
    """

    def __init__(
        self,
        run: ElasticRun,
        membership: Membership,
        items: Iterator[PackedBatch | LaneEnd],
        running: set[int],
        states: dict[int, LaneState],
        deals: RankExchange | None,
    ) -> None:
        self.membership = membership
        self._deals = deals
        self._run = run
        self._items = items
        self._running = running
        self._lanes = states

    def next(self, first: int) -> ComingStep | None:
        """Agree on the step that begins with batch `first`; return None at the end of the run.

        A step without a document on any rank has no batches.
        """
        run, plan = self._run, self._run.plan
        batches, told = self._made(first)
        told["place"] = question("step", first, plan.step_batches, run._changes)
        answers = _gathered(self.membership.members, told)
        if any(answer["place"] != told["place"] for answer in answers):
            raise OtherPlaceError
        lanes = dict(self._lanes)
        for answer in answers:
            states = {int(lane): state for lane, state in answer["states"].items()}
            for lane in answer["gave"]:
                before = lanes[lane]
                if lane not in states and before is not None:
                    lanes[lane] = {**before, "emitted": before["emitted"] + 1}
            lanes.update(states)
        self._lanes, end = lanes, first + plan.step_batches
        if not any(answer["documents"] for answer in answers):
            for batch in batches:
                run.metrics += batch.spent or Metrics()
            has_more = any(answer["more"] for answer in answers)
            return ComingStep([], 0, lanes, end) if has_more else None
        forwards = max(len(answer["gave"]) for answer in answers)
        step, lane = divmod(first, plan.config.lanes)
        batches += [run.empty_batch(lane, step) for _ in range(forwards - len(batches))]
        total = sum(answer["loss_tokens"] for answer in answers)
        return ComingStep(batches, total, lanes, end)

    def _made(self, first: int) -> tuple[list[PackedBatch], dict[str, Any]]:
        """Make this rank's batches of a step, and the message about them."""
        run, plan, lanes = self._run, self._run.plan, self._run.plan.config.lanes
        batches: list[PackedBatch] = []
        states: dict[int, LaneState] = {}
        for number in range(first, first + plan.step_batches):
            lane = number % lanes
            if self._deals is not None:
                self._deals.before_step(number)
            if lane not in self._running:
                continue
            item = next(self._items)
            assert item.lane == lane, f"lane {item.lane} came in the place of {lane}"
            if not item.has_next:
                self._running.discard(lane)
            if isinstance(item, LaneEnd):
                run.metrics += item.metrics
                states[lane] = item.start.state(item.emitted)
                continue
            batches.append(item)
            state = item.lane_state() if callable(item.lane_state) else item.lane_state
            if not _follows(state, states.get(lane, self._lanes[lane])):
                states[lane] = state
        told = {
            "gave": [batch.lane for batch in batches],
            "documents": any(batch.num_documents for batch in batches),
            "more": bool(self._running),
            "loss_tokens": sum(batch.num_loss_tokens for batch in batches),
            "states": states,
        }
        return batches, told


def _follows(state: LaneState, before: LaneState) -> bool:
    """Return True if a lane's state is the one before and one more batch of its round."""
    if state is None or before is None:
        return False
    same = all(state[name] == before[name] for name in ("round", "step", "final"))
    return same and bool(state["emitted"] == before["emitted"] + 1)


def _gathered(members: Members, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of all members, which are JSON."""
    return [json.loads(each) for each in members.gather(json.dumps(message).encode())]
