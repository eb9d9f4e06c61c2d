"""Board: what the lanes of a run report for each deal, as far as this process knows it.

What a lane reports follows from the run alone, so whoever writes an entry, and however often, it is
the same. Lanes of one process share a board in memory; those of several worker processes share a
file that each of them maps.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.dealing.rule import Report
from streampack.errors import StateError, WorkerError

__all__ = ["Board", "MemoryBoard", "SharedBoard"]

#: Stands for an entry of a deal of which a lane no longer knows more than that it gave nothing.
NOTHING = np.int64(1) << 62


class Board(ABC):
    """Entries of every lane for every deal: a `Report` of each line, as numbers.

    They are stored plus one, so 0 is an entry that is not known.

    Args:
        lanes: of the run; lines: of its rule.
    """

    def __init__(self, lanes: int, lines: int) -> None:
        self.lanes = lanes
        self.width = len(Report._fields) * lines
        #: Called with a deal of which entries are missing, to find some of them.
        self.find: Callable[[int], None] | None = None

    def close(self, *, remove: bool = False) -> None:  # noqa: B027
        """Give back what it holds; with `remove`, for the other processes too."""

    @abstractmethod
    def entries(self, deal: int) -> NDArray[np.int64]:
        """(lanes, 3 x lines) entries of one deal, to be read or written."""

    def put(self, deal: int, lane: int, reports: Sequence[int]) -> None:
        """What a lane reports for a deal: the numbers of one report per line."""
        entries = self.entries(deal)
        for i in reversed(range(self.width)):  # the first one last: with it, all are there
            entries[lane, i] = reports[i] + 1

    def load(self, lane: int, reports: Sequence[Sequence[int]], told: int) -> None:
        """What the saved state of a lane says it has reported, up to deal `told`.

        A deal that it leaves out gave nothing.

        Args:
            lane: its number.
            reports: numbers of deals, each followed by those of one report per line.
            told: number of a deal.

        Raises:
            StateError: it has reported of other lines.
        """
        for number, *report in reports:
            if len(report) != self.width:
                raise StateError(
                    f"Lane {lane} has reported {len(report)} numbers for deal {number}, and a deal "
                    f"of this run has {self.width}.",
                    "It is not what streampack saved.",
                    "Pass what `state_dict()` returned, unchanged.",
                )
            self.put(number, lane, report)
        known = {report[0] for report in reports}
        for number in range(1, told + 1):
            if number not in known:
                self.entries(number)[lane] = NOTHING

    def merge(self, deal: int, entries: NDArray[np.int64]) -> None:
        """Take over (lanes, 3 x lines) entries of another rank for a deal."""
        own = self.entries(deal)
        np.maximum(own, entries, out=own)

    def row(self, deal: int) -> NDArray[np.int64] | None:
        """(lines, 3, lanes): `Report` of every line and lane; None if the deal gave nothing.

        Waits until all lanes have reported.
        """
        entries = self.entries(deal)
        while not self.is_whole(deal):
            if self.find is not None:
                self.find(deal)
            if not self.is_whole(deal):
                self.wait(deal)
        if (entries[:, 0] == NOTHING).any():
            return None
        fields = len(Report._fields)
        row: NDArray[np.int64] = (entries - 1).T.reshape(self.width // fields, fields, self.lanes)
        return row

    def is_whole(self, deal: int) -> bool:
        """Whether everything that is to be known of a deal is known."""
        entries = self.entries(deal)
        return bool((entries > 0).all() or (entries[:, 0] == NOTHING).any())

    def wait(self, deal: int) -> None:
        """Wait a while for entries of a deal; raises where nobody can give them."""
        missing = np.flatnonzero((self.entries(deal) == 0).any(axis=1))
        raise AssertionError(f"deal {deal} is needed before lanes {missing[:10]} have reported")


class MemoryBoard(Board):
    """A board of this process."""

    def __init__(self, lanes: int, lines: int = 1) -> None:
        super().__init__(lanes, lines)
        self._rows: dict[int, NDArray[np.int64]] = {}

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `Board`."""
        found = self._rows.get(deal)
        if found is None:
            found = self._rows[deal] = np.zeros((self.lanes, self.width), dtype=np.int64)
        return found


class SharedBoard(Board):
    """A board of several processes of one machine: a file without holes filled, mapped by each.

    Args:
        lanes: of the run; lines: of its rule.
        name: of the file, the same in all processes and in no other run.
        kept: True if a process that outlives the others removes the name when it closes its board.
            Otherwise it is removed as soon as an entry of every lane is there: each of them comes
            from the process that runs the lane, so then all have the file open.
    """

    ROWS = 256  # mapped at a time

    def __init__(self, lanes: int, lines: int, name: str, *, kept: bool = False) -> None:
        super().__init__(lanes, lines)
        self._path = Path(tempfile.gettempdir()) / name
        self._file: int | None = None
        self._maps: dict[int, NDArray[np.int64]] = {}
        self._removes = not kept
        self._parent = os.getppid()

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `Board`."""
        part, row = divmod(deal, self.ROWS)
        found = self._maps.get(part)
        if found is None:
            found = self._maps[part] = self._mapped(part)
        entries: NDArray[np.int64] = found[row]
        return entries

    def row(self, deal: int) -> NDArray[np.int64] | None:
        """See `Board`."""
        found = super().row(deal)
        if self._removes and self.entries(deal).all():
            self._path.unlink(missing_ok=True)
            self._removes = False
        return found

    def wait(self, deal: int) -> None:
        """Wait a millisecond."""
        if os.getppid() != self._parent:
            raise WorkerError(
                "The loop's process has ended.",
                "Nobody takes the batches of this worker.",
                "Look for what ended it.",
            )
        time.sleep(0.001)

    def _mapped(self, part: int) -> NDArray[np.int64]:
        page = mmap.ALLOCATIONGRANULARITY
        count = self.ROWS * self.lanes * self.width
        size = (count * 8 // page + 1) * page  # its last byte is no entry's
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, b"\0", (part + 1) * size - 1)  # it only ever grows, to whole parts
        mapped = mmap.mmap(self._file, size, offset=part * size)
        whole = np.frombuffer(mapped, dtype=np.int64)[:count]
        return whole.reshape(self.ROWS, self.lanes, self.width)

    def close(self, *, remove: bool = False) -> None:
        """Close the file; remove its name where nobody else does, or if that is asked for."""
        if self._removes or remove:
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None
