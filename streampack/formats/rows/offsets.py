"""Positions of rows on the weight of their file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of

_FEW_PARTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Offsets:
    """Positions of a file's row groups and rows on its weight, as if a group's rows were equal.

    Attributes:
        rows: (G + 1,) int64, rows before each group.
        weights: (G + 1,) int64, weight before each group.
        sizes: (G,) int64, bytes of each group.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[Any], weight: int) -> Offsets:
        """Divide the file's weight among its row groups, in proportion to their bytes.

        The groups have `num_rows` and `total_byte_size`.
        """
        kept = [(group.num_rows, max(group.total_byte_size, 1)) for group in groups]
        before, total = [0], max(sum(size for _, size in kept), 1)
        for _, size in kept:
            before.append(before[-1] + size)
        weights = np.array([weight * size // total for size in before], dtype=np.int64)
        if not kept:
            weights[-1] = weight
        sizes = np.array([group.total_byte_size for group in groups], dtype=np.int64)
        return cls(offsets_of(np.array([rows for rows, _ in kept], dtype=np.int64)), weights, sizes)

    def groups(self, start: int, stop: int) -> list[int]:
        """Return the indices of the groups with rows in [start, stop)."""
        some = (self.rows[:-1] < stop) & (self.rows[1:] > start)
        return [int(number) for number in np.flatnonzero(some)]

    def shares(self, groups: Sequence[int], start: int, stop: int) -> dict[int, float]:
        """Return the part of each group, from its beginning, that is decoded for [start, stop)."""
        shares = {}
        for number in groups:
            first, end = int(self.rows[number]), int(self.rows[number + 1])
            is_whole = self.is_divided(number, start, stop)
            shares[number] = 1.0 if is_whole else (min(stop, end) - first) / max(end - first, 1)
        return shares

    def is_divided(self, number: int, start: int, stop: int) -> bool:
        """Return True if `start` is inside a group that is decoded whole, for all who read it.

        If parts are as large as the rows [start, stop), it has many of them. Of fewer, each decodes
        the rows before it, which takes less time and no room in the cache.
        """
        first, end = int(self.rows[number]), int(self.rows[number + 1])
        return first < start and _FEW_PARTS * (stop - start) < end - first

    def row(self, at: int) -> int:
        """Return the first row that begins at a position of the weight or after it."""
        if at <= 0 or len(self.rows) == 1:
            return 0
        group = int(np.searchsorted(self.weights, at, side="right")) - 1
        row, inside = int(self.rows[group]), at - int(self.weights[group])
        if inside == 0 or group == len(self.rows) - 1:
            return row
        weight = int(self.weights[group + 1] - self.weights[group])
        return row - -inside * (int(self.rows[group + 1]) - row) // weight

    def reached(self, row: int, high: int) -> int:
        """Return the position at which a row begins; `high` for the end of a part up to there."""
        if row == self.row(high):
            return high
        group = max(int(np.searchsorted(self.rows, row, side="left")) - 1, 0)
        rows = max(int(self.rows[group + 1] - self.rows[group]), 1)
        weight = int(self.weights[group + 1] - self.weights[group])
        return int(self.weights[group]) + weight * (row - int(self.rows[group])) // rows
