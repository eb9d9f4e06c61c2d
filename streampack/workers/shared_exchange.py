"""SharedExchange: the reports of all lanes in a file that worker processes map."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.deals.report_exchange import ReportExchange
from streampack.errors import WorkerError

#: Prefix of the names of shared files.
PREFIX = "streampack-reports-"


class SharedExchange(ReportExchange):
    """Exchange between processes of one machine: a sparse file that each of them maps.

    Every process holds a lock on it. Files without a lock are left over from killed jobs, and are
    removed.

    Args:
        lanes: number of lanes of the run; lines: number of lines of its rule.
        name: file name, the same in all processes and unique to the run.
        kept: True if a process that outlives the others deletes the file when it closes its own.
            Otherwise the file is deleted once every lane has an entry: each entry comes from the
            process that runs the lane, so all of them have opened the file by then.
    """

    ROWS = 256  # number of entries mapped at a time

    def __init__(self, lanes: int, lines: int, name: str, *, kept: bool = False) -> None:
        super().__init__(lanes, lines)
        self._path = Path(tempfile.gettempdir()) / f"{PREFIX}{name}"
        self._file: int | None = None
        self._maps: dict[int, NDArray[np.int64]] = {}
        self._removes = not kept
        self._process, self._parent = os.getpid(), os.getppid()
        if kept:  # before workers die, since a file that no process holds is removed
            self.entries(0)

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `ReportExchange`."""
        part, row = divmod(deal, self.ROWS)
        values = self._maps.get(part)
        if values is None:
            values = self._maps[part] = self._mapped(part)
        entries: NDArray[np.int64] = values[row]
        return entries

    def row(self, deal: int) -> list[NDArray[np.int64] | None]:
        """See `ReportExchange`."""
        reports = super().row(deal)
        if self._removes and not self.missing(deal):
            self._path.unlink(missing_ok=True)
            self._removes = False
        return reports

    def wait(self, deal: int) -> None:
        """Wait a millisecond; raise `WorkerError` if the loop's process has ended."""
        if os.getppid() != self._parent:
            raise WorkerError(
                "The process of the training loop has ended.", "Look for its error or signal."
            )
        time.sleep(0.001)

    def _mapped(self, part: int) -> NDArray[np.int64]:
        page = mmap.ALLOCATIONGRANULARITY
        count = self.ROWS * self.lanes * self.lines * 3
        size = (count * 8 // page + 1) * page  # its last byte belongs to no entry
        if self._file is None:
            remove_left_files()
            self._file = _open_held(self._path)
        os.pwrite(self._file, b"\0", (part + 1) * size - 1)  # the file only grows, by whole parts
        mapped = mmap.mmap(self._file, size, offset=part * size)
        whole = np.frombuffer(mapped, dtype=np.int64)[:count]
        return whole.reshape(self.ROWS, self.lanes, self.lines, 3)

    def close(self, *, remove: bool = False) -> None:
        """Close the file; delete it if no other process does, or with `remove`."""
        if (self._removes or remove) and os.getpid() == self._process:  # not in a fork of it
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def remove_left_files() -> None:
    """Remove the files that no process holds any more."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # locked, another user's, or removed by another process
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _open_held(path: Path) -> int:
    """Open the file and lock it; its creator locks it before it gets its name."""
    while True:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            return file
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            os.link(temporary, path)
        except OSError:  # another process created it first
            os.close(file)
        else:
            return file
        finally:
            temporary.unlink(missing_ok=True)
