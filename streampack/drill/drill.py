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
from streampack.drill.disturbances import Disturbance, Draws, workers_of
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
        self.began = time.monotonic()
        self.hook = write_hook(self.workdir / "hook")
        self.tell("undisturbed run")
        start = self.start = run(
            self.command,
            self.workdir / "reference" / "0",
            hook=self.hook,
            is_enough=self._is_enough,
            patience_s=self.limit_s,
        )
        lives, self.saves = lives_of(start.events), saves_of(start.events)
        self._check(lives)
        self.life = lives[0]
        if start.is_stopped:
            self._cut()
        self.draws = Draws(self.life, self.saves, start.events, self.command.ranks, self.seed)
        if not self.draws.counts:
            raise ConfigError(
                f"The command must save at least two steps before its end, but saves after step "
                f"{', '.join(map(str, sorted(self.saves)))} of {len(self.life)}.",
                "Save more often in the drilled command.",
                setting="command",
            )
        times = [start.began_s, *(float(event["time"]) for event in start.events), start.ended_s]
        silence = max(later - earlier for earlier, later in pairwise(sorted(times)))
        self.patience_s = max(LEAST_S, SILENCES * silence)
        shutil.rmtree(self.workdir / "reference" / "checkpoints")
        trials, untried = self._all()
        if not trials:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in untried.items())
            raise ConfigError(
                f"A disturbance must be tried, and none could be: {reasons}.",
                "Give more --minutes, or other names to --only.",
                setting="only",
            )
        line = line_of(start.events, "write")
        reference = Reference.of(self.life, sorted(self.saves), start, line)
        return DrillReport(reference, tuple(trials), untried, time.monotonic() - self.began)

    def _all(self) -> tuple[list[Trial], dict[str, str]]:
        """Try all disturbances that fit in the time; return the others with the reasons."""
        self.after_whole_saves: set[str] = set()  # kinds of faults
        trials: list[Trial] = []
        untried: dict[str, str] = {}
        least_s = 2 * (self.start.ended_s - self.start.began_s)
        drawn = list(self.draws.all())
        if unknown := set(self.only).difference(each.name for each in drawn):
            raise ConfigError(
                f"--only must name a disturbance, got {', '.join(sorted(unknown))}.",
                f"Choose from: {', '.join(each.name for each in drawn)}.",
                setting="only",
            )
        for number, disturbance in enumerate(drawn, start=1):
            name = disturbance.name
            if self.only and name not in self.only:
                continue
            if disturbance.missing:
                untried[name] = disturbance.missing
            elif any(fault.kind == "not-reproducible" for each in trials for fault in each.faults):
                untried[name] = "two undisturbed runs differ"
            elif time.monotonic() - self.began + least_s > self.limit_s:
                untried[name] = "no time left; raise --minutes"
            else:
                self.tell(disturbance.description)
                trials.append(self._try(disturbance, f"{number}-{name.replace(' ', '-')}"))
        return trials, untried

    # ------------------------------------------------------------------------ the undisturbed run

    def _is_enough(self, start: Start) -> bool:
        """Return True when the undisturbed run has done the steps to compare, or takes too long."""
        steps = self.steps
        if time.monotonic() - self.began > self.limit_s:
            return True
        if steps is None:
            counts = sorted(start.save_counts)
            if len(counts) < SAVES:
                return False
            steps = 2 * counts[SAVES - 1] - counts[SAVES - 2]
        return start.steps > steps  # a save after the last one is whole then

    def _check(self, lives: list[Life]) -> None:
        start = self.start
        if not any(event["event"] == "started" for event in start.events):
            raise ConfigError(
                "The command must start Python with the variable PYTHONPATH, but no Python process "
                "loaded the drill's hook.",
                "Run Python without -I and -E, on this machine and outside containers.",
                setting="command",
            )
        if start.hung:
            raise ConfigError(
                f"The command must train within --minutes, but showed nothing for {self.limit_s:g} "
                f"s: {start.output()}.",
                f"Its output is in {start.folder}. Drill a small model, or give more --minutes.",
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

    def _cut(self) -> None:
        """Leave out steps that only some ranks had done when the run was ended."""
        steps = min(len(self.life), self.steps or len(self.life) - 1)
        for rank in self.life.ranks:
            del self.life.ranks[rank][steps:]
        self.saves = {count: events for count, events in self.saves.items() if count <= steps}

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
        failed = sum(event["event"] == "failed" for event in first.events)
        if disturbance.is_of_store and not failed:
            trial.note = "no request was sent after the moment"
        if not same_batches(self.life, lives[0]):
            detail = f"{failed} requests failed or were late" if failed else ""
            kind = "data-left-out" if failed else "not-reproducible"
            trial.faults.append(Fault(kind, detail))
            return trial
        saved = _last_save(first, whole=not disturbance.is_in_save)
        if first.is_stopped or (first.code == 0 and len(lives[-1]) >= len(self.life)):
            trial.note = trial.note or "went on by itself"
            trial.continued_from = trial.stopped_at
            trial.is_same = same_batches(self.life, lives[-1])
            trial.faults += [Fault("batches-differ")] * (not trial.is_same)
        elif len(lives) > 1:
            trial.note = "restarted by itself"
            self._judge(disturbance, trial, first, lives[0], lives[-1], saved)
        else:
            if disturbance.tears:
                _tear(folder / "checkpoints", first)
            self._restart(disturbance, trial, folder, first, lives[0], saved)
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
            trial.lost_s = _lost_s(first, before, lives[-1], trial)
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
        saved: int,
    ) -> None:  # fmt: skip
        workers = len(workers_of(start.events)) // len(after.ranks)
        if disturbance.ranks is not None and len(after.ranks) != len(before.ranks):
            trial.continued_from = saved
            trial.faults += compare_rows(self.life, after, saved)
            trial.is_same = not trial.faults
            return
        compared = compare(self.life, before, after, saved=saved, workers=workers)
        trial.continued_from, trial.loss_difference = compared.first, compared.loss_difference
        trial.is_same = same_batches(self.life, after, compared.first)
        faults = list(compared.faults)
        if disturbance.tears and compared.first == 0 and not _has_older(self.saves):
            trial.note, faults = "begins anew, since no other checkpoint is kept", []
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
        return lambda start: start.steps >= len(self.life) - began


def _last_save(start: Start, whole: bool) -> int:
    """Return the number of steps before the last save, or before the last one that is whole."""
    reached = [event["count"] for event in start.events if event["event"] == "reached"]
    counts = sorted(saves_of(start.events))
    if not whole:
        counts = [count for count in counts if not reached or count < min(reached)]
    return counts[-1] if counts else 0


def _has_older(saves: dict[int, list[Event]]) -> bool:
    """Return True if saves have names of their own, so that an older one is kept."""
    names = [{event["path"] for event in events if "path" in event} for events in saves.values()]
    return len(names) > 1 and names[0] != names[1]


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


def _lost_s(first: Start, before: Life, after: Life, trial: Trial) -> float | None:
    """Return the seconds from the stop until the restarted run has done the same steps."""
    redone = len(before) - (trial.continued_from or 0)
    if len(after) < max(redone, 1):
        return None
    done = min(steps[max(redone, 1) - 1].time for steps in after.ranks.values())
    return done - (first.reached_s or first.ended_s)
