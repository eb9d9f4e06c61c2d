"""ReportExchange: what the lanes of a run report for each deal, as far as this process knows it.

What a lane reports follows from the run alone, so whoever writes an entry, and however often, it is
the same. Lanes of one process exchange reports in memory, those of several worker processes in a
file that each of them maps.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.deals.rule import Report
from streampack.errors import WorkerError

#: How the names of shared files begin.
PREFIX = "streampack-reports-"

#: Stands for an entry of which a lane no longer knows more than that the deal gave nothing.
NOTHING = np.int64(1) << 62

#: What a lane reports that has ended: it needs no more, and says nothing of how dense the line is.
ENDED = Report(until=0, ahead=(1 << 40) - 1, found=0)


class ReportExchange(ABC):
    """Entries of every lane for every deal: a `Report` of each line, as numbers.

    They are stored plus one, so 0 is an entry that is not known, and cut to their first 24 bits, so
    that ranks can exchange them as float32.

    Args:
        lanes: of the run; lines: of its rule.
    """

    def __init__(self, lanes: int, lines: int) -> None:
        self.lanes = lanes
        self.lines = lines

    def close(self, *, remove: bool = False) -> None:  # noqa: B027
        """Give back what it holds; with `remove`, for the other processes too."""

    @abstractmethod
    def entries(self, deal: int) -> NDArray[np.int64]:
        """(lanes, lines, 3) entries of one deal, to be read or written."""

    def put(self, deal: int, lane: int, line: int, report: Report) -> None:
        """What a lane reports of a line for a deal."""
        self.entries(deal)[lane, line] = [_short(number + 1) for number in report]

    def end(self, lane: int, deal: int) -> None:
        """A lane has ended, and reports for no deal from this one on."""
        self.entries(0)[lane] = deal  # nobody reports for the first deal, so there is room

    def load(self, lane: int, reports: Sequence[Sequence[int]], last: int) -> None:
        """What the saved state of a lane says it has reported, up to deal `last`.

        What it leaves out gave nothing.

        Args:
            lane: its number.
            reports: numbers of a deal and of a line, each pair followed by a `Report`.
            last: number of a deal.
        """
        known = set()
        for number, line, *report in reports:
            self.put(number, lane, line, Report(*report))
            known.add((number, line))
        for number in range(1, last + 1):
            for line in range(self.lines):
                if (number, line) not in known:
                    self.entries(number)[lane, line] = NOTHING

    def merge(self, deal: int, entries: NDArray[np.int64]) -> None:
        """Take over (lanes, lines, 3) entries of another rank for a deal."""
        own = self.entries(deal)
        np.maximum(own, entries, out=own)

    def row(self, deal: int) -> list[NDArray[np.int64] | None]:
        """(3, lanes) of every line, a `Report` of each lane; None where the deal gave nothing.

        Waits until all lanes have reported.
        """
        while not _is_whole(entries := self.filled(deal)):
            self.wait(deal)
        return [
            None if gave_nothing else entries[:, line].T - 1
            for line, gave_nothing in enumerate(_gave_nothing(entries))
        ]

    def filled(self, deal: int) -> NDArray[np.int64]:
        """A copy of the entries of a deal, those of lanes that had ended before it filled in."""
        entries, ends = self.entries(deal).copy(), self.entries(0)[:, 0, 0]
        entries[(ends > 0) & (ends <= deal)] = np.array(ENDED) + 1
        return entries

    def missing(self, deal: int) -> list[int]:
        """Lanes whose entries of a deal are not known."""
        found: list[int] = np.flatnonzero((self.filled(deal) == 0).any(axis=(1, 2))).tolist()
        return found

    def needed(self, deal: int) -> list[int]:
        """Of these, those without which the deal cannot be made."""
        return [] if _is_whole(self.filled(deal)) else self.missing(deal)

    def wait(self, deal: int) -> None:
        """Wait a while for entries of a deal; raises where nobody can give them."""
        missing = self.missing(deal)[:10]
        raise AssertionError(f"deal {deal} is needed before lanes {missing} have reported")


class MemoryExchange(ReportExchange):
    """That of one process."""

    def __init__(self, lanes: int, lines: int) -> None:
        super().__init__(lanes, lines)
        self._rows: dict[int, NDArray[np.int64]] = {}

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `ReportExchange`."""
        found = self._rows.get(deal)
        if found is None:
            found = self._rows[deal] = np.zeros((self.lanes, self.lines, 3), dtype=np.int64)
        return found


class SharedExchange(ReportExchange):
    """That of several processes of one machine: a file without holes filled, mapped by each.

    All of them hold a lock on it. Files that nobody holds are those of jobs that were killed, and
    are removed.

    Args:
        lanes: of the run; lines: of its rule.
        name: of the file, the same in all processes and in no other run.
        kept: True if a process that outlives the others removes the name when it closes its own.
            Otherwise it is removed as soon as an entry of every lane is there: each of them comes
            from the process that runs the lane, so then all have the file open.
    """

    ROWS = 256  # mapped at a time

    def __init__(self, lanes: int, lines: int, name: str, *, kept: bool = False) -> None:
        super().__init__(lanes, lines)
        self._path = Path(tempfile.gettempdir()) / f"{PREFIX}{name}"
        self._file: int | None = None
        self._maps: dict[int, NDArray[np.int64]] = {}
        self._removes = not kept
        self._parent = os.getppid()

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `ReportExchange`."""
        part, row = divmod(deal, self.ROWS)
        found = self._maps.get(part)
        if found is None:
            found = self._maps[part] = self._mapped(part)
        entries: NDArray[np.int64] = found[row]
        return entries

    def row(self, deal: int) -> list[NDArray[np.int64] | None]:
        """See `ReportExchange`."""
        found = super().row(deal)
        if self._removes and not self.missing(deal):
            self._path.unlink(missing_ok=True)
            self._removes = False
        return found

    def wait(self, deal: int) -> None:
        """Wait a millisecond."""
        if os.getppid() != self._parent:
            raise WorkerError("The loop's process has ended.", "Look for what ended it.")
        time.sleep(0.001)

    def _mapped(self, part: int) -> NDArray[np.int64]:
        page = mmap.ALLOCATIONGRANULARITY
        count = self.ROWS * self.lanes * self.lines * 3
        size = (count * 8 // page + 1) * page  # its last byte is no entry's
        if self._file is None:
            remove_left_files()
            self._file = _open_held(self._path)
        os.pwrite(self._file, b"\0", (part + 1) * size - 1)  # it only ever grows, to whole parts
        mapped = mmap.mmap(self._file, size, offset=part * size)
        whole = np.frombuffer(mapped, dtype=np.int64)[:count]
        return whole.reshape(self.ROWS, self.lanes, self.lines, 3)

    def close(self, *, remove: bool = False) -> None:
        """Close the file; remove its name where nobody else does, or if that is asked for."""
        if self._removes or remove:
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None


def remove_left_files() -> None:
    """Remove the files that no process holds any more."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # held, another user's, or removed by another process
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _open_held(path: Path) -> int:
    """The file, locked; it has its name only once its maker holds it."""
    while True:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            return file
        own = path.with_name(f"{path.name}.{os.getpid()}")
        file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            os.link(own, path)
        except OSError:  # another process was first
            os.close(file)
        else:
            return file
        finally:
            own.unlink(missing_ok=True)


def _short(number: int) -> int:
    """A number with zeros after its first 24 bits."""
    zeros = max(number.bit_length() - 24, 0)
    return number >> zeros << zeros


def _gave_nothing(entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(lines,) whether some lane knows that the deal gave nothing of a line."""
    nothing: NDArray[np.bool_] = (entries[:, :, 0] == NOTHING).any(axis=0)
    return nothing


def _is_whole(entries: NDArray[np.int64]) -> bool:
    """Whether everything that is to be known of a deal is in its entries (lanes, lines, 3)."""
    return bool(((entries > 0).all(axis=(0, 2)) | _gave_nothing(entries)).all())
