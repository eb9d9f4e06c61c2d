"""Run a command once undisturbed and then disturbed, and compare."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from streampack.drill.command import Command, write_hook
from streampack.drill.compare import compare, compare_rows, same_batches
from streampack.drill.disturbances import Disturbance, Draws
from streampack.drill.kinds import Fault
from streampack.drill.observed import Life, line_of, lives_of, saves_of
from streampack.drill.processes import Event, Start, run
from streampack.drill.report import DrillReport, Reference, Trial
from streampack.errors import ConfigError

#: A run hangs after this many times the reference's longest silence, and not before `LEAST_S`.
SILENCES, LEAST_S = 4, 30.0
#: Without `steps` the reference ends when as many saves are done, and as many steps as between two.
SAVES = 3


@dataclass
class Drill:
    """The drills of one command.

    Attributes:
        command: the command.
        workdir: folder for checkpoints, observations and outputs.
        steps: steps to compare; None for the steps of three saves and some after them.
        limit_s: seconds after which no further drill begins.
        seed: seed of the moments.
        only: names of the disturbances to try; empty for all.
        tell: called with a line about each run.
    """

    command: Command
    workdir: Path
    steps: int | None = None
    limit_s: float = 300.0
    seed: int = 0
    only: Sequence[str] = ()
    tell: Callable[[str], None] = lambda _: None

    def run(self) -> DrillReport:
        """Run all drills that fit in the time.

        Raises:
            ConfigError: the command fails undisturbed, or shows no steps or no saves.
        """
        began = time.monotonic()
        self.hook = write_hook(self.workdir / "hook")
        self.tell("undisturbed run")
        start = run(
            self.command,
            self.workdir / "reference" / "0",
            hook=self.hook,
            is_enough=self._is_enough,
        )
        lives, self.saves = lives_of(start.events), saves_of(start.events)
        self._check(start, lives)
        self.life, self.start = lives[0], start
        if start.is_stopped:
            self._cut(self.life)
        times = [start.began_s, *(float(event["time"]) for event in start.events), start.ended_s]
        times.sort()
        silence = max(later - earlier for earlier, later in pairwise(times))
        self.patience_s = max(LEAST_S, SILENCES * silence)
        draws = Draws(self.life, self.saves, start.events, self.command.ranks, self.seed)
        if not draws.counts:
            raise ConfigError(
                f"The command must save at least two steps before its end, but saves after step "
                f"{', '.join(map(str, sorted(self.saves)))} of {len(self.life)}.",
                "Save more often in the drilled command.",
                setting="command",
            )
        shutil.rmtree(self.workdir / "reference" / "checkpoints")
        self.after_whole_saves: set[str] = set()  # kinds of faults
        trials, untried = [], {}
        for number, disturbance in enumerate(draws.all(), start=1):
            seconds = time.monotonic() - began
            if self.only and disturbance.name not in self.only:
                continue
            if disturbance.missing:
                untried[disturbance.name] = disturbance.missing
            elif seconds + 2 * (start.ended_s - start.began_s) > self.limit_s:
                untried[disturbance.name] = "no time left; raise --minutes"
            else:
                self.tell(disturbance.description)
                trials.append(
                    self._try(disturbance, f"{number}-{disturbance.name.replace(' ', '-')}")
                )
        reference = Reference.of(
            self.life, sorted(self.saves), start, line_of(start.events, "write")
        )
        return DrillReport(reference, tuple(trials), untried, time.monotonic() - began)

    # ------------------------------------------------------------------------ the undisturbed run

    def _is_enough(self, start: Start) -> bool:
        """Return True when the undisturbed run has done the steps to compare."""
        if not start.events or start.events[-1]["event"] not in ("optimizer", "step", "loader"):
            return False
        steps = self.steps
        if steps is None:
            counts = sorted(saves_of(start.events))
            if len(counts) < SAVES:
                return False
            steps = 2 * counts[SAVES - 1] - counts[SAVES - 2]
        return _have_done(start, steps + 1)

    def _check(self, start: Start, lives: list[Life]) -> None:
        if not any(event["event"] == "started" for event in start.events):
            raise ConfigError(
                "The command must start Python with the variable PYTHONPATH, but no Python process "
                "loaded the drill's hook.",
                "Run Python without -I and -E, on this machine and outside containers.",
                setting="command",
            )
        if start.code and not start.is_stopped:
            raise ConfigError(
                f"The command must run by itself, but ended with {start.code}: {start.output()}.",
                f"Run it with an empty folder of checkpoints; its output is in {start.folder}.",
                setting="command",
            )
        if not lives or not lives[0]:
            raise ConfigError(
                "The command must train with an optimizer of torch, but no step of one was seen.",
                "Drill a command that trains in processes of its own, on this machine.",
                setting="command",
            )
        if not self.saves:
            raise ConfigError(
                f"The command must save into {self.command.checkpoints}, but wrote no file there "
                f"in {len(lives[0])} steps.",
                "Let it save every few steps, into the folder that --checkpoints names.",
                setting="checkpoints",
            )

    def _cut(self, life: Life) -> None:
        """Leave out steps that only some ranks had done when the run was ended."""
        for rank, steps in life.ranks.items():
            life.ranks[rank] = steps[: len(life)]
        self.saves = {count: events for count, events in self.saves.items() if count < len(life)}

    # -------------------------------------------------------------------------------- a drill

    def _try(self, disturbance: Disturbance, name: str) -> Trial:
        folder = self.workdir / name
        first = run(
            self.command, folder / "0", hook=self.hook, moment=disturbance.moment,
            act=disturbance.act, is_enough=self._reaches(0), patience_s=self.patience_s,
        )  # fmt: skip
        lives = lives_of(first.events)
        trial = Trial(disturbance.name, disturbance.description, log=str(first.folder))
        if first.reached_s is None and disturbance.action != "none":
            trial.note = "the moment did not come again in a second run"
            trial.faults = [Fault("not-reproducible")] * (
                not lives or not same_batches(self.life, lives[0])
            )
            return trial
        if not lives or not lives[0]:
            trial.faults = [Fault("not-reproducible", "it fails in a second run")]
            return trial
        trial.stopped_at = len(lives[0])
        if first.hung:
            trial.faults.append(Fault("hangs", f"no step in {self.patience_s:.0f} s"))
        if not same_batches(self.life, lives[0]):
            trial.faults.append(Fault("not-reproducible"))
            return trial
        saved = _last_save(first, whole=not disturbance.is_in_save)
        ended = first.is_stopped or (first.code == 0 and len(lives[-1]) >= len(self.life))
        if len(lives) == 1 and not (ended and disturbance.action in ("none", "pause", "worker")):
            if disturbance.tears:
                _tear(folder / "checkpoints", first)
            self._restart(disturbance, trial, folder, first, lives[0], saved)
        else:  # it went on by itself
            trial.note = "went on by itself"
            self._judge(
                disturbance, trial, first, lives[0], lives[-1], saved, restarted=len(lives) > 1
            )
        if not trial.faults:
            shutil.rmtree(folder / "checkpoints")
        return trial

    def _restart(
        self,
        disturbance: Disturbance,
        trial: Trial,
        folder: Path,
        first: Start,
        before: Life,
        saved: int,
    ) -> None:
        """Restart the command, and compare."""
        command = self.command
        if disturbance.ranks is not None:
            command = command.with_ranks(disturbance.ranks)
        again = run(
            command, folder / "1", hook=self.hook, restart=True,
            is_enough=self._reaches(saved), patience_s=self.patience_s,
        )  # fmt: skip
        trial.log = str(again.folder)
        lives = lives_of(again.events)
        if lives and lives[-1]:
            self._judge(disturbance, trial, again, before, lives[-1], saved)
            trial.lost_s = _lost_s(first, again, before, lives[-1], trial)
        elif again.code == 0 and saved >= len(self.life):
            trial.note = "had ended"
        elif again.hung:
            trial.faults.append(Fault("hangs", "after the restart"))
        elif again.code and disturbance.tears:
            trial.note = f"refuses the torn file: {again.output()}"
        elif again.code and disturbance.ranks is not None:
            trial.note = f"refuses {disturbance.ranks} ranks: {again.output()}"
        else:
            detail = again.output() if again.code else "it ended without a step"
            trial.faults.append(Fault("cannot-continue", detail))

    def _judge(
        self, disturbance: Disturbance, trial: Trial, start: Start, before: Life, after: Life,
        saved: int, restarted: bool = True,
    ) -> None:  # fmt: skip
        if not restarted:
            trial.continued_from = trial.stopped_at
            trial.is_same = same_batches(self.life, after)
            trial.faults += [Fault("batches-differ")] * (not trial.is_same)
            return
        workers = max(
            (len(_workers(start.events, pid)) for pid in {e["pid"] for e in start.events}),
            default=0,
        )
        if disturbance.ranks is not None and len(after.ranks) != len(before.ranks):
            trial.continued_from = saved
            trial.faults += compare_rows(self.life, after, saved)
            trial.is_same = not trial.faults
            return
        compared = compare(self.life, before, after, saved=saved, workers=workers)
        trial.continued_from, trial.loss_difference = compared.first, compared.loss_difference
        trial.is_same = same_batches(self.life, after, compared.first)
        faults = list(compared.faults)
        if not disturbance.is_in_save and not disturbance.tears:
            self.after_whole_saves |= {fault.kind for fault in faults}
        elif new := [fault.kind for fault in faults if fault.kind not in self.after_whole_saves]:
            faults = [Fault("torn-checkpoint-taken", ", ".join(new)), *faults]
        ended = not self.start.is_stopped and start.code == 0
        if ended and compared.first + len(after) != len(self.life):
            faults.append(
                Fault("ends-elsewhere", f"{compared.first + len(after)}, not {len(self.life)}")
            )
        if start.hung:
            faults.append(Fault("hangs", "after the restart"))
        elif start.code and not start.is_stopped:
            faults.append(Fault("fails-later", start.output()))
        trial.faults += faults
        trial.line = {
            place: line_of([*self.start.events, *start.events], place)
            for place in ("write", "read")
        }

    def _reaches(self, began: int) -> Callable[[Start], bool]:
        """Return a test whether a run has done all steps that are compared."""
        if not self.start.is_stopped:
            return lambda _: False  # it ends by itself
        return lambda start: _have_done(start, len(self.life) - began)


def _have_done(start: Start, steps: int) -> bool:
    life = (lives_of(start.events) or [Life()])[-1]
    return len(life) >= steps


def _workers(events: list[Event], pid: int) -> list[Event]:
    return [event for event in events if event["event"] == "worker" and event["parent"] == pid]


def _last_save(start: Start, whole: bool) -> int:
    """Return the number of steps before the last save, or before the last one that is whole."""
    reached = [event["count"] for event in start.events if event["event"] == "reached"]
    counts = sorted(saves_of(start.events))
    if not whole:
        counts = [count for count in counts if not reached or count < min(reached)]
    return counts[-1] if counts else 0


def _tear(folder: Path, start: Start) -> None:
    """Cut the largest file of the newest save in half."""
    saves = saves_of(start.events)
    written = {Path(event["path"]).name for event in saves[max(saves)] if "path" in event}
    files = [path for path in folder.rglob("*") if path.is_file()]
    newest = max(path.stat().st_mtime for path in files if path.name in written)
    torn = max(
        (path for path in files if path.name in written and path.stat().st_mtime > newest - 1),
        key=lambda path: path.stat().st_size,
    )
    os.truncate(torn, torn.stat().st_size // 2)


def _lost_s(first: Start, again: Start, before: Life, after: Life, trial: Trial) -> float | None:
    """Return the seconds from the stop until the restarted run has done the same steps."""
    redone = len(before) - (trial.continued_from or 0)
    if first.reached_s is None or len(after) < max(redone, 1):
        return None
    return min(steps[max(redone, 1) - 1].time for steps in after.ranks.values()) - first.reached_s
