"""The training job as its parent sees it: started, watched, killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.train import Job
from streampack.errors import WorkerError

__all__ = ["Story", "train_with_accidents"]


@dataclass
class Story:
    """Events of the training.

    Attributes:
        digests: per step, the digests of its batch, one for each time the step was taken.
        losses: per step, likewise.
        tokens: with loss, per step.
        worker_error: the error that the loop raised when one of its workers had been killed.
        killed_at, resumed_at: steps at which the whole job was killed, and from which it went on.
        composition: counts over the batches since then.
        workers: process ids of the loader's workers, as last logged.
    """

    digests: dict[int, list[str]] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    worker_error: str = ""
    killed_at: int = 0
    resumed_at: int = 0
    composition: dict[str, int] = field(default_factory=dict)
    workers: list[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The furthest step."""
        return max(self.digests, default=0)


def train_with_accidents(
    job: Job, report: Callable[[Story, str], None], environment: dict[str, str]
) -> Story:
    """Train to the end, killing a worker at a fifth of the way and the whole job at two thirds.

    Args:
        job: its folder must exist.
        report: called with the story so far and the name of the current activity.
        environment: of the job's process.

    Raises:
        WorkerError: the job ended before its last step without having been killed here.
    """
    story = Story()
    file = Path(job.folder) / "job.json"
    file.write_text(json.dumps(asdict(job)))
    errors = file.with_name("errors.txt")
    lines = _follow(file.with_name("log.jsonl"))
    with _started(file, environment) as process:
        _watch(process, lines, story, report, errors, lambda: story.step >= job.steps // 5)
        os.kill(story.workers[0], signal.SIGKILL)
        report(story, "a worker was killed")
        # The loop notices it after the batches that the worker had sent.
        far = 2 * job.steps // 3
        _watch(
            process, lines, story, report, errors,
            lambda: story.step >= far and bool(story.worker_error),
        )  # fmt: skip
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _take(lines, story)
        story.killed_at = story.step
    report(story, "the job was killed: starting it again")
    with _started(file, environment) as process:
        _watch(process, lines, story, report, errors, lambda: story.step >= job.steps)
        process.wait(timeout=60)
        _take(lines, story)
    return story


@contextmanager
def _started(file: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the job's process; its process group ends with the block at the latest."""
    # Threads that spin at barriers make a step ten times as long where cores are shared.
    environment = {"OMP_WAIT_POLICY": "passive", **environment}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(file.parent / "inductor")  # torch makes one anyway
    with file.with_name("errors.txt").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.train", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=environment,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _watch(
    process: subprocess.Popen[bytes],
    lines: Iterator[dict[str, Any] | None],
    story: Story,
    report: Callable[[Story, str], None],
    errors: Path,
    until: Callable[[], bool],
) -> None:
    """Follow the log until something has happened."""
    while not until():
        ended = process.poll() is not None
        before = story.step
        _take(lines, story)
        report(story, "training")
        if story.step == before:
            if ended:
                tail = errors.read_text(errors="replace").strip()[-2000:]
                raise WorkerError(
                    f"The training job ended too early, at step {story.step}:\n{tail}\n",
                    "The text above is the job's output.",
                )
            time.sleep(0.05)


def _take(lines: Iterator[dict[str, Any] | None], story: Story) -> None:
    """Put every line that is there into the story."""
    for line in lines:
        if line is None:
            return
        if "loss" in line:
            step = line["step"]
            story.digests.setdefault(step, []).append(line["digest"])
            story.losses.setdefault(step, []).append(line["loss"])
            story.tokens[step] = line["tokens"]
        elif "event" in line:
            story.worker_error = line["event"]
        elif "start" in line:
            story.resumed_at = line["start"]
        elif "workers" in line:
            story.workers = line["workers"]
        elif "finished" in line:
            story.composition = line["composition"]


def _follow(file: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the lines of a growing file, or None while no new line is complete."""
    place = 0
    rest = b""
    while True:
        if file.exists():
            with file.open("rb") as log:
                log.seek(place)
                data = log.read()
            place += len(data)
            *whole, rest = (rest + data).split(b"\n")
            yield from (json.loads(line) for line in whole)
        yield None
