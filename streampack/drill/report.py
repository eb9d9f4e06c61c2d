"""The results of a drill."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from streampack.drill.kinds import KINDS, Fault
from streampack.drill.observed import Life
from streampack.drill.processes import Start


@dataclass
class Trial:
    """A disturbance, and the run after it.

    Attributes:
        name: name of the disturbance.
        description: the disturbance in words.
        stopped_at: steps done when the run stopped.
        continued_from: step that the restarted run began with.
        lost_s: seconds from the stop until the restarted run had done the same steps.
        is_same: True if all batches after the restart are as in the undisturbed run; None if none
            were compared.
        loss_difference: largest relative difference of a loss.
        faults: faults.
        note: a result that is no fault.
        line: the program's lines that write and read checkpoints.
        log: folder with the output of the command.
    """

    name: str
    description: str
    stopped_at: int | None = None
    continued_from: int | None = None
    lost_s: float | None = None
    is_same: bool | None = None
    loss_difference: float | None = None
    faults: list[Fault] = field(default_factory=list)
    note: str = ""
    line: dict[str, str] = field(default_factory=dict)
    log: str = ""

    @property
    def redone(self) -> int | None:
        """Steps that were done twice."""
        if self.stopped_at is None or self.continued_from is None:
            return None
        return self.stopped_at - self.continued_from


@dataclass(frozen=True)
class Reference:
    """The undisturbed run.

    Attributes:
        steps: steps that are compared.
        ranks: number of ranks.
        saves: numbers of steps before each save.
        seconds: duration.
        ended: True if the command ended by itself.
        not_seen: parts of the state that the drill could not see.
        line: the program's line that saves.
    """

    steps: int
    ranks: int
    saves: tuple[int, ...]
    seconds: float
    ended: bool
    not_seen: tuple[str, ...]
    line: str

    @classmethod
    def of(cls, life: Life, saves: list[int], start: Start, line: str) -> Reference:
        """Summarise an undisturbed run."""
        steps = [step for each in life.ranks.values() for step in each]
        not_seen = []
        if not any(step.batches for step in steps):
            not_seen.append("batches: no module of torch is called in training")
        if not any(step.losses for step in steps):
            not_seen.append("losses: backward is not called on a tensor")
        if len({step.rates for step in steps}) < 2:
            not_seen.append("a scheduler: the learning rate is constant in these steps")
        if len({step.scale for step in steps}) < 2:
            not_seen.append("a gradient scaler: there is none, or its scale is constant")
        if not any(step.used for step in steps):
            not_seen.append("random states: the model draws no random numbers")
        seconds = start.ended_s - start.began_s
        return cls(
            len(life),
            len(life.ranks),
            tuple(saves),
            seconds,
            not start.is_stopped,
            tuple(not_seen),
            line,
        )


@dataclass(frozen=True)
class DrillReport:
    """The results of all disturbances; true without a fault.

    Attributes:
        reference: the undisturbed run.
        trials: disturbances that were tried.
        not_tried: reasons by the names of the others.
        seconds: duration of all runs.
    """

    reference: Reference
    trials: tuple[Trial, ...]
    not_tried: dict[str, str]
    seconds: float

    def __bool__(self) -> bool:
        return not any(trial.faults for trial in self.trials)

    @property
    def kinds(self) -> dict[str, list[tuple[Trial, Fault]]]:
        """Faults by kind, in the order of `KINDS`, each with the trials that show it."""
        pairs = [(trial, fault) for trial in self.trials for fault in trial.faults]
        return {
            kind: of_kind
            for kind in KINDS
            if (of_kind := [pair for pair in pairs if pair[1].kind == kind])
        }

    def line(self, kind: str) -> str:
        """Return the program's line to change for a kind of fault."""
        place = KINDS[kind].place
        for trial, _ in self.kinds[kind]:
            if trial.line.get(place):
                return trial.line[place]
        return self.reference.line if place else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        return {
            "reference": asdict(self.reference),
            "trials": [{**asdict(trial), "redone": trial.redone} for trial in self.trials],
            "not_tried": self.not_tried,
            "seconds": self.seconds,
            "faults": {
                kind: {
                    **KINDS[kind]._asdict(),
                    "detail": pairs[0][1].detail,
                    "line": self.line(kind),
                    "after": [trial.name for trial, _ in pairs],
                }
                for kind, pairs in self.kinds.items()
            },
        }
