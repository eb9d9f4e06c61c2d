"""ReportExchange: the reports of all lanes for each deal, as far as this process has them.

A lane's reports depend on the run alone, so every process that writes an entry writes the same
value. Lanes of one process exchange reports in memory, lanes of several worker processes in a file
that each of them maps (`workers.shared_exchange`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streampack.deals.rule import Report

#: Entry of a lane that remembers only that the deal gave nothing.
NOTHING = np.int64(1) << 62

#: Report of an ended lane: it needs nothing, and has no estimate of tokens per weight.
ENDED = Report(until=0, ahead=(1 << 40) - 1, found=0)


class ReportExchange(ABC):
    """Entries of every lane for every deal: a `Report` of each line, as integers.

    They are stored plus one, so that 0 marks an unknown entry, and cut to their first 24 bits, so
    that ranks can exchange them as float32.

    Args:
        lanes: number of lanes of the run; lines: number of lines of its rule.
    """

    def __init__(self, lanes: int, lines: int) -> None:
        self.lanes = lanes
        self.lines = lines

    def close(self, *, remove: bool = False) -> None:  # noqa: B027
        """Release resources; with `remove`, also the ones shared with other processes."""

    @abstractmethod
    def entries(self, deal: int) -> NDArray[np.int64]:
        """Return the entries of one deal, (lanes, lines, 3), for reading and writing."""

    def put(self, deal: int, lane: int, line: int, report: Report) -> None:
        """Store a lane's report of a line for a deal."""
        self.entries(deal)[lane, line] = [_short(number + 1) for number in report]

    def put_lines(self, deal: int, lane: int, reports: Sequence[Report]) -> None:
        """Store a lane's reports of all lines for a deal."""
        if reports:
            short = [[_short(number + 1) for number in lane_reports] for lane_reports in reports]
            self.entries(deal)[lane, : len(short)] = short

    def end(self, lane: int, deal: int) -> None:
        """Record that a lane has ended, and reports for no deal from this one on."""
        self.entries(0)[lane] = deal  # the first deal has no reports, so its entries are free

    def load(self, lane: int, reports: Sequence[Sequence[int]], last: int) -> None:
        """Load a lane's reports up to deal `last` from its saved state.

        Deals missing from the state gave nothing.

        Args:
            lane: index of the lane.
            reports: indices of a deal and a line, each pair followed by a `Report`.
            last: index of the last deal reported.
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
        """Merge the entries (lanes, lines, 3) of another rank for a deal."""
        known = self.entries(deal)
        np.maximum(known, entries, out=known)

    def row(self, deal: int) -> list[NDArray[np.int64] | None]:
        """Return per line the lanes' `Report`s as (3, lanes), or None if the deal gave nothing.

        It waits until all lanes have reported.
        """
        while not _is_whole(entries := self.filled(deal)):
            self.wait(deal)
        return [
            None if gave_nothing else entries[:, line].T - 1
            for line, gave_nothing in enumerate(_gave_nothing(entries))
        ]

    def filled(self, deal: int) -> NDArray[np.int64]:
        """Return a copy of a deal's entries, completed for lanes that had ended before it."""
        entries, ends = self.entries(deal).copy(), self.entries(0)[:, 0, 0]
        entries[(ends > 0) & (ends <= deal)] = np.array(ENDED) + 1
        return entries

    def missing(self, deal: int) -> list[int]:
        """Return the lanes without known entries for a deal."""
        lanes: list[int] = np.flatnonzero((self.filled(deal) == 0).any(axis=(1, 2))).tolist()
        return lanes

    def needed(self, deal: int) -> list[int]:
        """Return the missing lanes that block the deal."""
        return [] if _is_whole(self.filled(deal)) else self.missing(deal)

    def wait(self, deal: int) -> None:
        """Wait briefly for entries of a deal; raise if no other process can write them."""
        missing = self.missing(deal)[:10]
        raise AssertionError(f"deal {deal} is needed before lanes {missing} have reported")


class MemoryExchange(ReportExchange):
    """Exchange within one process, in memory."""

    def __init__(self, lanes: int, lines: int) -> None:
        super().__init__(lanes, lines)
        self._rows: dict[int, NDArray[np.int64]] = {}

    def entries(self, deal: int) -> NDArray[np.int64]:
        """See `ReportExchange`."""
        values = self._rows.get(deal)
        if values is None:
            values = self._rows[deal] = np.zeros((self.lanes, self.lines, 3), dtype=np.int64)
        return values


def _short(number: int) -> int:
    """Return the number with zeros after its first 24 bits."""
    zeros = number.bit_length() - 24
    return number >> zeros << zeros if zeros > 0 else number


def _gave_nothing(entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (lines,) bool: lines of which, according to some lane, the deal gave nothing."""
    nothing: NDArray[np.bool_] = (entries[:, :, 0] == NOTHING).any(axis=0)
    return nothing


def _is_whole(entries: NDArray[np.int64]) -> bool:
    """Return True if the entries of a deal (lanes, lines, 3) are complete."""
    return bool(((entries > 0).all(axis=(0, 2)) | _gave_nothing(entries)).all())
