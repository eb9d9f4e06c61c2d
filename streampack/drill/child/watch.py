"""Observations of a process, and the moment that it waits for.

A *moment* is a place where the drill wants to act: the process reports it and waits there until it
is killed or released. ``{"where": "step", "count": 7, "rank": 1}`` is in the step after 7 steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)


class Watch:
    """Observations of one process, and the moment that it waits for.

    Attributes:
        events: folder of the observations.
        count: steps that the process has done.
        is_writing: True while a file is written that is no observation.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.events: str = settings["events"]
        self.drill: int = settings["drill"]
        self.moment: dict[str, Any] = settings["moment"]
        self.count = 0
        self.is_writing = False
        self.file = -1
        spawned = any("spawn_main" in argument for argument in sys.orig_argv)
        self.write("worker" if spawned else "started", parent=os.getppid())
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Write a file of its own in a forked process, such as a worker."""
        self.file, self.moment = -1, {}
        self.write("worker", parent=os.getppid())

    def write(self, event: str, **values: Any) -> None:
        """Append an observation, which survives if the process is killed after it."""
        if self.file < 0:
            path, self.is_writing = f"{self.events}/{os.getpid()}.jsonl", True
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.is_writing = False
        values |= {"event": event, "time": time.time(), "count": self.count}
        os.write(self.file, json.dumps(values).encode() + b"\n")

    def rank(self) -> int:
        """Rank of this training process."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)

    def wait_at(self, where: str, nth: int = 0) -> None:
        """Wait at the moment that the drill has drawn, if it is here."""
        if self.is_at(where, nth):
            self.wait()

    def is_at(self, where: str, nth: int = 0) -> bool:
        """Return True at the moment that the drill has drawn."""
        moment = self.moment
        return (
            moment.get("where") == where
            and moment["count"] == self.count
            and moment.get("nth", 0) == nth
            and moment.get("rank", self.rank()) == self.rank()
        )

    def wait(self) -> None:
        """Report the moment, and wait until the drill has acted."""
        self.moment = {}
        self.write("reached")
        while not os.path.exists(f"{self.events}/released") and os.path.exists(
            f"/proc/{self.drill}"
        ):
            time.sleep(0.005)


def line() -> str:
    """File, line and text of the program's call that saves or loads."""
    import linecache

    frame: Any = sys._getframe(1)
    library = ("site-packages", "dist-packages", sys.prefix + "/lib", sys.base_prefix + "/lib")
    while frame is not None:
        name = frame.f_code.co_filename
        is_hook = name[0] == "<" or name.startswith(HERE)
        if not is_hook and not any(part in name for part in library):
            code = linecache.getline(name, frame.f_lineno).strip()
            return f"{name.removeprefix(os.getcwd() + '/')}:{frame.f_lineno}: {code}"
        frame = frame.f_back
    return ""
