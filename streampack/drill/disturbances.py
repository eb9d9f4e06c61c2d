"""Disturbances of a run: the moments for them, drawn from an undisturbed run."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from streampack.drill.child.store import LATE_S, OUTAGE_S, RETRY_AFTER_S
from streampack.drill.observed import Life
from streampack.drill.processes import Event, Start, send

PAUSE_S = 1.0
#: Faults of a store: the name of the disturbance, and a description.
FAILING = {
    "refuse": ("store", f"the store refuses requests for {OUTAGE_S:g} s"),
    "throttle": (
        "throttled store",
        f"the store answers 429 and 503 for {OUTAGE_S:g} s, Retry-After: {RETRY_AFTER_S}",
    ),
    "delay": ("slow store", f"answers of the store are {LATE_S:g} s late for {OUTAGE_S:g} s"),
}


@dataclass(frozen=True)
class Disturbance:
    """One way to disturb a run.

    Attributes:
        name: short name.
        description: moment and action in words.
        moment: moment as in `streampack.drill.child`; empty if it cannot be tried.
        action: "kill" all, "terminate" all, kill one "rank" or a "worker", "pause" all, or "none";
            or let the store "refuse", "throttle" or "delay" requests.
        tears: True if the newest file is cut in half before the restart.
        ranks: ranks of the restart; None for as many as before.
        missing: the reason why it cannot be tried.
    """

    name: str
    description: str
    moment: dict[str, Any]
    action: str = "kill"
    tears: bool = False
    ranks: int | None = None
    missing: str = ""

    @property
    def is_in_save(self) -> bool:
        """True if the newest checkpoint is not whole when the run stops."""
        return self.moment.get("where") in ("save", "opened", "files", "rename", "full")

    @property
    def is_of_store(self) -> bool:
        """True if requests for data fail, and the command shall go on."""
        return self.action in FAILING

    def act(self, start: Start, waiting: int) -> None:
        """Disturb a run in which a process waits at the moment."""
        if self.action == "kill":
            start.signal(signal.SIGKILL)
        elif self.action == "terminate":
            start.signal(signal.SIGTERM)
        elif self.action == "rank":
            send(waiting, signal.SIGKILL)
        elif self.action == "worker":
            living = set(start.members())
            for worker in [pid for pid in workers_of(start.events, waiting) if pid in living][:1]:
                send(worker, signal.SIGKILL)
        elif self.is_of_store:
            (start.folder / "outage").write_text(self.action)
        elif self.action == "pause":
            try:
                start.signal(signal.SIGSTOP)
                time.sleep(PAUSE_S)
            finally:
                start.signal(signal.SIGCONT)


def workers_of(events: Sequence[Event], pid: int | None = None) -> list[int]:
    """Return the worker processes of a process, or of all that train."""
    parents = {event["pid"] for event in events if event["event"] == "step"}
    parents = parents if pid is None else {pid}
    return [e["pid"] for e in events if e["event"] == "worker" and e["parent"] in parents]


class Draws:
    """Draws the disturbances of an undisturbed run.

    Args:
        reference: the undisturbed run.
        saves: observations of each save, by the number of steps before it.
        events: all observations.
        ranks: ranks that torchrun started; None if another program did.
        seed: seed of the draws.
    """

    def __init__(
        self,
        reference: Life,
        saves: dict[int, list[Event]],
        events: Sequence[Event],
        ranks: int | None,
        seed: int,
    ) -> None:
        self.steps, self.saves, self.ranks = len(reference), saves, ranks
        #: Observations of saves at which the drill can act: in processes that train.
        self.places = {
            count: [event for event in saves[count] if event["count"] == count] for count in saves
        }
        self.events = events
        self.of_ranks = sorted(reference.ranks)
        self.random = random.Random(seed)
        #: Saves with a step to stop in and a step to compare after them.
        self.counts = [count for count in sorted(saves) if count + 2 <= self.steps]

    def all(self) -> Iterator[Disturbance]:
        """Yield the disturbances, the most telling ones first."""
        first, last = self.counts[0], self.counts[-1]
        later = self.counts[1] if len(self.counts) > 1 else first
        middle = self.random.choice(self.counts)
        yield Disturbance("kill", "killed in a step", self._step(first))
        yield self._in_save(later)
        yield self._before_commit(later)
        yield Disturbance(
            "terminate", "terminated (SIGTERM) in a step", self._step(last), "terminate"
        )
        yield Disturbance("torn", "killed, and the newest file torn", self._step(later), tears=True)
        writes = any(event["event"] == "write" for event in self.places[later])
        missing = "" if writes else "no file is written in its place"
        moment = {"where": "full", "count": later}
        yield Disturbance("full disk", "disk full in a save", moment, "none", missing=missing)
        yield self._one_rank(middle)
        yield self._worker(middle)
        yield self._loader(last)
        yield Disturbance(
            "pause", f"paused for {PAUSE_S:g} s (SIGSTOP)", self._step(first), "pause"
        )
        yield from self._store(first)
        if self.ranks is not None and self.ranks > 1:
            for name, ranks in (("fewer ranks", self.ranks // 2), ("more ranks", 2 * self.ranks)):
                described = f"killed, and continued on {ranks} ranks"
                yield Disturbance(name, described, self._step(first), ranks=ranks)

    def _step(self, count: int) -> dict[str, Any]:
        """Draw a step after a save and before the next one."""
        following = [other for other in self.saves if other > count]
        most = min([*following, self.steps]) - 1
        return {"where": "step", "count": self.random.randint(min(count + 1, most), most)}

    def _in_save(self, count: int) -> Disturbance:
        name, described = "save", "killed in a save, a file half written"
        writes = [event for event in self.places[count] if event["event"] == "write"]
        if not writes:
            return Disturbance(name, described, {}, missing="no file is written in its place")
        saved = {
            (event["rank"], event["nth"])
            for event in self.places[count]
            if event["event"] == "saved"
        }
        places = [(event["rank"], event["nth"]) for event in writes]
        place = next((each for each in places if each in saved), places[0])
        where = "save" if place in saved else "opened"
        return Disturbance(name, described, _moment(where, count, place))

    def _before_commit(self, count: int) -> Disturbance:
        name, described = "commit", "killed before the last file of a save"
        renames = [event for event in self.places[count] if event["event"] == "rename"]
        writes = [
            event for event in self.places[count] if event["event"] == "write" and event["nth"]
        ]
        if renames:
            place = (renames[-1]["rank"], renames[-1]["nth"])
            described = "killed before the last rename of a save"
            return Disturbance(name, described, _moment("rename", count, place))
        if writes:
            place = (writes[-1]["rank"], writes[-1]["nth"])
            return Disturbance(name, described, _moment("files", count, place))
        return Disturbance(name, described, {}, missing="a save is one file, without a rename")

    def _one_rank(self, count: int) -> Disturbance:
        name, described = "rank", "one rank killed in a step"
        if len(self.of_ranks) == 1:
            return Disturbance(name, described, {}, missing="the command has one rank")
        rank = self.of_ranks[-1]
        moment = {**self._step(count), "rank": rank}
        return Disturbance(name, f"rank {rank} alone killed", moment, "rank")

    def _worker(self, count: int) -> Disturbance:
        name, described = "worker", "a worker of the loader killed"
        if not workers_of(self.events):
            return Disturbance(name, described, {}, missing="the loader has no workers")
        return Disturbance(name, described, {**self._step(count), "rank": 0}, "worker")

    def _loader(self, count: int) -> Disturbance:
        counts = {event["count"] for event in self.events if event["event"] == "loader"}
        after = sorted(number for number in counts if count < number < self.steps)
        described, moment = "killed while the loader makes a batch", {"where": "loader"}
        if not after:  # no DataLoader of torch, or a batch made while the model computes
            described, after = (
                "killed between the loader and the step",
                [self._step(count)["count"]],
            )
            moment = {"where": "batch"}
        return Disturbance("loader", described, {**moment, "count": after[0]})

    def _store(self, count: int) -> Iterator[Disturbance]:
        counts = [event["count"] for event in self.events if event["event"] == "request"]
        # Workers, which began with the run, count no steps.
        missing = "" if any(n > count or not n for n in counts) else "no data come by HTTP requests"
        for action, (name, described) in FAILING.items():
            yield Disturbance(name, described, self._step(count), action, missing=missing)


def _moment(where: str, count: int, place: tuple[int, int]) -> dict[str, Any]:
    return {"where": where, "count": count, "rank": place[0], "nth": place[1]}
