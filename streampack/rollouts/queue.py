"""Queue: hands prompts to samplers, takes their answers, and gives the trainer whole steps."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, one_of, real_number, type_in_words, whole_number
from streampack.errors import ConfigError, StateError, WorkerError
from streampack.rollouts.answer import Answer, check_same_columns
from streampack.rollouts.metrics import RolloutMetrics, counted
from streampack.rollouts.prompts import Prompt, Prompts
from streampack.rollouts.schedule import Counts, Group, Rule, Schedule, TicketId
from streampack.run.state import checksum

logger = logging.getLogger(__name__)

VERSION = 1  # of states
_FIELDS = {
    "rollouts",
    "checksum",
    "run",
    "incarnation",
    "steps",
    "published",
    "next",
    "in_flight",
    "prompts",
    "counts",
}
NAMED_FAILURES = 10  # prompts that are logged one by one


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A prompt to be sampled.

    Attributes:
        id: identity of this dispatch.
        prompt: (T,) int64 token ids.
        fields: declared fields of the prompt by name, such as the right answer.
        answers: number of answers that the group needs.
    """

    id: TicketId
    prompt: NDArray[np.int64]
    fields: Mapping[str, Any]
    answers: int

    @property
    def serial(self) -> int:
        """Index of the prompt in the stream of prompts."""
        return self.id.serial

    @property
    def attempt(self) -> int:
        """1 for the first dispatch since the start or the last load."""
        return self.id.attempt


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
        self._run, self._version = uuid.uuid4().hex, 0
        self._schedule = Schedule(self.rule, uuid.uuid4().hex)
        self._prompts: dict[int, Prompt] = {}  # of groups in flight
        self._step: list[Group] = []  # groups of the step that is being handed out
        self._columns: Mapping[str, str] | None = None
        self._changed = threading.Condition()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._ages: deque[int] = deque(maxlen=10_000)
        self._tokens = {"sampled": 0, "trained": 0}
        self._wait_s = 0.0
        self._failed_before = 0  # the load of a state

    # ------------------------------------------------------------------ samplers

    def get(self, block: bool = True, timeout: float | None = None) -> Ticket | None:
        """Return the next prompt to be sampled, or None if every prompt has been trained.

        It waits while `steps_ahead` steps are sampled and not trained and published.

        Args:
            block, timeout: as for `queue.Queue.get`.

        Raises:
            queue.Empty: there is no ticket, if `block` is false, or until the timeout.
            StreampackError: the prompts cannot be read.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (ticket := self._next_ticket()) is None and not self._schedule.done:
                left_s = min(self._schedule.due, end) - time.monotonic()
                if not block or time.monotonic() >= end:
                    raise queue.Empty
                self._changed.wait(None if left_s == math.inf else max(left_s, 0))
            return ticket

    async def aget(self) -> Ticket | None:
        """Return the next prompt to be sampled; like `get`, for asyncio."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if (ticket := self._next_ticket()) is not None or self._schedule.done:
                    return ticket
                waiting = loop, loop.create_future()
                self._waiting.add(waiting)
                left_s = self._schedule.due - time.monotonic()
            try:
                await asyncio.wait({waiting[1]}, timeout=None if left_s == math.inf else left_s)
            finally:
                with self._changed:
                    self._waiting.discard(waiting)

    def put(self, ticket: Ticket, answer: Answer) -> bool:
        """Add one answer to the group of a ticket.

        Returns:
            False if the ticket is no longer current, because it timed out or the trainer loaded a
            state: another sampler has the prompt, so stop sampling this one.

        Raises:
            ConfigError: it is not an `Answer`, or has other fields than the answers before it.
        """
        if not isinstance(answer, Answer):
            raise ConfigError(
                f"answer must be an Answer, got {type_in_words(answer)}.",
                "Pass rollouts.Answer(ids, loss_mask).",
                setting="answer",
            )
        with self._changed:
            if self._columns is not None:
                check_same_columns(self._columns, answer)
            group = self._schedule.put(ticket.id, answer)
            if group is None:
                return False
            self._columns = answer.columns
            self._tokens["sampled"] += answer.num_loss_tokens
            if len(group.answers) == self.rule.answers:
                self._notify()
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
                self._notify()
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
            self._notify()
            return group is not None

    def _next_ticket(self) -> Ticket | None:
        schedule = self._schedule
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
        self._notify()

    def _expire(self) -> None:
        schedule = self._schedule
        before = schedule.counts.given_back
        self._report(schedule.expire(time.monotonic()), f"no answer for {self.rule.timeout_s:g} s")
        if schedule.counts.given_back > before:
            self._notify()

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

    def _notify(self) -> None:
        self._changed.notify_all()
        for loop, future in self._waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_wake, future)
        self._waiting.clear()

    # ------------------------------------------------------------------ the trainer

    def next_step(self, timeout_s: float) -> list[Group] | None:
        """Wait for the groups of the next step; the step before it is over.

        Returns:
            The groups, an empty list after the last step, or None if `timeout_s` have passed.

        Raises:
            WorkerError: prompts failed, with on_error="raise"; or as many in a row as are in
                flight at once.
        """
        began = time.monotonic()
        with self._changed:
            self.finish_step()
            while (groups := self._try_step()) is None:
                now = time.monotonic()
                left_s = min(began + timeout_s, self._schedule.due) - now
                if now >= began + timeout_s:
                    break
                self._changed.wait(max(left_s, 0))
            self._wait_s += time.monotonic() - began
            for group in groups or ():
                self._ages.append(self._schedule.steps - 1 - group.born)
                self._tokens["trained"] += sum(each.num_loss_tokens for each in group.answers)
            self._step = groups or []
            if groups is not None:
                self._notify()
            return groups

    def _try_step(self) -> list[Group] | None:
        schedule = self._schedule
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

    def finish_step(self) -> None:
        """Count the step that was handed out as trained in states from now on."""
        with self._changed:
            self._step = []
            kept = {*self._schedule.in_flight()}
            self._prompts = {n: prompt for n, prompt in self._prompts.items() if n in kept}
            self._source.forget_before(min(kept, default=self._schedule.next))

    def publish(self, version: int, steps: int) -> None:
        """Free the slots of the first `steps` steps, as samplers have their weights now."""
        with self._changed:
            self._version = max(self._version, version)
            self._schedule.publish(steps)
            self._notify()

    @property
    def steps(self) -> int:
        """Number of steps of the run that were handed out to the end."""
        return self._schedule.steps - bool(self._step)

    @property
    def starved(self) -> bool:
        """True if the next step needs slots of steps that are not published yet."""
        return self._schedule.starved

    def state(self) -> dict[str, Any]:
        """Return the JSON-able state: a position and ids, without tokens."""
        with self._changed:
            schedule = self._schedule
            serials = sorted([*schedule.in_flight(), *(group.serial for group in self._step)])
            oldest = serials[0] if serials else schedule.next
            counts = schedule.counts
            state = {
                "rollouts": VERSION,
                "run": self._run,
                "incarnation": schedule.incarnation,
                "steps": self.steps,
                "published": self._version,
                "next": schedule.next,
                "in_flight": [[serial, self._prompts[serial].digest] for serial in serials],
                "prompts": self._source.state(oldest),
                "counts": {**asdict(counts), "trained": counts.trained - len(self._step)},
            }
            return {**state, "checksum": checksum(state)}

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
            self._notify()

    def metrics(self) -> RolloutMetrics:
        """Return counts of this run and ages of its recent groups."""
        with self._changed:
            return counted(
                self._schedule,
                ages=self._ages,
                sampled_tokens=self._tokens["sampled"],
                trained_tokens=self._tokens["trained"],
                wait_s=self._wait_s,
            )


def check_state(state: Mapping[str, Any]) -> None:
    """Raise `StateError` unless this version saved the state and it is unchanged since."""
    if not isinstance(state, Mapping) or _FIELDS - {*state}:
        raise StateError(
            f"The state must be one of rollouts, got {type_in_words(state)}.",
            "Pass the return value of `state_dict()` on rank 0.",
        )
    if state["rollouts"] != VERSION:
        raise StateError(
            f"The state has version {state['rollouts']}, this streampack reads version {VERSION}.",
            "Resume with the version of streampack that saved the state, or start a new run.",
        )
    if checksum(state) != state["checksum"]:
        raise StateError(
            "The state does not match its checksum.",
            "Pass the return value of `state_dict()`, unchanged.",
        )


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
