"""The order of rollouts: which prompt is sampled next, and which groups make up the next step.

A pure state machine, without I/O, torch or clocks. A group is a prompt with its n answers:

    waiting -> dispatched -> partial -> finished -> in a step (trained) -> freed
       ^___________|____________|__________|            rejected, failed: counted, not trained

Windowed FIFO, after section 6.2.4 of arXiv 2605.26494; proof in torchtitan's
``rl/docs/windowed_fifo.md``. A step has P groups, and samplers are S steps ahead.

- At most B = (S + 1) P groups are admitted. A group takes a slot from its first dispatch until the
  step that trained it is published to the samplers.
- A step takes finished groups, the oldest first, from W consecutive places, which begin at the
  oldest untrained group. Taking a younger one does not move the window. W = 1 is strict order.
- The age of a group is the number of steps between the weights that were published when it was
  dispatched and the step that trains it. At most B - 1 older and W - 1 younger groups are trained
  between the two, so no age exceeds (B + W - 2) // P, whatever the samplers do.

Rejected and failed groups leave their slots and places at once. Nothing trained is lost by it, so
the bound holds. A prompt's id is its serial in the stream of prompts.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from streampack.errors import StateError


class Phase(Enum):
    """Phase of a group that has a slot."""

    WAITING = "waiting"
    DISPATCHED = "dispatched"
    FINISHED = "finished"
    TRAINED = "trained"
    LEFT = "left"  # rejected or failed


class TicketId(NamedTuple):
    """Identity of one dispatch of a prompt; answers to one that is no longer current are refused.

    Attributes:
        serial: index of the prompt in the stream of prompts.
        attempt: 1 for the first dispatch since the start or the last load, 2 for the second.
        incarnation: name of the start or load; each has a new one.
    """

    serial: int
    attempt: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings of a schedule.

    Attributes:
        groups: P, groups of a step.
        answers: n, answers of a group.
        steps_ahead: S, steps that samplers may be ahead of the trainer.
        window: W, places in which groups may overtake each other.
        timeout_s: seconds after which a dispatched prompt is redispatched.
        max_attempts: dispatches of a prompt without a finished group before it has failed.
        max_age: age in steps above which a finished group is resampled; None is no limit.
    """

    groups: int
    answers: int = 1
    steps_ahead: int = 1
    window: int = 1
    timeout_s: float = math.inf
    max_attempts: int = 3
    max_age: int | None = None

    @property
    def slots(self) -> int:
        """B, the number of groups that may be admitted and not yet freed."""
        return (self.steps_ahead + 1) * self.groups

    @property
    def most_age(self) -> int:
        """Bound on the age of a trained group, in steps."""
        return (self.slots + self.window - 2) // self.groups


@dataclass(slots=True, eq=False)
class Group:
    """A prompt with a slot.

    Attributes:
        serial: index of the prompt.
        phase: its phase.
        attempt: attempt of its last ticket.
        failures: attempts that timed out or were given back.
        born: steps that were published when it was last dispatched.
        deadline: time of its timeout.
        answers: its answers so far.
    """

    serial: int
    phase: Phase = Phase.WAITING
    attempt: int = 0
    failures: int = 0
    born: int = 0
    deadline: float = math.inf
    answers: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """Totals of a run, over all its incarnations.

    Attributes:
        trained, rejected, failed: groups by their end.
        given_back: tickets that timed out or were given back.
        stale: finished groups that were resampled because of `Rule.max_age`.
        refused: answers and rejections for a ticket that was no longer current.
    """

    trained: int = 0
    rejected: int = 0
    failed: int = 0
    given_back: int = 0
    stale: int = 0
    refused: int = 0


class Schedule:
    """The groups of a run between their prompts and the steps that train them.

    Args:
        rule: settings.
        incarnation: name of this start or load, different from all earlier ones.
        steps: steps that were trained before.
        next: serial of the first prompt that was never dispatched.
        in_flight: serials below `next` that were dispatched and neither trained nor rejected; they
            are redispatched first.

    Attributes:
        steps: number of steps handed out.
        freed: number of steps that were published.
        next: see above.
        ended: True if the stream has no prompt `next`.
        counts: totals.
        failed_in_a_row: prompts that failed since the last finished group.
    """

    def __init__(
        self,
        rule: Rule,
        incarnation: str,
        *,
        steps: int = 0,
        next: int = 0,
        in_flight: Collection[int] = (),
    ) -> None:
        self.rule, self.incarnation = rule, incarnation
        self.steps = self.freed = steps
        self.next = next
        self.ended = False
        self.counts = Counts()
        self.failed_in_a_row = 0
        self._resumed = deque(sorted(in_flight))
        self._line: list[Group] = []  # by place, from the oldest untrained group on
        self._again: list[int] = []  # serials of groups with a slot that wait, sorted
        self._groups: dict[int, Group] = {}  # untrained groups with a slot
        self._in_steps: deque[int] = deque()  # groups of each step that is not published
        self._due = math.inf  # no deadline is earlier

    # ------------------------------------------------------------------ dispatching

    @property
    def free_slots(self) -> int:
        """Number of groups that may be admitted now."""
        return self.rule.slots - len(self._groups) - sum(self._in_steps)

    @property
    def starved(self) -> bool:
        """True if no step can be filled before one that was handed out is published."""
        room = self.free_slots + len(self._groups)
        return room < self.rule.groups and (bool(self._resumed) or not self.ended)

    def wanted(self) -> int | None:
        """Return the serial of the prompt to be dispatched next, or None if none may be."""
        if self.rule.max_age is not None and self.steps - self.freed > self.rule.max_age:
            return None  # it would be too old when it is finished
        if self._again:
            return self._again[0]
        if self.free_slots <= 0:
            return None
        if self._resumed:
            return self._resumed[0]
        return None if self.ended else self.next

    def dispatch(self, now: float) -> TicketId:
        """Dispatch the prompt `wanted()`."""
        serial = self.wanted()
        assert serial is not None
        again = self._again
        group = self._groups[again.pop(0)] if again else self._admit(serial)
        group.phase, group.attempt = Phase.DISPATCHED, group.attempt + 1
        group.born, group.deadline = self.freed, now + self.rule.timeout_s
        self._due = min(self._due, group.deadline)
        return TicketId(serial, group.attempt, self.incarnation)

    def restore(self, serial: int, answers: list[Any], born: int) -> Group:
        """Take the finished group of a prompt in flight, which was sampled before the load."""
        self._resumed.remove(serial)
        group = Group(serial, Phase.FINISHED, born=born, answers=answers)
        insort(self._line, group, key=_serial)
        self._groups[serial] = group
        return group

    def _admit(self, serial: int) -> Group:
        if self._resumed:
            self._resumed.popleft()
        else:
            self.next += 1
        group = self._groups[serial] = Group(serial)
        insort(self._line, group, key=_serial)
        return group

    # ------------------------------------------------------------------ answers

    def put(self, ticket: TicketId, answer: Any) -> Group | None:
        """Add an answer; return its group, or None if the ticket is not current."""
        if (group := self._current(ticket)) is None:
            return None
        group.answers.append(answer)
        if len(group.answers) == self.rule.answers:
            group.phase, group.deadline = Phase.FINISHED, math.inf
            self.failed_in_a_row = 0
        return group

    def reject(self, ticket: TicketId) -> bool:
        """Drop the group of a ticket for good; return whether the ticket is current."""
        group = self._current(ticket, finished=True)
        if group is None:
            return False
        self.counts.rejected += 1
        self.failed_in_a_row = 0
        self._leave(group)
        return True

    def give_back(self, ticket: TicketId) -> Group | None:
        """End an attempt without a result; return its group, or None if it is not current."""
        if (group := self._current(ticket)) is not None:
            self._fail(group)
        return group

    def expire(self, now: float) -> list[int]:
        """End the attempts that have timed out; return the serials of prompts that failed."""
        if now < self._due:
            return []
        over = [group for group in self._groups.values() if group.deadline <= now]
        for group in over:
            self._fail(group)
        self._due = min((group.deadline for group in self._groups.values()), default=math.inf)
        return [group.serial for group in over if group.phase is Phase.LEFT]

    @property
    def due(self) -> float:
        """Time before which `expire` has nothing to do."""
        return self._due

    @property
    def reads_on(self) -> bool:
        """True if the next new prompt is `next`, and not one that was in flight at the load."""
        return not self._resumed and not self.ended

    def _current(self, ticket: TicketId, *, finished: bool = False) -> Group | None:
        group = self._groups.get(ticket.serial)
        known = group is not None and (group.attempt, self.incarnation) == ticket[1:]
        phases = (Phase.DISPATCHED, Phase.FINISHED) if finished else (Phase.DISPATCHED,)
        if group is None or not known or group.phase not in phases:
            self.counts.refused += 1
            return None
        return group

    def _fail(self, group: Group) -> None:
        self.counts.given_back += 1
        group.failures += 1
        if group.failures >= self.rule.max_attempts:
            self.counts.failed += 1
            self.failed_in_a_row += 1
            self._leave(group)
        else:
            self._send_again(group)

    def _send_again(self, group: Group) -> None:
        group.phase, group.deadline, group.answers = Phase.WAITING, math.inf, []
        insort(self._again, group.serial)

    def _leave(self, group: Group) -> None:
        group.phase = Phase.LEFT
        del self._groups[group.serial]
        self._line.remove(group)
        self._drop_trained()

    # ------------------------------------------------------------------ steps

    def next_step(self) -> list[Group] | None:
        """Hand out the groups of the next step.

        Returns:
            P groups; fewer in the last step of a finite stream; an empty list after it; None if
            too few are finished in the window.

        Raises:
            StateError: a group is older than the bound, which is a fault of this module.
        """
        if self.rule.max_age is not None:
            for group in self._line:
                too_old = self.steps - group.born > self.rule.max_age
                if group.phase is Phase.FINISHED and too_old:
                    self.counts.stale += 1
                    self._send_again(group)
        chosen = self._chosen()
        if not chosen:
            return chosen
        oldest = max(self.steps - group.born for group in chosen)
        if oldest > self.rule.most_age:
            raise StateError(
                f"No group may be older than {self.rule.most_age} steps, got {oldest}.",
                "Please report it with the settings of the queue.",
            )
        for group in chosen:
            group.phase = Phase.TRAINED
            del self._groups[group.serial]
        self._drop_trained()
        self.steps += 1
        self.counts.trained += len(chosen)
        self._in_steps.append(len(chosen))
        return chosen

    def publish(self, steps: int) -> None:
        """Free the slots of the first `steps` steps of the run, which samplers now have."""
        while self.freed < min(steps, self.steps):
            self._in_steps.popleft()
            self.freed += 1

    def _chosen(self) -> list[Group] | None:
        chosen: list[Group] = []
        anchor = None  # place of the oldest group that stays untrained
        for place, group in enumerate(self._line):
            if anchor is not None and place >= anchor + self.rule.window:
                break
            if group.phase is Phase.FINISHED:
                chosen.append(group)
                if len(chosen) == self.rule.groups:
                    return chosen
            elif group.phase is not Phase.TRAINED and anchor is None:
                anchor = place
        is_end = self.ended and not self._resumed and anchor is None
        return chosen if is_end else None

    def _drop_trained(self) -> None:
        count = 0
        while count < len(self._line) and self._line[count].phase is Phase.TRAINED:
            count += 1
        del self._line[:count]

    # ------------------------------------------------------------------ state and metrics

    def in_flight(self) -> list[int]:
        """Return the serials that were dispatched and neither trained nor rejected, sorted."""
        return sorted([*self._groups, *self._resumed])

    def untrained(self) -> list[Group]:
        """Return the untrained groups with a slot, the oldest first."""
        return [group for group in self._line if group.phase is not Phase.TRAINED]

    @property
    def done(self) -> bool:
        """True if every prompt of a finite stream is trained, rejected or failed."""
        return self.ended and not self._resumed and not self._groups


def _serial(group: Group) -> int:
    return group.serial
