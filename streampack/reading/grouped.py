"""GroupedReader: consecutive documents with one value of a field, whole and in one block.

A group is a run of documents of one shard that have the same value. Blocks of other readers end
anywhere, and so do the parts of a line that lanes have; here

  1. the last group of a block waits for the next block, since it may go on;
  2. a part that begins inside a shard leaves out the group of its first document, whether that
     began before or not; and a part that ends inside a shard reads on through the group of the
     first document after it. So each group belongs to one part, and no part has to look back;
  3. groups are numbered, and shuffled instead of documents.

A place is where the block begins that the first waiting document came in, and how many documents of
that block went before it.

Cost: a block is copied once more; what lies after a part is read by two lanes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import GROUP, Documents, Texts, joined_fields
from streampack.documents.conversations import Conversations
from streampack.documents.ragged import ranges_of
from streampack.errors import ConfigError
from streampack.packing.rng import derive_seed, permutation
from streampack.reading.base import Block, Cursor, LaneReader, LinePart
from streampack.reading.cursor import cursor_field, damaged_cursor
from streampack.reading.skips import Skips

logger = logging.getLogger(__name__)

MOST_DOCUMENTS = 4096  # of a group
_warned: set[str] = set()  # fields of which documents with one value were seen apart

_OWN, _BEYOND, _END = range(3)  # where a place lies: in the part, after it, after everything


@dataclass(frozen=True, slots=True)
class GroupedReader(LinePart):
    """The documents of another reader, in whole groups.

    Attributes:
        reader: whose blocks are in order, of one shard after the other.
        field: the document field that the documents of a group have in common.
        shard_name: what a shard is called, by its number.
        cut: the group of the first document belongs to another reader.
        beyond: of the rest of the last shard, where the part ends inside of it.
        seed: of the order of groups in a block; None leaves them as they are.
    """

    reader: LaneReader
    field: str
    shard_name: Callable[[int], str]
    cut: bool = False
    beyond: LaneReader | None = None
    seed: int | None = None

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        stage, at, given = self._place(cursor)
        mine, held = cursor is not None or not self.cut, None
        place: tuple[int, Cursor | None, int] = (stage, at, given)
        foreign: NDArray[np.int64] | None = None
        while stage < _END:
            reader = self.reader if stage == _OWN else self.beyond
            if reader is None or (stage == _BEYOND and not mine and foreign is None):
                break  # without a document, the part owns none after it either
            last: NDArray[np.int64] | None = None  # the key of the last group, beyond
            for block, after in reader.read(at, skips):
                before, at = at, after
                part, offset, given = block[given:], given, 0
                if not len(part):
                    continue
                keys = self._keys(part)
                if not mine:
                    foreign = keys[0] if foreign is None else foreign
                    others = np.flatnonzero((keys != foreign).any(axis=1))
                    if stage == _BEYOND and (not len(others) or others[0] > 0):
                        return  # it is the foreign one that goes on
                    if not len(others):
                        continue
                    mine, first = True, int(others[0])
                    part, keys, offset = part[first:], keys[first:], offset + first
                ended = False
                if stage == _BEYOND:
                    last = keys[0] if last is None else last
                    others = np.flatnonzero((keys != last).any(axis=1))
                    ended = len(others) > 0
                    part = part[: int(others[0])] if ended else part
                waited = 0 if held is None else len(held)
                if held is None:
                    place = (stage, before, offset)
                else:
                    part = _joined(held, part)
                begins = int(run_starts(self._keys(part))[-1]) if len(part) else 0
                if begins > 0:
                    place = (stage, before, offset + begins - waited)
                    left = self._left(after) if stage == _OWN else 0
                    yield self._numbered(part[:begins]), _cursor(place, left)
                held = part[begins:]
                self._check_size(held)
                if ended:
                    break
            stage, at = stage + 1, None
        if held is not None and len(held):
            yield self._numbered(held), _cursor((_END, None, 0), 0)

    def left(self, cursor: Cursor | None) -> int:
        return self._left(None) if cursor is None else int(cursor_field(cursor, "left", int))

    def _left(self, cursor: Cursor | None) -> int:
        return self.reader.left(cursor) if isinstance(self.reader, LinePart) else 0

    def _place(self, cursor: Cursor | None) -> tuple[int, Cursor | None, int]:
        if cursor is None:
            return _OWN, None, 0
        stage, given = cursor_field(cursor, "stage", int), cursor_field(cursor, "given", int)
        if not _OWN <= stage <= _END:
            raise damaged_cursor(cursor)
        return stage, cursor_field(cursor, "at", dict, NoneType), given

    def _keys(self, block: Block) -> NDArray[np.int64]:
        """(N, 2) int64: shard and value, the same for the documents of a group."""
        values = block.document_fields.get(self.field)
        if values is None or values.dtype.kind not in "iub":
            kind = "none" if values is None else f"{values.dtype} values"
            raise ConfigError(
                f'group is "{self.field}", and records have {kind} of that name.',
                "Nothing says which documents belong together.",
                "Name a document field of whole numbers that the records have, one for each "
                "document.",
            )
        with np.errstate(over="ignore"):
            number = values.astype(np.int64)
        return np.stack([block.origin["shard"].astype(np.int64), number], axis=1)

    def _numbered(self, block: Block) -> Block:
        keys = self._keys(block)
        starts = run_starts(keys)
        self._say_apart(keys[starts])
        sizes = np.diff(starts, append=len(block))
        if self.seed is not None and len(starts) > 1:
            shard, index = int(block.origin["shard"][0]), int(block.origin["index"][0])
            groups = permutation(len(starts), derive_seed(self.seed, shard, index))
            sizes = sizes[groups]
            block = block.take(ranges_of(starts[groups], sizes))
        number = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        return replace(block, document_fields={**block.document_fields, GROUP: number})

    def _say_apart(self, keys: NDArray[np.int64]) -> None:
        """Say once if one of the keys (G, 2) of a block's groups comes again."""
        if self.field in _warned:
            return
        found, counts = np.unique(keys, axis=0, return_counts=True)
        if len(found) == len(keys):
            return
        _warned.add(self.field)
        shard, value = found[counts > 1][0].tolist()
        logger.warning(
            'In %s documents that have %d as "%s" lie apart, with others between: only neighbours '
            'are a group, so each of their runs is one. Sort the records by "%s" if they belong '
            "together.",
            self.shard_name(shard),
            value,
            self.field,
            self.field,
        )

    def _check_size(self, held: Block) -> None:
        if len(held) > MOST_DOCUMENTS:
            value = held.document_fields[self.field][0]
            raise ConfigError(
                f'More than {MOST_DOCUMENTS:,} documents in a row have {value} as "{self.field}".',
                "A group is held in memory and packed whole.",
                "Name a field that says which few documents belong together.",
            )


def run_starts(keys: NDArray[Any]) -> NDArray[np.int64]:
    """(G,) int64: where among keys (N,) or (N, K) another one begins; N > 0."""
    differ = keys[1:] != keys[:-1]
    changes = differ.any(axis=1) if differ.ndim == 2 else differ
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _cursor(place: tuple[int, Cursor | None, int], left: int) -> Cursor:
    stage, at, given = place
    return {"stage": stage, "at": at, "given": given, "left": left}


def _joined(first: Block, second: Block) -> Block:
    """Documents of one reader, one block after the other."""
    if isinstance(first, Documents) and isinstance(second, Documents):
        return Documents.joined([first, second])
    origin = np.concatenate([first.origin, second.origin])
    fields = joined_fields([first.document_fields, second.document_fields])
    if isinstance(first, Texts) and isinstance(second, Texts):
        return Texts([*first.texts, *second.texts], origin, fields)
    assert isinstance(first, Conversations)
    assert isinstance(second, Conversations)
    return Conversations([*first.conversations, *second.conversations], origin, fields)
