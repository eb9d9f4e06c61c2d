"""Queue: hands prompts to samplers, takes their answers, and gives the trainer whole steps."""

from __future__ import annotations

import logging
import math
import queue
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from streampack.arguments import explained, one_of, real_number, type_in_words, whole_number
from streampack.errors import ConfigError, StateError, WorkerError
from streampack.rollouts.answer import Answer, check_same_columns, sequences_of
from streampack.rollouts.changes import Changes
from streampack.rollouts.metrics import RolloutMetrics, counted, export
from streampack.rollouts.prompts import Prompt, Prompts
from streampack.rollouts.schedule import Counts, Group, Rule, Schedule
from streampack.rollouts.spool import Spool
from streampack.rollouts.state import check_state, sealed
from streampack.rollouts.ticket import Ticket

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

logger = logging.getLogger(__name__)

NAMED_FAILURES = 10  # prompts that are logged one by one


class Queue:
    """The prompts in flight between samplers and a trainer, each trained exactly once.

    It belongs to one process, rank 0 of the trainer. All methods may be called from any thread.

    Args:
        prompts: prompts to be sampled.
        answers: answers of a group, the number of samples of a prompt.
        groups: groups of a training step.
        steps_ahead: steps that samplers may be ahead of the trainer; 0 is on-policy.
        window: size of the window in steps: a step takes finished groups from as many consecutive
            places as this number of steps has groups, beginning at the oldest untrained group.
            "strict" trains in the order of dispatch.
        timeout_s: seconds after which a ticket is given to another sampler; None waits for ever.
        max_attempts: tickets of a prompt that may time out or be given back before it has failed.
        max_age: age in steps above which a finished group is resampled.
        on_error: policy for failed prompts: "skip" counts and logs them; "raise" stops the trainer.
        spool: local folder or URL that keeps finished groups until they are trained and a state
            without them is saved, so that a resumed run need not sample them anew.

    Attributes:
        rule: the settings as numbers of groups, with the bound on ages, ``rule.most_age``.

    Raises:
        ConfigError: an argument is invalid.
    """

    @explained
    def __init__(
        self,
        prompts: Prompts,
        *,
        answers: int,
        groups: int,
        steps_ahead: int = 1,
        window: int | Literal["strict"] = 1,
        timeout_s: float | None = 900,
        max_attempts: int = 3,
        max_age: int | None = None,
        on_error: Literal["skip", "raise"] = "skip",
        spool: str | None = None,
    ) -> None:
        if not isinstance(prompts, Prompts):
            raise ConfigError(
                f"prompts must be Prompts, got {type_in_words(prompts)}.",
                "Pass rollouts.Prompts(source).",
                setting="prompts",
            )
        groups = whole_number("groups", groups)
        places = 1
        if not (isinstance(window, str) and window == "strict"):
            places = groups * whole_number("window", window, otherwise='or "strict"')
        one_of("on_error", on_error, ("skip", "raise"))
        self.rule = Rule(
            groups,
            whole_number("answers", answers),
            whole_number("steps_ahead", steps_ahead, least=0),
            places,
            math.inf if timeout_s is None else real_number("timeout_s", timeout_s, least=0.001),
            whole_number("max_attempts", max_attempts),
            None if max_age is None else whole_number("max_age", max_age, least=0),
        )
        self._source, self._on_error = prompts, on_error
        bound = (self.rule.groups, self.rule.answers, self.rule.steps_ahead, self.rule.window)
        self._spool = None if spool is None else Spool(spool, bound)
        self._run, self._version = uuid.uuid4().hex, 0
        self._schedule = Schedule(self.rule, uuid.uuid4().hex)
        self._prompts: dict[int, Prompt] = {}  # of groups in flight
        self._step: list[Group] = []  # groups of the step that is being handed out
        self._columns: Mapping[str, str] | None = None
        self._changed = Changes()
        self._ages: deque[int] = deque(maxlen=10_000)
        self._tokens = {"sampled": 0, "trained": 0}
        self._wait_s = 0.0
        self._failed_before = 0  # the load of a state
        self._restored = 0  # groups taken from the spool
        self._closed = False

    # ------------------------------------------------------------------ samplers

    def get(self, block: bool = True, timeout: float | None = None) -> Ticket | None:
        """Return the next prompt to be sampled, or None if all are trained or the queue is closed.

        It waits while `steps_ahead` steps are sampled and not trained and published.

        Args:
            block: see `queue.Queue.get`.
            timeout: see `queue.Queue.get`.

        Raises:
            queue.Empty: there is no ticket, if `block` is false, or until the timeout.
            StreampackError: the prompts cannot be read.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (ticket := self._next_ticket()) is None and not self._over:
                if not block or time.monotonic() >= end:
                    raise queue.Empty
                self._changed.wait(min(self._schedule.due, end))
            return ticket

    async def aget(self) -> Ticket | None:
        """Return the next prompt to be sampled; like `get`, for asyncio."""
        while True:
            with self._changed:
                if (ticket := self._next_ticket()) is not None or self._over:
                    return ticket
                change, due = self._changed.subscribe(), self._schedule.due
            await self._changed.wait_for(change, due)

    def put(self, ticket: Ticket, answer: Answer | Sequence[Answer]) -> bool:
        """Add one answer to the group of a ticket.

        Args:
            ticket: return value of `get`.
            answer: the answer; or several sequences that make up one answer, such as the branches
                of a conversation with a rewritten history.

        Returns:
            False if the ticket is no longer current, because it timed out, the trainer loaded a
            state, or the queue is closed: stop sampling this prompt.

        Raises:
            ConfigError: it is not an `Answer`, or has other fields than the answers before it.
        """
        sequences = (answer,) if isinstance(answer, Answer) else answer
        is_list = isinstance(sequences, list | tuple) and sequences
        if not is_list or not all(isinstance(each, Answer) for each in sequences):
            raise ConfigError(
                f"answer must be an Answer, got {type_in_words(answer)}.",
                "Pass rollouts.Answer(ids, loss_mask), or a list of them.",
                setting="answer",
            )
        with self._changed:
            columns = sequences[0].columns if self._columns is None else self._columns
            for each in sequences:
                check_same_columns(columns, each)
            group = None if self._closed else self._schedule.put(ticket.id, tuple(sequences))
            if group is None:
                return False
            self._columns = columns
            self._tokens["sampled"] += sum(each.num_loss_tokens for each in sequences)
            if len(group.answers) == self.rule.answers:
                self._keep(group)
                self._changed.notify()
            return True

    def reject(self, ticket: Ticket, reason: str = "") -> bool:
        """Drop the group of a ticket for good, for example because all its rewards are equal.

        Returns:
            False if the ticket is no longer current.
        """
        with self._changed:
            current = self._schedule.reject(ticket.id)
            if current:
                logger.debug("rejected: prompt %d: %s", ticket.serial, reason)
                self._changed.notify()
            return current

    def give_back(self, ticket: Ticket, reason: str = "") -> bool:
        """Return a ticket that cannot be sampled; it counts as an attempt.

        Returns:
            False if the ticket is no longer current.
        """
        with self._changed:
            failed = self._schedule.counts.failed
            group = self._schedule.give_back(ticket.id)
            if self._schedule.counts.failed > failed:
                self._report([ticket.serial], reason)
            self._changed.notify()
            return group is not None

    def close(self) -> None:
        """End the run before its last prompt, from any thread.

        Samplers get None, and the loaders of all ranks end after the current step. Call it before
        the trainer leaves its loop, and join the threads of samplers. A state has the prompts that
        are in flight.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def _over(self) -> bool:
        return self._closed or self._schedule.done

    def _keep(self, group: Group) -> None:
        """Write a finished group to the spool, if there is one."""
        if self._spool is not None:
            place = f"{self._run}/{self._schedule.incarnation}"
            self._spool.add(place, group, steps=self._schedule.freed, version=self._version)

    def _next_ticket(self) -> Ticket | None:
        schedule = self._schedule
        if self._closed:
            return None
        self._expire()
        if (serial := schedule.wanted()) is None:
            return None
        if serial not in self._prompts:
            if not self._source.has(serial):
                self._end()
                return None
            self._prompts[serial] = self._source.read(serial)
        prompt = self._prompts[serial]
        ticket = schedule.dispatch(time.monotonic())
        return Ticket(ticket, prompt.ids, prompt.fields, self.rule.answers)

    def _end(self) -> None:
        self._schedule.ended = True
        self._changed.notify()

    def _expire(self) -> None:
        schedule = self._schedule
        before = schedule.counts.given_back
        self._report(schedule.expire(time.monotonic()), f"no answer for {self.rule.timeout_s:g} s")
        if schedule.counts.given_back > before:
            self._changed.notify()

    def _report(self, serials: list[int], reason: str) -> None:
        for serial in serials:
            if self._schedule.counts.failed <= NAMED_FAILURES:
                logger.warning(
                    "failed: prompt %d after %d attempts%s; failed prompts are left out and "
                    "counted (metrics: failed)",
                    serial,
                    self.rule.max_attempts,
                    f" ({reason})" if reason else "",
                )

    # ------------------------------------------------------------------ the trainer

    def next_step(self, timeout_s: float) -> list[Group] | None:
        """Wait for the groups of the next step; the step before it is over.

        Returns:
            The groups, an empty list after the last step or if the queue is closed, or None if
            `timeout_s` have passed.

        Raises:
            WorkerError: prompts failed, with on_error="raise"; or as many in a row as are in
                flight at once.
        """
        began = time.monotonic()
        with self._changed:
            self.finish_step()
            while (groups := self._try_step()) is None:
                if time.monotonic() >= began + timeout_s:
                    break
                self._changed.wait(min(began + timeout_s, self._schedule.due))
            self._wait_s += time.monotonic() - began
            for group in groups or ():
                self._ages.append(self._schedule.steps - 1 - group.born)
                self._tokens["trained"] += sum(
                    each.num_loss_tokens for each in sequences_of(group.answers)
                )
            self._step = groups or []
            if groups is not None:
                self._changed.notify()
            return groups

    def _try_step(self) -> list[Group] | None:
        schedule = self._schedule
        if self._closed:
            return []
        self._expire()
        if schedule.reads_on and not self._source.has(schedule.next):
            self._end()
        failed = schedule.counts.failed - self._failed_before
        if (failed and self._on_error == "raise") or schedule.failed_in_a_row >= self.rule.slots:
            raise WorkerError(
                f"Samplers must answer prompts, got {schedule.failed_in_a_row} failed prompts in a "
                "row.",
                "Look at the samplers, and resume; raise timeout_s= if they need longer.",
                setting="timeout_s",
            )
        return schedule.next_step()

    def finish_step(self, index: int | None = None) -> None:
        """Count the step that was handed out as trained in states from now on.

        Args:
            index: index of the step, which has no effect if a later one was handed out; None is
                the last one.
        """
        with self._changed:
            if index not in (None, self._schedule.steps - 1):
                return
            self._step = []
            kept = {*self._schedule.in_flight()}
            self._prompts = {n: prompt for n, prompt in self._prompts.items() if n in kept}
            self._source.forget_before(min(kept, default=self._schedule.next))

    def publish(self, version: int, steps: int) -> None:
        """Free the slots of the first `steps` steps, as samplers have their weights now."""
        with self._changed:
            self._version = max(self._version, version)
            self._schedule.publish(steps)
            self._changed.notify()

    @property
    def steps(self) -> int:
        """Number of steps of the run that were handed out to the end."""
        return self._schedule.steps - bool(self._step)

    def state(self) -> dict[str, Any]:
        """Return the JSON-able state: a position and ids, without tokens."""
        with self._changed:
            schedule = self._schedule
            serials = sorted([*schedule.in_flight(), *(group.serial for group in self._step)])
            oldest = serials[0] if serials else schedule.next
            counts = schedule.counts
            state = {
                "run": self._run,
                "incarnation": schedule.incarnation,
                "steps": self.steps,
                "published": self._version,
                "next": schedule.next,
                "in_flight": [[serial, self._prompts[serial].digest] for serial in serials],
                "prompts": self._source.state(oldest),
                "counts": {**asdict(counts), "trained": counts.trained - len(self._step)},
            }
            return sealed(state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; tickets of before are no longer current.

        Raises:
            StateError: it is damaged, or of other prompts.
        """
        check_state(state)
        with self._changed:
            self._source.load_state(state["prompts"])
            prompts = {serial: self._source.read(serial) for serial, _ in state["in_flight"]}
            for serial, digest in state["in_flight"]:
                if prompts[serial].digest != digest:
                    raise StateError(
                        f"Prompt {serial} has other ids than when the state was saved.",
                        "Resume with the same data and code, or start a new run.",
                    )
            self._prompts, self._step = prompts, []
            self._run, self._version = state["run"], state["published"]
            self._schedule = Schedule(
                self.rule,
                uuid.uuid4().hex,
                steps=state["steps"],
                next=state["next"],
                in_flight=prompts,
            )
            self._schedule.counts = Counts(**state["counts"])
            self._failed_before = self._schedule.counts.failed
            self._take_back(state)
            self._changed.notify()

    def _take_back(self, state: Mapping[str, Any]) -> None:
        """Take finished groups of the state's run from the spool."""
        if self._spool is None:
            return
        place, serials = f"{self._run}/{state['incarnation']}", {*self._prompts}
        groups = self._spool.take_back(place, serials, steps=state["steps"], version=self._version)
        for serial, born, answers in groups:
            self._columns = sequences_of(answers)[0].columns
            self._keep(self._schedule.restore(serial, answers, born))
            self._restored += 1

    def saved(self, state: Mapping[str, Any]) -> None:
        """Drop the spooled groups that runs resumed from this or a later state do not need."""
        check_state(state)
        if self._spool is not None:
            place = f"{state['run']}/{state['incarnation']}"
            serials = {serial for serial, _ in state["in_flight"]}
            self._spool.keep(state["run"], place, serials, state["next"])

    def export(self, meter: Meter) -> None:
        """Add the metrics to a Meter of OpenTelemetry, as gauges ``streampack.rollouts.NAME``."""
        export(self.metrics, meter)

    def metrics(self) -> RolloutMetrics:
        """Return counts of this run and ages of its recent groups."""
        with self._changed:
            return counted(
                self._schedule,
                ages=self._ages,
                sampled_tokens=self._tokens["sampled"],
                trained_tokens=self._tokens["trained"],
                restored=self._restored,
                wait_s=self._wait_s,
            )
