"""The order of rollouts: every prompt once, and no group older than the bound."""

from __future__ import annotations

import heapq
import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streampack.errors import StateError
from streampack.rollouts.schedule import Group, Rule, Schedule, TicketId
from tests.support.drawn import drawn


class Rollouts(RuleBasedStateMachine):
    """Samplers, a trainer, checkpoints and kills, in any order."""

    @initialize(
        groups=st.integers(1, 3),
        answers=st.integers(1, 2),
        ahead=st.integers(0, 2),
        window=st.integers(1, 7),
        prompts=st.integers(0, 30),
        max_age=st.sampled_from([None, None, 0, 1]),
    )
    def begin(
        self,
        groups: int,
        answers: int,
        ahead: int,
        window: int,
        prompts: int,
        max_age: int | None,
    ) -> None:
        self.rule = Rule(groups, answers, ahead, window, 10.0, 2, max_age)
        self.prompts = prompts
        self.now = 0.0
        self.incarnations = itertools.count()
        self.schedule = self.started()
        self.ends: dict[int, str] = {}  # trained, rejected or failed, by serial
        self.trained: list[int] = []
        self.tickets: list[TicketId] = []
        self.saved: tuple[dict[str, Any], dict[int, str], list[int]]
        self.save(inside=False)

    def started(self, **state: Any) -> Schedule:
        return Schedule(self.rule, f"{next(self.incarnations)}", **state)

    @rule(count=st.integers(1, 6))
    def dispatch(self, count: int) -> None:
        for _ in range(count):
            self.schedule.ended = self.schedule.next >= self.prompts
            if self.schedule.wanted() is not None:
                self.tickets.append(self.schedule.dispatch(self.now))

    @precondition(lambda self: self.tickets)
    @rule(pick=st.integers(0), count=st.integers(1, 2))
    def put(self, pick: int, count: int) -> None:
        ticket = self.tickets[pick % len(self.tickets)]
        current = ticket.incarnation == self.schedule.incarnation
        for _ in range(count):
            assert self.schedule.put(ticket, ticket) is None or current

    @precondition(lambda self: self.tickets)
    @rule(pick=st.integers(0))
    def reject(self, pick: int) -> None:
        ticket = self.tickets[pick % len(self.tickets)]
        if self.schedule.reject(ticket):
            assert self.ends.setdefault(ticket.serial, "rejected") == "rejected"

    @precondition(lambda self: self.tickets)
    @rule(pick=st.integers(0))
    def give_back(self, pick: int) -> None:
        self.schedule.give_back(self.tickets[pick % len(self.tickets)])
        self.note_failed()

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.schedule.expire(self.now)
        self.note_failed()

    def note_failed(self) -> None:
        lost = {*range(self.schedule.next)} - {*self.ends} - {*self.schedule.in_flight()}
        self.ends |= dict.fromkeys(lost, "failed")

    @rule()
    def train(self) -> None:
        before = self.schedule.steps
        for group in self.schedule.next_step() or ():
            assert group.serial not in self.ends
            assert before - group.born <= self.rule.most_age
            if self.rule.max_age is not None:
                assert before - group.born <= self.rule.max_age
            assert len(group.answers) == self.rule.answers
            assert {answer.attempt for answer in group.answers} == {group.attempt}
            self.ends[group.serial] = "trained"
            self.trained.append(group.serial)

    @rule(behind=st.integers(0, 1))
    def publish(self, behind: int) -> None:
        self.schedule.publish(self.schedule.steps - behind)

    @rule(inside=st.booleans())
    def save(self, inside: bool) -> None:
        """Save before a step, and train it; or save between steps."""
        schedule = self.schedule
        saved = {"steps": schedule.steps, "next": schedule.next, "in_flight": schedule.in_flight()}
        self.saved = saved, {**self.ends}, [*self.trained]
        if inside:
            self.train()

    @rule()
    def kill(self) -> None:
        state, ends, trained = self.saved
        self.schedule, self.ends, self.trained = self.started(**state), {**ends}, [*trained]

    @invariant()
    def every_dispatched_prompt_is_in_flight_or_has_one_end(self) -> None:
        if not hasattr(self, "schedule"):
            return
        schedule = self.schedule
        flying = schedule.in_flight()
        assert len({*flying}) == len(flying)
        assert not {*flying} & {*self.ends}
        assert {*flying} | {*self.ends} == {*range(schedule.next)}
        assert schedule.free_slots >= 0
        if self.rule.window == 1 and self.trained:
            assert self.trained == sorted(self.trained)

    def teardown(self) -> None:
        """Let samplers and trainer run to the end."""
        if not hasattr(self, "schedule"):
            return
        while True:
            self.dispatch(9)
            for group in self.schedule.untrained():
                ticket = TicketId(group.serial, group.attempt, self.schedule.incarnation)
                while len(group.answers) < self.rule.answers:
                    if self.schedule.put(ticket, ticket) is None:
                        break  # it waits
            steps = self.schedule.steps
            self.train()
            self.schedule.publish(self.schedule.steps)
            if self.schedule.done:
                break
            assert self.schedule.steps > steps or self.schedule.wanted() is not None
        assert {*self.ends} == {*range(self.prompts)}
        assert self.schedule.next_step() == []
        assert len(self.trained) == sum(end == "trained" for end in self.ends.values())


TestRollouts = Rollouts.TestCase
TestRollouts.settings = drawn(200, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("ahead", [0, 1, 3])  # without steps ahead nothing can overtake
@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_a_sampler_made_for_it_reaches_the_bound_of_the_age(
    groups: int, ahead: int, window: int
) -> None:
    rule = Rule(groups, steps_ahead=ahead, window=window)
    assert rule.most_age == ahead - (-(window - 1) // groups)
    ages = [_age_of(Schedule(rule, "one"), slow) for slow in range(3 * rule.slots)]
    assert max(ages) == (rule.most_age if ahead else 0)


def _age_of(schedule: Schedule, slow: int) -> int:
    """Return the age of a group that is finished only when nothing else can be trained."""
    held: list[TicketId] = []
    while True:
        assert schedule.steps < 10 * schedule.rule.slots
        while schedule.wanted() is not None:
            ticket = schedule.dispatch(0.0)
            if ticket.serial == slow:
                held.append(ticket)
            else:
                schedule.put(ticket, None)
        chosen = schedule.next_step()
        if chosen is None:
            schedule.put(held.pop(), None)
            continue
        for group in chosen:
            if group.serial == slow:
                return schedule.steps - 1 - group.born
        schedule.publish(schedule.steps)


def finished(schedule: Schedule, *but: int) -> dict[int, TicketId]:
    """Dispatch all prompts that may be; finish their groups but some; return all tickets."""
    tickets = {}
    while (serial := schedule.wanted()) is not None:
        tickets[serial] = schedule.dispatch(0.0)
        if serial not in but:
            schedule.put(tickets[serial], None)
    return tickets


def test_a_thousand_kills_lose_no_prompt_and_discard_no_long_answer() -> None:
    """Answers take as long as their lengths, and kills come at any moment of any run."""
    kills = 0
    for seed in itertools.count():
        rng, rule = (
            random.Random(seed),
            Rule(3, steps_ahead=1 + seed % 3, window=1 + 3 * (seed % 4)),
        )
        lengths = [round(rng.lognormvariate(3, 1)) + 1 for _ in range(120)]
        rejected = {serial for serial in range(120) if rng.random() < 0.1}
        state: dict[str, Any] = {"steps": 0, "next": 0, "in_flight": []}
        saved: list[int] = []  # prompts trained or rejected up to the state
        while True:
            schedule = Schedule(rule, f"{kills}", **json.loads(json.dumps(state)))
            ended, ends_at = [*saved], 2 * max(lengths) * rng.random()
            now = 0.0
            running: list[tuple[float, TicketId]] = []
            while now < ends_at and not schedule.done:
                for _ in range(9 - len(running)):
                    schedule.ended = schedule.next >= len(lengths)
                    if (serial := schedule.wanted()) is not None:
                        end = now + lengths[serial]
                        heapq.heappush(running, (end, schedule.dispatch(now)))
                schedule.ended = schedule.next >= len(lengths)
                if running:
                    now, ticket = heapq.heappop(running)
                    if ticket.serial in rejected:
                        assert schedule.reject(ticket)
                        ended.append(ticket.serial)
                    else:
                        assert schedule.put(ticket, None) is not None
                ended += serials(schedule.next_step()) or []
                if rng.random() < 0.8:
                    schedule.publish(schedule.steps)
                flying = schedule.in_flight()
                anchor = min(flying, default=schedule.next)
                assert {*range(anchor)} <= {*ended}  # long ones too
                assert sorted([*ended, *flying]) == [*range(schedule.next)]
                if rng.random() < 0.2:
                    state = {"steps": schedule.steps, "next": schedule.next, "in_flight": flying}
                    saved = [*ended]
            if schedule.done:
                break
            kills += 1
        assert sorted(ended) == [*range(len(lengths))]
        if kills >= 1000:
            break


def serials(groups: list[Group] | None) -> list[int] | None:
    return None if groups is None else [group.serial for group in groups]


def test_younger_groups_overtake_a_slow_one_within_the_window_and_do_not_move_it() -> None:
    schedule = Schedule(Rule(3, steps_ahead=1, window=3), "one")  # the example of torchtitan
    tickets = finished(schedule, 2)
    assert serials(schedule.next_step()) == [0, 1, 3]
    assert serials(schedule.next_step()) is None  # only 4 is in the window
    schedule.put(tickets[2], None)
    assert serials(schedule.next_step()) == [2, 4, 5]


def test_a_strict_schedule_waits_for_the_oldest() -> None:
    schedule = Schedule(Rule(2, steps_ahead=2), "one")
    tickets = finished(schedule, 1)
    assert schedule.next_step() is None
    schedule.put(tickets[1], None)
    assert serials(schedule.next_step()) == [0, 1]


def test_slots_are_free_when_the_step_is_published_not_when_it_is_trained() -> None:
    schedule = Schedule(Rule(2, steps_ahead=0), "one")
    finished(schedule)
    assert serials(schedule.next_step()) == [0, 1]
    assert schedule.wanted() is None
    assert schedule.starved
    schedule.publish(1)
    assert schedule.wanted() == 2


def test_the_age_counts_from_the_weights_that_samplers_had() -> None:
    schedule = Schedule(Rule(1, steps_ahead=2), "one")
    tickets = [schedule.dispatch(0.0), schedule.dispatch(0.0)]
    for ticket in tickets:
        schedule.put(ticket, None)
    schedule.next_step()
    late = schedule.dispatch(0.0)  # after a step that is not published
    assert late is not None
    schedule.put(late, None)
    schedule.next_step()
    (group,) = schedule.next_step() or ()
    assert schedule.steps - 1 - group.born == 2


def test_a_rejected_group_frees_its_slot_and_its_place() -> None:
    schedule = Schedule(Rule(2, steps_ahead=0, window=2), "one")
    tickets = finished(schedule)
    assert schedule.reject(tickets[0])
    assert not schedule.reject(tickets[0])
    finished(schedule)
    assert serials(schedule.next_step()) == [1, 2]
    assert schedule.counts.rejected == 1


def test_a_late_answer_to_an_attempt_that_timed_out_is_refused() -> None:
    schedule = Schedule(Rule(1, answers=2, timeout_s=5, max_attempts=3), "one")
    late = schedule.dispatch(0.0)
    schedule.put(late, "a")
    schedule.expire(4.9)
    assert schedule.wanted() == 1
    schedule.expire(5.0)
    assert schedule.wanted() == 0
    again = schedule.dispatch(5.0)
    assert again.attempt == 2
    assert schedule.put(late, "b") is None
    group = schedule.put(again, "c")
    assert group is not None
    assert group.answers == ["c"]
    assert schedule.counts.refused == 1


def test_a_prompt_fails_after_its_attempts_and_the_run_goes_on() -> None:
    schedule = Schedule(Rule(1, max_attempts=2), "one")
    assert schedule.give_back(schedule.dispatch(0.0))
    assert schedule.give_back(schedule.dispatch(0.0))
    assert schedule.wanted() == 1
    assert (schedule.counts.failed, schedule.failed_in_a_row) == (1, 1)
    finished(schedule)
    assert serials(schedule.next_step()) == [1]
    assert schedule.failed_in_a_row == 0


def test_a_group_that_is_too_old_is_resampled_not_lost() -> None:
    schedule = Schedule(Rule(1, steps_ahead=2, max_age=1), "one")
    finished(schedule)
    trained = []
    while schedule.steps < 9:
        trained += serials(schedule.next_step()) or []
        schedule.publish(schedule.steps)
        finished(schedule)
    assert trained == [*range(9)]
    assert schedule.counts.stale > 0


def test_prompts_in_flight_are_dispatched_first_and_in_their_order_after_a_resume() -> None:
    schedule = Schedule(Rule(2, window=2), "two", steps=7, next=9, in_flight=[8, 3, 5])
    assert [*finished(schedule)] == [3, 5, 8, 9]
    assert serials(schedule.next_step()) == [3, 5]
    assert schedule.steps == 8


def test_a_step_past_the_bound_is_an_error() -> None:
    schedule = Schedule(Rule(1, steps_ahead=0), "one", steps=5, next=1, in_flight=[0])
    schedule.restore(0, [None], born=4)
    with pytest.raises(StateError):
        schedule.next_step()
