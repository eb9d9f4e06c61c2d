"""Steps and saves of one life of a run, from the observations of its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from streampack.drill.processes import Event


@dataclass
class Step:
    """A step of one rank.

    Attributes:
        batches: digest of each batch that the model received.
        rows: digest of each row of them.
        losses: loss of each backward pass.
        states: digest of each generator's state before the first forward pass.
        used: generators that the forward and backward passes drew from.
        drawn: generators that were drawn from since the step before, as by a loader.
        scale: scale of a gradient scaler.
        weights: digest of the weights before the optimizers' step.
        optimizer: digest of the optimizers' states before it; None if they are empty.
        rates: learning rates of all groups of parameters.
    """

    batches: tuple[str, ...]
    rows: tuple[str, ...]
    losses: tuple[float, ...]
    states: dict[str, str]
    used: tuple[str, ...]
    drawn: tuple[str, ...]
    scale: float | None
    time: float
    weights: tuple[str, ...] = ()
    optimizer: tuple[str, ...] | None = ()
    rates: tuple[float, ...] = ()


@dataclass
class Life:
    """A run from one start of its processes to their end: the steps of each rank.

    A command that restarts its ranks itself, such as torchrun, has several.
    """

    ranks: dict[int, list[Step]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of steps that all ranks have done."""
        return min(map(len, self.ranks.values()), default=0)

    def __bool__(self) -> bool:
        return len(self) > 0

    def rows(self, first: int = 0, end: int | None = None) -> list[str]:
        """Return the rows of all ranks in the order of steps."""
        steps = zip_longest(*(self.ranks[rank][first:end] for rank in sorted(self.ranks)))
        return [row for each in steps for step in each if step is not None for row in step.rows]


def lives_of(events: Iterable[Event]) -> list[Life]:
    """Return the lives of the training processes in a start, in order of time."""
    by_process: dict[int, list[Step]] = defaultdict(list)
    ranks: dict[int, int] = {}
    for event in events:
        steps = by_process[event["pid"]]
        if event["event"] == "step":
            ranks[event["pid"]] = event["rank"]
            names = ("batches", "rows", "losses", "used", "drawn")
            steps.append(
                Step(
                    **{name: tuple(event[name]) for name in names},
                    states=event["random"],
                    scale=event["scale"],
                    time=event["time"],
                )
            )
        elif event["event"] == "optimizer" and steps:
            step = steps[-1]
            step.weights += (event["weights"],)
            step.rates += tuple(event["rates"])
            if event["state"] is None and step.optimizer == ():
                step.optimizer = None
            elif event["state"] is not None:
                step.optimizer = (*(step.optimizer or ()), event["state"])
    lives: list[Life] = []
    number: dict[int, int] = defaultdict(int)
    for pid, rank in ranks.items():
        if number[rank] == len(lives):
            lives.append(Life())
        lives[number[rank]].ranks[rank] = by_process[pid]
        number[rank] += 1
    return lives


def saves_of(events: Sequence[Event]) -> dict[int, list[Event]]:
    """Return the observations of each save, by the number of steps before it."""
    saves: dict[int, list[Event]] = defaultdict(list)
    trained = {event["pid"] for event in events if event["event"] == "step"}
    count = 0  # steps of any rank, for saves of processes that do not train
    for event in events:
        if event["event"] == "step":
            count = event["count"] + 1
        elif event["event"] in ("write", "rename", "saved"):
            steps = event["count"] if event["pid"] in trained else count
            if steps:
                saves[steps].append(event)
    return dict(saves)


def line_of(events: Sequence[Event], kind: str) -> str:
    """Return the program's line that writes or reads a checkpoint, as ``file:line: code``."""
    lines = [event["line"] for event in events if event["event"] == kind and event["line"]]
    return max(lines, key=lines.count, default="")
