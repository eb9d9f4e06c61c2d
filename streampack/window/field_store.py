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

from streampack.documents.blocks import Documents, Fields
from streampack.documents.fields import FieldTypes
from streampack.documents.ragged import offsets_of
from streampack.packing.request import MemberLengths


def lengths_of_members(documents: Documents) -> MemberLengths:
    """Of the groups (N,) of a block; documents that are none are alone."""
    members = documents.members
    if members is None:
        return MemberLengths.alone(documents.lengths)
    low, high = int(members.offsets[0]), int(members.offsets[-1])
    lengths = np.diff(members.documents.offsets[low : high + 1])
    return MemberLengths(lengths, members.offsets - low)


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

    def groups(
        self, serials: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> list[Documents]:
        """The documents of each of these pieces (D,) of groups.

        Args:
            serials: (D,) running numbers of the groups; starts, sizes: (D,) which of the group's
                tokens each piece holds.
        """
        found = []
        pieces = zip(serials.tolist(), starts.tolist(), sizes.tolist(), strict=True)
        for serial, start, size in pieces:
            block, i = self._places[serial]
            assert block.members is not None
            low, high = block.members.offsets[i : i + 2].tolist()
            begin, end = block.offsets[i : i + 2].tolist()
            if size < end - begin:
                ends = block.members.documents.offsets[low : high + 1] - begin
                high = low + int(np.searchsorted(ends, start + size, side="right")) - 1
                low += int(np.searchsorted(ends, start))
            found.append(block.members.documents[low:high])
        return found

    def member_lengths(self, serials: NDArray[np.int64]) -> MemberLengths | None:
        """Of the documents of these groups (D,); None if the store holds none."""
        if not self._places:
            return None
        found = []
        for serial in serials.tolist():
            block, i = self._places[serial]
            found.append(lengths_of_members(block[i : i + 1]).lengths)
        counts = np.array([len(lengths) for lengths in found], dtype=np.int64)
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *found])
        return MemberLengths(lengths, offsets_of(counts))

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
