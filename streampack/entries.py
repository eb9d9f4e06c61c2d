"""Entries: the documents a window holds, as columns of coordinates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import ORIGIN

__all__ = ["Entries"]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The N documents in a window, in arrival order; arrays that are never written to.

    Attributes:
        serial: (N,) int64, running number of the document in its lane.
        start: (N,) int64, its first token that is held; those before it are delivered.
        held: (N,) int64, tokens of it behind `start` that the window holds.
        length: (N,) int64, tokens of the whole document.
        arrived: (N,) int64, round in which it came (of a partly held one: was last continued).
        repeated: (N,) int64, tokens behind `start` that are delivered already, and that the row
            of its next token repeats.
        origin: (N,) of dtype `ORIGIN`.
    """

    serial: NDArray[np.int64]
    start: NDArray[np.int64]
    held: NDArray[np.int64]
    length: NDArray[np.int64]
    arrived: NDArray[np.int64]
    repeated: NDArray[np.int64]
    origin: NDArray[np.void]

    @classmethod
    def empty(cls) -> Entries:
        """No documents."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none, none, np.zeros(0, dtype=ORIGIN))

    def __len__(self) -> int:
        return len(self.serial)

    def pick(self, index: Any) -> Entries:
        """The entries `index` (anything numpy indexes with)."""
        return Entries(*(getattr(self, name)[index] for name in self.__slots__))

    @classmethod
    def join(cls, parts: Sequence[Entries]) -> Entries:
        """All of them, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__)
        )

    def digest(self) -> str:
        """64 bits over what the window holds: which documents, how far delivered, since when."""
        digest = hashlib.blake2b(digest_size=8)
        for name in ("origin", "length", "start", "held", "arrived"):
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()
