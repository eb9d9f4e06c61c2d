"""FieldStore: the token fields and document fields of the documents in a window.

They stay in the blocks that documents came in, and each document is looked up by its running number
when its pieces go into a batch. So a window without fields does nothing here, and a block lives as
long as one of its documents is in the window.

Cost: some microseconds of Python per document, and per piece that goes into a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents, Fields
from streampack.fields import FieldTypes

__all__ = ["FieldStore"]


class FieldStore:
    """Fields of documents by their running numbers in the lane."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Documents, int]] = {}

    def add(self, documents: Documents, first: int, serials: Iterable[int]) -> None:
        """Hold the fields of documents from `first` on, with these running numbers."""
        fields = documents.token_fields or documents.document_fields
        if not fields and documents.members is None:
            return
        for i, serial in enumerate(serials, start=first):
            self._places[int(serial)] = (documents, i)

    def keep(self, serials: NDArray[np.int64]) -> None:
        """Forget all documents but these."""
        if self._places:
            held = self._places
            self._places = {serial: held[serial] for serial in serials.tolist() if serial in held}

    def groups(self, serials: NDArray[np.int64]) -> list[Documents]:
        """The documents of each of these groups (D,)."""
        found = []
        for serial in serials.tolist():
            block, i = self._places[serial]
            assert block.members is not None
            low, high = block.members.offsets[i : i + 2].tolist()
            found.append(block.members.documents[low:high])
        return found

    def fields_of(
        self,
        serials: NDArray[np.int64],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        places: NDArray[np.int64],
        slots: int,
        types: FieldTypes,
    ) -> tuple[Fields, Fields]:
        """The token fields (slots,) and document fields (D,) of a batch of D document pieces.

        Args:
            serials: (D,) running numbers of their documents.
            starts, sizes: (D,) which of the document's tokens they hold.
            places: (D,) where they begin in the batch; what is outside of them gets 0.
            slots: of the batch.
            types: of the run.
        """
        found = [self._places[serial] for serial in serials.tolist()]
        pieces = list(zip(found, starts.tolist(), sizes.tolist(), places.tolist(), strict=True))
        token: dict[str, NDArray[Any]] = {}
        for name, dtype in types.token.items():
            out = token[name] = np.zeros(slots, dtype=dtype)
            for (block, i), start, size, place in pieces:
                begin = int(block.offsets[i]) + start
                out[place : place + size] = block.token_fields[name][begin : begin + size]
        return token, {
            name: np.array([block.document_fields[name][i] for block, i in found], dtype=dtype)
            for name, dtype in types.document.items()
        }
