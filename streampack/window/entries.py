"""Entries: the documents a window holds, as columns of coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import ORIGIN

#: Rows of `Entries.numbers`.
SERIAL, START, HELD, LENGTH, ARRIVED, REPEATED, CUT = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The N documents in a window, in arrival order; arrays that are never written to.

    For example a window that holds eight tokens: the last one of a document of five, whose others
    went in round 0; a document of three; and the first four of one of nine tokens.

    >>> entries = Entries.of(
    ...     serial=np.array([0, 1, 2]),
    ...     start=np.array([4, 0, 0]),
    ...     held=np.array([1, 3, 4]),
    ...     length=np.array([5, 3, 9]),
    ...     arrived=np.array([0, 1, 1]),
    ...     repeated=np.array([0, 0, 0]),
    ...     cut=np.array([0, 0, 0]),
    ...     origin=np.zeros(3, dtype=ORIGIN),
    ... )
    >>> int(entries.held.sum())
    8
    >>> (entries.length - entries.start - entries.held).tolist()  # tokens still to be read
    [0, 0, 5]

    Attributes:
        numbers: (7, N) int64, the columns below, in this order.
        origin: (N,) of dtype `ORIGIN`.
    """

    numbers: NDArray[np.int64]
    origin: NDArray[np.void]

    @classmethod
    def of(
        cls,
        *,
        serial: NDArray[np.int64],
        start: NDArray[np.int64],
        held: NDArray[np.int64],
        length: NDArray[np.int64],
        arrived: NDArray[np.int64],
        repeated: NDArray[np.int64],
        cut: NDArray[np.int64],
        origin: NDArray[np.void],
    ) -> Entries:
        """From single columns, each (N,)."""
        return cls(np.stack([serial, start, held, length, arrived, repeated, cut]), origin)

    @classmethod
    def empty(cls) -> Entries:
        """No documents."""
        return cls(np.zeros((7, 0), dtype=np.int64), np.zeros(0, dtype=ORIGIN))

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def serial(self) -> NDArray[np.int64]:
        """(N,) int64, running number of the document in its lane."""
        return self._column(SERIAL)

    @property
    def start(self) -> NDArray[np.int64]:
        """(N,) int64, the first token of the document that is held; those before it went."""
        return self._column(START)

    @property
    def held(self) -> NDArray[np.int64]:
        """(N,) int64, tokens of it from `start` on that the window holds."""
        return self._column(HELD)

    @property
    def length(self) -> NDArray[np.int64]:
        """(N,) int64, tokens of the document up to where the entry ends."""
        return self._column(LENGTH)

    @property
    def arrived(self) -> NDArray[np.int64]:
        """(N,) int64, round in which it came (of a partly held one: was last continued)."""
        return self._column(ARRIVED)

    @property
    def repeated(self) -> NDArray[np.int64]:
        """(N,) int64, tokens from `start` on that were delivered and that the next row repeats."""
        return self._column(REPEATED)

    @property
    def cut(self) -> NDArray[np.int64]:
        """(N,) int64, tokens of the document after `length`.

        They were delivered before those of the entry. That happens only where a run went on with
        other settings. A document may then have several entries, in order.
        """
        return self._column(CUT)

    def _column(self, number: int) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.numbers[number]
        return column

    def changed(self, **columns: NDArray[np.int64]) -> Entries:
        """The same entries with these columns, each (N,) int64, by name."""
        names = ("serial", "start", "held", "length", "arrived", "repeated", "cut")
        numbers = self.numbers.copy()
        for name, column in columns.items():
            numbers[names.index(name)] = column
        return Entries(numbers, self.origin)

    def pick(self, index: Any) -> Entries:
        """The entries at `index` (anything that numpy takes as an index)."""
        return Entries(self.numbers[:, index], self.origin[index])

    def digest(self) -> str:
        """64 bits, in hexadecimal, over what the window holds, the same on any machine."""
        value = _digest(
            self.origin["source"], self.origin["shard"], self.origin["index"], self.length,
            self.start, self.held, self.arrived, self.repeated, self.cut,
        )  # fmt: skip
        return f"{int(value):016x}"


@kernel
def _digest(
    source: NDArray[np.int32],
    shard: NDArray[np.int32],
    index: NDArray[np.int64],
    length: NDArray[np.int64],
    start: NDArray[np.int64],
    held: NDArray[np.int64],
    arrived: NDArray[np.int64],
    repeated: NDArray[np.int64],
    cut: NDArray[np.int64],
) -> np.uint64:
    """The sum of every entry's hash with its place: splitmix64 over a sum with odd factors."""
    total = np.uint64(len(index))
    for i in range(len(index)):
        z = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(source[i]) * np.uint64(0xC2B2AE3D27D4EB4F)
        z += np.uint64(shard[i]) * np.uint64(0x165667B19E3779F9)
        z += np.uint64(index[i]) * np.uint64(0xD6E8FEB86659FD93)
        z += np.uint64(length[i]) * np.uint64(0xA0761D6478BD642F)
        z += np.uint64(start[i]) * np.uint64(0xE7037ED1A0B428DB)
        z += np.uint64(held[i]) * np.uint64(0x8EBC6AF09C88C6E3)
        z += np.uint64(arrived[i]) * np.uint64(0x589965CC75374CC3)
        z += np.uint64(repeated[i]) * np.uint64(0x1D8E4E27C47D124F)
        z += np.uint64(cut[i]) * np.uint64(0xEB44ACCAB455D165)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += z ^ (z >> np.uint64(31))
    return total
