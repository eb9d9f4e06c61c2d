"""The base class of sources, which yield lanes of blocks with cursors.

A `Source` yields documents in a fixed number of lanes. The order inside a lane is a pure function
of (manifest, seed, epoch, lane), and a cursor returned with a block restarts the lane after it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

from streampack.documents.blocks import Documents, Texts
from streampack.documents.fields import FieldSpec
from streampack.packing.overflow import Overflow
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions

if TYPE_CHECKING:
    from streampack.chats.conversations import Conversations

Block = Union[Documents, Texts, "Conversations"]
#: A position in a lane's stream: small, JSON-able, understood by its source only.
Cursor = dict[str, Any]


class LaneReader(ABC):
    """One lane of one epoch."""

    @abstractmethod
    def read(self, cursor: Cursor | None, skips: ErrorPolicy) -> Iterator[tuple[Block, Cursor]]:
        """Yield blocks, each with the cursor of the position after it.

        Args:
            cursor: the start: after the block that this cursor came with; None is the beginning of
                the lane.
            skips: handling of broken content, and its counters.
        """


class LinePart(LaneReader):
    """A part of one epoch's line, which reports its unread weight."""

    @abstractmethod
    def left(self, cursor: Cursor | None) -> int:
        """Return the weight that is still unread after a cursor."""


class Portion(NamedTuple):
    """A source's part of a run.

    Attributes:
        source: the source.
        epochs: passes over the source; None is endless.
        share: the largest share of the run's tokens, in units of 1 / `whole`.
    """

    source: Source
    epochs: int | None
    share: int
    whole: int


class Source(ABC):
    """A stream of documents, split into lanes.

    A source must have `tokenized`, `prepare`, `lanes` and `describe`. It may replace the other
    public members; names with an underscore belong to streampack.
    """

    #: True if blocks are `Documents` (token ids), False if they are `Texts` or `Conversations`.
    tokenized: bool
    #: Limits of blocks, documents and open shards.
    reading: ReadOptions = ReadOptions()
    #: Policy for documents longer than a row if no packer is given.
    overflow: Overflow = "split"
    #: True if its documents can be read only once, in this process.
    once: bool = False
    #: Further fields to read of its records: values per token and per document.
    field_types: FieldSpec = FieldSpec()

    @property
    def _kind(self) -> str:
        """Name of the source's class in messages and fingerprints."""
        return type(self).__name__

    #: True if it is told the parts that lanes were dealt; see `_plan`.
    _hints: bool = False
    #: True if a lane reads several sources in turn.
    _mixes: bool = False

    @property
    def _parts(self) -> dict[str, Source]:
        """The sources of a mixture by name, or this source alone."""
        return {"": self}

    def _portions(self, epochs: int | None) -> dict[str, Portion]:
        """Return the parts of a run of `epochs` epochs by the names of their sources."""
        return {"": Portion(self._inner, epochs, 1, 1)}

    def _check_epochs(self, epochs: int | None, shuffle: bool) -> None:
        """Raise `ConfigError` if a run of `epochs` epochs is not defined."""
        if self._inner is not self:
            self._inner._check_epochs(epochs, shuffle)

    @property
    def _inner(self) -> Source:
        """The source that reads the data: this one, or the source of the records it interprets."""
        return self

    def _with_fields(self, types: FieldSpec) -> Source:
        """Return a copy of the source that also reads these fields of its records into blocks."""
        copied = copy.copy(self)
        copied.field_types = types
        return copied

    def _leaves(self) -> list[str]:
        """Return the names of leaves that a run of this source uses; see `streampack.leaves`."""
        return [
            *([] if self.tokenized else ["tokenizer"]),
            *(["groups"] if self.grouped else []),
        ]

    @property
    def grouped(self) -> bool:
        """True if a record may be a group: several documents that stay together.

        Its blocks have `Documents.members`, or it gives conversations.
        """
        return False

    @property
    def _several(self) -> bool:
        """True if a record may become several documents, whether or not these stay together."""
        return self.grouped

    @abstractmethod
    def prepare(self) -> None:
        """List the shards, once, in the process that builds the dataset.

        Called before the source is sent to workers; it may do I/O and must be idempotent.
        """

    @abstractmethod
    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        """Return the n lanes of one epoch. Cheap: a reader opens nothing before it is read."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return a JSON-able identity for the fingerprint: kind, manifest digest, columns."""

    def _live(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a run's values of leaves for lanes that are opened, which may change later."""
        return values

    def _as_saved(self, described: Mapping[str, Any], how: str = "saved") -> Source:
        """Return the source under the rules of the run that saved this output of `describe`.

        `how` is "later" for a run that goes on with a later version of its data, and "before" for
        the source as that run had it so far.
        """
        return self

    def _parts_after(self, parts: Any, cursor: Mapping[str, Any]) -> Any:
        """Return the `Parts` that a lane reads from a cursor on, where parts are not dealt."""
        return parts

    def _check_lanes(self, n: int, *, seed: int, shuffle: bool) -> None:
        """Raise `ConfigError` if the source cannot be split into n lanes."""
        self.lanes(n, seed=seed, epoch=0, shuffle=shuffle)

    def max_lanes(self) -> int | None:
        """Return the largest number of lanes the source can be split into; None is no limit."""
        return None

    def _reader_bytes(self) -> int:
        """Estimate the bytes of memory that a lane's reader holds besides the block it yielded."""
        return 0

    def estimate_tokens(self) -> int | None:
        """Estimate the number of tokens in one epoch; None if it is unknown."""
        return None

    def _slow_layout(self) -> str:
        """Return a clause on a layout of files that may make reading slow, or ""."""
        return ""

    def _shard_name(self, shard: int) -> str:
        """Return the name of a shard, by its index in `Documents.origin`."""
        return f"shard {shard}"

    def document_name(self, origin: np.void) -> str:
        """Return a document's location as the subject of a sentence: "row 7 of part-3.parquet"."""
        return f"document {int(origin['index'])} of shard {int(origin['shard'])}"
