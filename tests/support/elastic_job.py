"""A job of ranks in threads that die and join at random, and the batches it trained on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streampack.elastic import ElasticLoader
from streampack.errors import RankError


class DiedError(Exception):
    """A rank died."""


class Hall:
    """The members of one membership, in threads. A death breaks it for all who wait.

    Args:
        count: number of members.
        draws: decides who still gets the answers of an exchange in which a member died.
    """

    def __init__(self, count: int, draws: random.Random) -> None:
        self.count = count
        self.is_broken = False
        self.exchanges = 0
        self._draws = draws
        self._rounds: dict[int, dict[int, bytes]] = {}
        self._changed = threading.Condition()

    def gather(self, index: int, number: int, message: bytes) -> list[bytes]:
        """Exchange messages."""
        with self._changed:
            answers = self._rounds.setdefault(number, {})
            answers[index] = message
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_broken or len(answers) == self.count, 120)
            lost = self.is_broken and self._draws.random() < 0.5
            if lost or len(answers) < self.count:
                raise RankError("A member is gone.", "Form a new membership.")
            self.exchanges = max(self.exchanges, number)
            return [answers[each] for each in range(self.count)]

    def leave(self) -> None:
        """A member dies."""
        with self._changed:
            self.is_broken = True
            self._changed.notify_all()


@dataclass
class Place:
    """One rank's place in a membership; the `members` of its loader."""

    rank: int | None
    world_size: int
    at_step: int
    hall: Hall
    index: int
    skips: bool = False
    number: int = 0
    before: Callable[[], None] = lambda: None

    def gather(self, message: bytes) -> list[bytes]:
        """See `Members`."""
        self.before()
        self.number += 1
        return self.hall.gather(self.index, self.number, message)


@dataclass
class Job:
    """Ranks that train until the run has ended.

    Args:
        make: makes the loader of a rank.
        seed: of all draws.
        start: ranks at the beginning; most: ranks at any time.
        deaths, joins: how many there may be.
        every: a rank dies in every so many moments, and asks for another as often.
        skips: fraction of broken steps that are skipped.

    Attributes:
        batches: batches with documents by their index in the run, as trained on.
        steps: indices of the batches of each step.
        pauses: seconds from each broken or changed membership to the next step of a rank.
        ended: number of steps of each rank that saw the end.
    """

    make: Callable[[], ElasticLoader[Any]]
    seed: int = 0
    start: int = 2
    most: int = 4
    deaths: int = 10
    joins: int = 10
    every: int = 30
    skips: float = 0.0
    onlookers: float = 0.0
    batches: dict[int, Any] = field(default_factory=dict)
    given: dict[int, Any] = field(default_factory=dict)
    steps: dict[int, list[int]] = field(default_factory=dict)
    skipped: list[list[int]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    changes: int = 0
    longest: int = 0

    def run(self) -> Job:
        """Run to the end; raise the first error of a rank."""
        self._draws = random.Random(self.seed)
        self._lock = threading.Condition()
        self._living: set[int] = set()
        self._waiting: dict[int, int] = {}
        self._places: dict[int, Place] = {}
        self._threads: list[threading.Thread] = []
        self._wanted = False
        self._names = 0
        with self._lock:
            for _ in range(self.start):
                self._join()
        while any(thread.is_alive() for thread in self._threads):
            for thread in list(self._threads):
                thread.join()
        if self.errors:
            raise self.errors[0]
        return self

    # ------------------------------------------------------------------ who is there

    def _join(self) -> None:
        name, self._names = self._names, self._names + 1
        self._living.add(name)
        self._wanted = True
        thread = threading.Thread(target=self._rank, args=(name,))
        self._threads.append(thread)
        thread.start()

    def _enter(self, name: int, trained: int, place: Place | None) -> Place:
        """Wait for a membership of all who live."""
        with self._lock:
            self._waiting[name] = trained
            if place is not None:
                place.hall.leave()
            self._form()
            self._lock.wait_for(lambda: name in self._places, 120)
            return self._places.pop(name)

    def _form(self) -> None:
        if not self._living or self._waiting.keys() != self._living:
            return
        names = self._draws.sample(sorted(self._living), len(self._living))
        hall = Hall(len(names), self._draws)
        looks_on = len(names) > 1 and self._draws.random() < self.onlookers
        ranks = len(names) - looks_on
        skips = self._draws.random() < self.skips
        self._places = {
            each: Place(
                index if index < ranks else None,
                ranks,
                max(self._waiting.values()),
                hall,
                index,
                skips,
            )
            for index, each in enumerate(names)
        }
        self._waiting, self._wanted = {}, False
        self.changes, self.longest = self.changes + 1, max(self.longest, len(names))
        self._lock.notify_all()

    def _may_die(self) -> None:
        with self._lock:
            if self.deaths and len(self._living) > 1 and not self._draws.randrange(self.every):
                self.deaths -= 1
                raise DiedError

    def _may_ask(self) -> bool:
        with self._lock:
            may = self.joins and len(self._living) < self.most
            if may and not self._draws.randrange(self.every):
                self.joins -= 1
                self._join()
            return self._wanted

    # ------------------------------------------------------------------ a rank

    def _rank(self, name: int) -> None:
        place: Place | None = None
        try:
            loader = self.make()
            trained, is_over = 0, False
            while not is_over:
                began = time.perf_counter()
                place = self._enter(name, trained, place)
                if place.at_step == 0 and name >= self.start:
                    loader = self.make()  # nobody is left who had trained
                self._set(loader, place)
                try:
                    for step in loader:
                        if began:  # only now is a rank that joined as far as the others
                            self.pauses.append(time.perf_counter() - began)
                            trained = place.at_step
                        trained, began = self._train(step, trained, place), 0.0
                        if place.hall.is_broken:
                            break
                    else:
                        is_over = True
                except RankError:
                    pass
            self.ended.append(trained)
        except DiedError:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._lock:
                self._living.discard(name)
                if place is not None:
                    place.hall.leave()
                self._form()

    def _set(self, loader: ElasticLoader[Any], place: Place) -> None:
        place.before = self._may_die
        loader.set_ranks(place.rank, place.world_size, place, at_step=place.at_step)

    def _train(self, step: Any, trained: int, place: Place) -> int:
        """Train a step; return the number of steps trained."""
        self._may_die()
        mine = [batch for batch in step if batch.num_documents]
        lanes = self.lanes
        numbers = [batch.step * lanes + batch.lane for batch in mine]
        self.given.update(zip(numbers, mine, strict=True))
        wants = self._may_ask()
        told = repr((len(step), numbers, wants, trained)).encode()
        answers = [eval(each) for each in place.gather(told)]
        assert len({answer[0] for answer in answers}) == 1, "ranks have other numbers of forwards"
        assert {answer[3] for answer in answers} == {trained}
        together = sorted(number for answer in answers for number in answer[1])
        with self._lock:
            assert self.steps.setdefault(trained, together) == together
            for number in together:
                self.batches[number] = self.given[number]
        if any(answer[2] for answer in answers):
            place.hall.is_broken = True
        return trained + 1

    lanes: int = 3
