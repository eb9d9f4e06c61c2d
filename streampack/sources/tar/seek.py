"""Where a part of an archive begins.

Headers lead only from one member to the next, and lanes that share an archive read many parts of
it. So its headers are all read once, where a part first begins inside it, and the places of some
samples are kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.sources.tar.headers import ALL, MORE, scan_tar

_STEP = 64  # samples, of which the place of one is kept
_KEPT_SHARDS = 256


class Seeker:
    """Finds samples of the archives of a source.

    Args:
        extension: of the wanted files; see `scan_tar`.
    """

    def __init__(self, extension: NDArray[np.uint8]) -> None:
        self._extension = extension
        self._marks: dict[int, NDArray[np.int64]] = {}

    def seek(
        self, shard: int, data: NDArray[np.uint8], documents: int, least: int
    ) -> tuple[int, int, int]:
        """Step over samples: so many, or until the next begins at byte `least` or later.

        Args:
            shard: number of the archive; data: (B,) all of it.

        Returns:
            How many there were, where the next one begins, and how that ended (see `scan_tar`).
        """
        marks = self._marks.get(shard)
        if marks is None:
            marks = self._walked(data)
            kept = list(self._marks.items())[1 - _KEPT_SHARDS :]
            self._marks = dict([*kept, (shard, marks)])
        mark = max(min(documents // _STEP, int(np.searchsorted(marks, least)) - 1), 0)
        passed, offset, outcome = mark * _STEP, int(marks[mark]), MORE
        while outcome == MORE and passed < documents and offset < least:
            most = min(_STEP, documents - passed)
            ends, offset, outcome = self._step(data, offset, most)
            before = int(np.searchsorted(ends, least)) + 1
            if before < len(ends):
                return passed + before, int(ends[before - 1]), MORE
            passed += len(ends)
        return passed, offset, outcome

    def _walked(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where every `_STEP`-th sample of an archive begins, from the first on."""
        found, offset, outcome = [np.zeros(1, dtype=np.int64)], 0, MORE
        while outcome == MORE:
            ends, offset, outcome = self._step(data, offset, 64 * _STEP)
            begins = ends if outcome == MORE else ends[:-1]  # no sample begins where the last ends
            found.append(begins[_STEP - 1 :: _STEP])
        return np.concatenate(found)

    def _step(
        self, data: NDArray[np.uint8], offset: int, most: int
    ) -> tuple[NDArray[np.int64], int, int]:
        """Step over so many samples at most: their ends, where the next begins, how that ended."""
        starts = np.zeros(most, dtype=np.int64)
        ends, sizes = np.zeros_like(starts), np.zeros_like(starts)
        status = np.zeros(most, dtype=np.uint8)
        n, offset, outcome = scan_tar(
            data, offset, self._extension, ALL, starts, sizes, status, ends
        )
        return ends[:n], offset, outcome
