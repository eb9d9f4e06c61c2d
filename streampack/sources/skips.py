"""What happens to broken content: an error, or it is skipped, counted, named and recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from streampack.documents.blocks import Documents, Texts
from streampack.documents.conversations import Conversations
from streampack.errors import ConfigError, ContentError
from streampack.sources.raw_bytes import Spans

logger = logging.getLogger(__name__)

NAMED = 10  # of the broken documents of a lane that are logged by name

AnyBlock = TypeVar(
    "AnyBlock", Documents, Texts, Documents | Texts | Conversations,
    Documents | Texts | Conversations | Spans,
)  # fmt: skip


@dataclass(slots=True)
class Skips:
    """The broken content of one lane.

    Attributes:
        on_error: "raise" stops at the first `ContentError`; "skip" continues after it.
        limit: with "skip", the number of skips in a lane after which it raises an error as well,
            because a corpus that is broken throughout should not be read in silence.
        records: what was skipped: ``[shard, index, rest_of_shard, message]``, JSON-able, with None
            for `rest_of_shard` if a block was shuffled before it was skipped; records
            passed to `expect` may end with the number of a source in a mixture.
        name: of the source in a mixture, or None.
    """

    on_error: Literal["raise", "skip"] = "raise"
    limit: int = 1000
    records: list[list[Any]] = field(default_factory=list)
    name: str | None = None
    _known: dict[int, list[list[Any]]] = field(default_factory=dict)
    _late: bool = False
    _tally: list[int] = field(default_factory=lambda: [0])  # one for all sources of a mixture

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(
                f'on_error is "{self.on_error}".',
                "It decides what happens to broken documents and shards.",
                'Use "raise" or "skip".',
            )

    @property
    def count(self) -> int:
        """How many were skipped since the run began; records of long ago are dropped."""
        return self._tally[0]

    def of_source(self, number: int, name: str) -> Skips:
        """The skips of one source of a mixture; its count and limit are those of the lane."""
        known = [record for records in self._known.values() for record in records]
        own = [record[:4] for record in known if (record[4:] or [0]) == [number]]
        part = Skips(self.on_error, self.limit, name=name, _tally=self._tally)
        part.expect(own, self.count)
        return part

    def since(self, number: int) -> list[list[Any]]:
        """The records from `number` on, and those of a saved state that have not been read yet."""
        expected = [record for records in self._known.values() for record in records]
        return self.records[number:] + expected

    def handle(self, error: ContentError) -> None:
        """Raise `error`, or record it and return."""
        if self.name is not None:
            error = error.of_source(self.name)
        if self.on_error == "raise":
            raise error
        for known in self._known.get(error.shard, []):
            if known[1] == error.index:  # counted and named before the state was saved
                self._known[error.shard].remove(known)
                self.records.append(known)
                return
        if self.count >= self.limit:
            raise ContentError(
                f"{self.count} broken documents or shards were skipped in one lane, and now: "
                f"{error.fact}",
                'That is the limit for on_error="skip".',
                "Repair the corpus, or raise the limit if so much may be lost.",
            ) from error
        self._tally[0] += 1
        late = self._late and not error.rest_of_shard
        kind = None if late else error.rest_of_shard
        self.records.append([error.shard, error.index, kind, str(error)])
        self._log(error)

    def _log(self, error: ContentError) -> None:
        """Log every shard, the first documents, and then those whose count is a power of ten."""
        count = self.count
        if count > NAMED and not error.rest_of_shard and str(count).strip("0") != "1":
            return
        so_far = f" ({count:,} so far in this lane)" if count > NAMED else ""
        if count == NAMED:
            so_far = "; further ones are counted (metrics: skipped), and few are named"
        logger.warning("skipped: %s %s%s", error.fact, error.consequence, so_far)

    def expect(self, records: list[list[Any]], count: int) -> None:
        """Set the skips of a saved state, so that the same is skipped when it is read again."""
        self.records = []
        self._tally[0] = count
        self._known = {}
        for record in records:
            self._known.setdefault(record[0], []).append(list(record))

    @contextmanager
    def after_shuffle(self) -> Iterator[None]:
        """Inside, what is skipped was found broken after its block had been shuffled."""
        self._late = True
        try:
            yield
        finally:
            self._late = False

    def replay(self, block: AnyBlock, shard: int) -> tuple[AnyBlock, bool]:
        """A block without what a saved state skipped; True if the rest of the shard is skipped too.

        Content that was broken when the state was saved and is readable now stays skipped, because
        the batches after that state were made without it. What was skipped after its block was
        shuffled stays in, as the shuffle depends on it; see `replay_late`.
        """
        return self._without(block, shard, (True, False))

    def replay_late(self, block: AnyBlock, shard: int) -> AnyBlock:
        """A block, shuffled by now, without what a saved state skipped after the shuffle."""
        return self._without(block, shard, (None,))[0]

    def _without(
        self, block: AnyBlock, shard: int, kinds: tuple[bool | None, ...]
    ) -> tuple[AnyBlock, bool]:
        known = [record for record in self._known.get(shard, ()) if record[2] in kinds]
        if not known:
            return block, False
        index = block.origin["index"]
        dropped = np.zeros(len(block), dtype=np.bool_)
        ended = False
        for record in known:
            here = ~dropped & (index >= record[1] if record[2] else index == record[1])
            if here.any():
                dropped |= here
                ended = ended or bool(record[2])
                self._known[shard].remove(record)
                self.records.append(record)
        if not dropped.any():
            return block, False
        return block.take(np.flatnonzero(~dropped)), ended
