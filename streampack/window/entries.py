"""Entries: columns that describe the documents of a window; HeldBlocks: their fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents, offsets_of
from streampack.packing.packer import Packer, fields_of
from streampack.packing.request import DocumentSizes, MemberLengths
from streampack.packing.rng import mix

#: Rows of `Entries.numbers`.
SERIAL, START, HELD, LENGTH, ARRIVED, REPEATED, CUT = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The N documents in a window, in arrival order; the arrays are never written to.

    For example a window of eight tokens: the last token of a document of five, after round 0
    delivered the other four; a document of three tokens; and the first four of a document of nine.

    >>> from streampack.documents.blocks import ORIGIN
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
        """Build entries from single columns, each (N,)."""
        return cls(np.stack([serial, start, held, length, arrived, repeated, cut]), origin)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def serial(self) -> NDArray[np.int64]:
        """(N,) int64, serial of the document, its index in the lane."""
        return self._column(SERIAL)

    @property
    def start(self) -> NDArray[np.int64]:
        """(N,) int64, index of the first held token; earlier ones were delivered."""
        return self._column(START)

    @property
    def held(self) -> NDArray[np.int64]:
        """(N,) int64, number of tokens from `start` on that the window holds."""
        return self._column(HELD)

    @property
    def length(self) -> NDArray[np.int64]:
        """(N,) int64, length of the document up to the end of the entry."""
        return self._column(LENGTH)

    @property
    def arrived(self) -> NDArray[np.int64]:
        """(N,) int64, round of arrival; for a document held in part, of its last continuation."""
        return self._column(ARRIVED)

    @property
    def repeated(self) -> NDArray[np.int64]:
        """(N,) int64, delivered tokens from `start` on that the next row repeats."""
        return self._column(REPEATED)

    @property
    def cut(self) -> NDArray[np.int64]:
        """(N,) int64, tokens of the document after `length`.

        They were delivered before the tokens of the entry, which happens only after a run continued
        with other settings. A document may then have several entries, in order.
        """
        return self._column(CUT)

    def _column(self, number: int) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.numbers[number]
        return column

    def changed(self, **columns: NDArray[np.int64]) -> Entries:
        """Return a copy with some columns replaced, each (N,) int64, by name."""
        names = ("serial", "start", "held", "length", "arrived", "repeated", "cut")
        numbers = self.numbers.copy()
        for name, column in columns.items():
            numbers[names.index(name)] = column
        return Entries(numbers, self.origin)

    def pick(self, index: Any) -> Entries:
        """Return the entries at `index` (any index that numpy accepts)."""
        return Entries(self.numbers[:, index], self.origin[index])

    def digest(self) -> str:
        """Return a 64-bit hash of all entries, in hexadecimal, the same on any machine."""
        origin = self.origin
        numbers = np.ascontiguousarray(self.numbers)  # one layout, so that one kernel is compiled
        return f"{int(_digest(origin['source'], origin['shard'], origin['index'], numbers)):016x}"


@kernel
def _digest(
    source: NDArray[np.int32],
    shard: NDArray[np.int32],
    index: NDArray[np.int64],
    numbers: NDArray[np.int64],
) -> np.uint64:
    """Sum the hashes of entries and positions: splitmix64 over a sum with odd factors."""
    length, start, held = numbers[LENGTH], numbers[START], numbers[HELD]
    arrived, repeated, cut = numbers[ARRIVED], numbers[REPEATED], numbers[CUT]
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
        total += mix(z)
    return total


def sizes_of(documents: Documents, packer: Packer) -> DocumentSizes:
    """Return the sizes that a packer uses for N documents, which have the fields of its weights."""
    return DocumentSizes(
        documents.lengths,
        {name: _weights(documents.document_fields[name]) for name in fields_of(packer)},
        lengths_of_members(documents) if packer._packs_members else None,
    )


def _weights(values: ArrayLike) -> NDArray[np.int64]:
    """Convert values of a document field to weights; a negative value counts as 0."""
    return np.maximum(np.asarray(values, dtype=np.int64), 0)


def lengths_of_members(documents: Documents) -> MemberLengths:
    """Return the member lengths of N groups; a document without a group is its only member."""
    members = documents.members
    if members is None:
        return MemberLengths.of_single(documents.lengths)
    low, high = int(members.offsets[0]), int(members.offsets[-1])
    lengths = np.diff(members.documents.offsets[low : high + 1])
    return MemberLengths(lengths, members.offsets - low)


class HeldBlocks:
    """Fields of documents, and members of groups, by the documents' serials in the lane.

    Values stay in the blocks in which documents arrived, and are looked up when a piece goes into a
    batch. So a window without fields costs nothing, and a block lives as long as one of its
    documents is in the window. Cost: some microseconds of Python per document and per piece.
    """

    def __init__(self) -> None:
        self._positions: dict[int, tuple[Documents, int]] = {}
        # Objects are stored one by one, since their blocks would keep all of them alive.
        self._objects: dict[int, dict[str, Any]] = {}

    def add(self, documents: Documents, first: int, serials: Iterable[int]) -> None:
        """Store the fields of documents from index `first` on, with these serials."""
        objects = {n: v for n, v in documents.document_fields.items() if v.dtype == object}
        if objects:
            serials = list(map(int, serials))
            for name, values in objects.items():
                for serial, each in zip(serials, values[first:].tolist(), strict=False):
                    if each:
                        self._objects.setdefault(serial, {})[name] = each
            others = {n: v for n, v in documents.document_fields.items() if n not in objects}
            documents = replace(documents, document_fields=others)
        fields = documents.token_fields or documents.document_fields
        if not fields and documents.members is None:
            return
        for i, serial in enumerate(serials, start=first):
            self._positions[int(serial)] = (documents, i)

    def keep(self, serials: NDArray[np.int64]) -> None:
        """Remove all documents but these."""
        if self._positions:
            held = self._positions
            self._positions = {s: held[s] for s in serials.tolist() if s in held}
        if self._objects:
            objects = self._objects
            self._objects = {
                serial: objects[serial] for serial in serials.tolist() if serial in objects
            }

    def positions(self, serials: NDArray[np.int64]) -> list[tuple[Documents, int]]:
        """Return the block of each document (D,) and the document's index in the block."""
        return [self._positions[serial] for serial in serials.tolist()]

    def objects(self, name: str, serials: NDArray[np.int64]) -> list[Any]:
        """Return the values (D,) of a field of objects; None for a document without a value."""
        return [self._objects.get(serial, {}).get(name) for serial in serials.tolist()]

    def sizes(self, entries: Entries, packer: Packer) -> DocumentSizes:
        """Return the sizes of these documents (N,) for the packer, with all of their tokens."""
        serials, names = entries.serial, fields_of(packer)
        positions = [self._positions[serial] for serial in serials.tolist()] if names else []
        return DocumentSizes(
            entries.length,
            {
                name: _weights([block.document_fields[name][i] for block, i in positions])
                for name in names
            },
            self.member_lengths(serials) if packer._packs_members else None,
        )

    def member_lengths(self, serials: NDArray[np.int64]) -> MemberLengths | None:
        """Return the member lengths of these groups (D,), or None if there are no groups."""
        if not self._positions:
            return None
        groups = []
        for serial in serials.tolist():
            block, i = self._positions[serial]
            groups.append(lengths_of_members(block[i : i + 1]).lengths)
        counts = np.array([len(lengths) for lengths in groups], dtype=np.int64)
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
        return MemberLengths(lengths, offsets_of(counts))
