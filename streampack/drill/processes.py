"""A start of the command: its processes, their observations, and signals to them alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streampack.drill.child import SETTINGS
from streampack.drill.command import Command

ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): ")
LONGEST = 300  # characters of an error to show
TICK_S = 0.01
#: Seconds for processes to end that the first one has left behind.
LEFT_S = 5.0

Event = dict[str, Any]


@dataclass
class Start:
    """A start of the command, and its end.

    Attributes:
        folder: folder with the observations and `output.log`.
        events: observations, in order of time for each process.
        code: exit status; negative for a signal.
        reached_s: time at which a process reached the moment; None if none did.
        is_stopped: True if the drill ended it after the last step to compare.
        hung: True if the drill ended it after too long a silence.
        save_counts: numbers of steps before each save.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    events: list[Event] = field(default_factory=list)
    code: int = 0
    began_s: float = field(default_factory=time.time)
    ended_s: float = 0.0
    reached_s: float | None = None
    is_stopped: bool = False
    hung: bool = False
    save_counts: set[int] = field(default_factory=set)
    _steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def read(self) -> list[Event]:
        """Read new observations."""
        new = []
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # a killed process may have cut its last line
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            new += [{**json.loads(line), "pid": int(path.stem)} for line in whole.splitlines()]
        new.sort(key=lambda event: float(event["time"]))
        self.events += new
        for event in new:
            if event["event"] == "step":
                self._steps[event["rank"]] = (event["pid"], event["count"] + 1)
            elif event["event"] in ("write", "rename") and event["count"]:
                self.save_counts.add(event["count"])
        return new

    @property
    def steps(self) -> int:
        """Number of steps that all ranks have done since the processes were started last."""
        return min((steps for _, steps in self._steps.values()), default=0)

    def members(self) -> Iterator[int]:
        """Yield the living processes of this start, which have its variable or its session."""
        mark = json.dumps(str(self.folder)).encode()
        # Its first process is not reaped before `end`, so no other session has this number.
        session = None if self.process is None else self.process.pid
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    is_marked = mark in _behind_settings((entry / "environ").read_bytes())
                    if is_marked or (os.getsid(int(entry.name)) == session and _lives(entry)):
                        yield int(entry.name)
                except OSError:
                    continue  # it has ended, or belongs to another user

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of this start."""
        for pid in self.members():
            send(pid, number)

    def end(self) -> None:
        """Kill and continue all processes until none is alive."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        while members := list(self.members()):
            for pid in members:
                send(pid, signal.SIGKILL)
                send(pid, signal.SIGCONT)
            time.sleep(TICK_S)
        self.code = 0 if self.process is None else self.process.wait()
        self.read()
        self.ended_s = time.time()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def output(self) -> str:
        """Return the command's last line with an error, otherwise its last line."""
        text = (self.folder / "output.log").read_text(errors="replace")
        lines = [line.strip(" |") for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if ERROR.search(line) and "ChildFailedError" not in line]
        return (errors or lines or ["it printed nothing"])[-1][:LONGEST]


def _behind_settings(environment: bytes) -> bytes:
    return environment.partition(SETTINGS.encode())[2]


def _lives(entry: Path) -> bool:
    """Return False for a process that has ended and waits for its parent."""
    return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return True if a process has ended; it keeps its number until it is waited for."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def run(
    command: Command,
    folder: Path,
    *,
    hook: Path,
    restart: bool = False,
    moment: dict[str, Any] | None = None,
    act: Callable[[Start, int], None] | None = None,
    is_enough: Callable[[Start], bool] = lambda _: False,
    patience_s: float = float("inf"),
) -> Start:
    """Start the command and wait for its end; no process of it lives after the call.

    Args:
        command: the command.
        folder: folder for observations and output; the checkpoints are in ``checkpoints`` beside
            it.
        hook: folder of the `sitecustomize`.
        restart: append the arguments for a restart.
        moment: place where a process waits for `act`.
        act: called with this start and the process that waits.
        is_enough: True if the command has done all the steps that are compared.
        patience_s: seconds without an observation after which the command hangs.
    """
    folder.mkdir(parents=True)
    checkpoints = folder.parent / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    settings = {"events": str(folder), "moment": moment or {}}
    with (folder / "output.log").open("wb") as output, command.linked(checkpoints):
        start = Start(folder)
        try:
            start.process = subprocess.Popen(
                command.exchanged(checkpoints, restart=restart),
                env=command.environment(checkpoints, hook, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            _wait(start, start.process, act, is_enough, patience_s)
        finally:
            start.end()
    return start


def _wait(
    start: Start,
    process: subprocess.Popen[bytes],
    act: Callable[[Start, int], None] | None,
    is_enough: Callable[[Start], bool],
    patience_s: float,
) -> None:
    last = time.monotonic()
    while not _has_ended(process):
        new = start.read()
        if new:
            last = time.monotonic()
        for event in new:
            if event["event"] == "reached" and start.reached_s is None:
                start.reached_s = time.time()
                if act is not None:
                    act(start, event["pid"])
                (start.folder / "released").touch()
        if new and is_enough(start):
            start.is_stopped = True
            return
        if time.monotonic() - last > patience_s:
            start.hung = True
            return
        time.sleep(TICK_S)
    until = time.monotonic() + LEFT_S
    while time.monotonic() < until and any(start.members()):
        time.sleep(TICK_S)
