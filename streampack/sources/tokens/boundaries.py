"""Where documents begin in a flat file: after an end token, or where an index says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.reading.records import DamagedFileError

_LOOKED_AT = 1 << 16  # tokens at a time


class ByEndToken:
    """Documents that end with an end token each, the last one perhaps without.

    Their positions are the tokens that they begin at.

    Args:
        tokens: (T,) of the whole file.
        eos_id: the end token.
    """

    def __init__(self, tokens: NDArray[Any], eos_id: int) -> None:
        self._tokens = tokens
        self._eos_id = eos_id
        self.end = len(tokens)

    def first(self, token: int) -> int:
        if token <= 0:
            return 0
        if token >= self.end or self._tokens[token - 1] == self._eos_id:
            return min(token, self.end)
        return int(self.ahead(token, self.end, 1, self.end)[0][1])

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        places, at, found, last = [np.array([start], dtype=np.int64)], start, 0, start
        while at < stop and not (found and (found >= most or at - start >= most_tokens)):
            part = self._tokens[at : min(at + _LOOKED_AT, stop)]
            ends = np.flatnonzero(part == self._eos_id) + (at + 1)
            places.append(ends)
            found += len(ends)
            last = int(ends[-1]) if len(ends) else last
            at += len(part)
        if at == stop and last != stop:  # the file ends without an end token
            places.append(np.array([stop], dtype=np.int64))
        tokens = np.concatenate(places)[: most + 1]
        return tokens, tokens


class ByIndex:
    """Documents whose ends an index lists, in tokens. Their positions are their numbers.

    Args:
        ends: (N,) int64, checked when they are read.
        tokens: in the file.
    """

    def __init__(self, ends: NDArray[np.int64], tokens: int) -> None:
        self._ends = ends
        self._tokens = tokens
        self.end = len(ends)

    def first(self, token: int) -> int:
        # All of a damaged file is in some part, so what is wrong with it is found.
        return min(int(np.searchsorted(self._ends, token)) + 1, self.end) if token > 0 else 0

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = np.arange(start, min(start + most, stop) + 1, dtype=np.int64)
        tokens = np.zeros(len(positions), dtype=np.int64)
        tokens[start == 0 :] = self._ends[max(start - 1, 0) : int(positions[-1])]
        if tokens[0] < 0 or tokens[-1] > self._tokens or bool((tokens[1:] < tokens[:-1]).any()):
            raise DamagedFileError(
                f"by its index documents {start} to {int(positions[-1]) - 1} do not follow one "
                "another"
            )
        return positions, tokens
