"""`ReadOptions`: limits of blocks, documents and open shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampack.arguments import explained, switch, whole_number
from streampack.errors import ConfigError

TURN_DOCUMENTS = 512  # documents read in one turn of all open shards
LEAST_DOCUMENTS = 16  # minimum per block, so that documents share its fixed cost


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Limits of blocks, documents and open shards. They determine the order of the documents.

    Attributes:
        open_shards: shards a lane reads from at the same time, a block from each in turn: more of
            them make the documents of a batch more diverse. A source without shards has one.
        block_documents: documents in a block, at most; documents are shuffled inside a block.
            None is 512 divided by `open_shards`, but at least 16, so that a window of 512
            documents holds documents of every open shard.
        block_bytes: a block ends as soon as it holds this many bytes of tokens or text.
        shuffle_blocks: False leaves the documents of a block in their order where a dataset is
            shuffled, so that only the order of shards is random. With `open_shards=1` documents
            that lie side by side in a shard stay together: see docs/order.md.
        max_document_bytes: limit of a document's size; a larger one counts as broken. None is 8 MiB
            for texts that are tokenized, since encoding takes 50 to 400 times their size in memory,
            and 256 MiB for everything else.

    Raises:
        ConfigError: a number is not an integer of at least 1, or `shuffle_blocks` is not a bool.
    """

    open_shards: int = 2
    block_documents: int | None = None
    block_bytes: int = 4 << 20
    max_document_bytes: int | None = None
    shuffle_blocks: bool = True

    def __post_init__(self) -> None:
        for name in ("open_shards", "block_documents", "block_bytes", "max_document_bytes"):
            value = getattr(self, name)
            if value is not None or name in ("open_shards", "block_bytes"):
                object.__setattr__(self, name, whole_number(name, value))
        object.__setattr__(self, "shuffle_blocks", switch("shuffle_blocks", self.shuffle_blocks))

    @property
    def documents_per_block(self) -> int:
        """The largest number of documents in a block, with the default filled in."""
        if self.block_documents is not None:
            return self.block_documents
        return max(LEAST_DOCUMENTS, TURN_DOCUMENTS // self.open_shards)

    @property
    def most_bytes(self) -> int:
        """The limit of a stored document, in bytes."""
        return 256 << 20 if self.max_document_bytes is None else self.max_document_bytes

    @property
    def most_text_bytes(self) -> int:
        """The limit of a text that is tokenized, in bytes of UTF-8."""
        return 8 << 20 if self.max_document_bytes is None else self.max_document_bytes

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON-able values, for the fingerprint."""
        described: dict[str, Any] = {
            "open_shards": self.open_shards,
            "block_documents": self.documents_per_block,
            "block_bytes": self.block_bytes,
            "max_document_bytes": [self.most_text_bytes, self.most_bytes],
        }
        return described if self.shuffle_blocks else {**described, "shuffle_blocks": False}


def checked_reading(reading: ReadOptions | None) -> ReadOptions:
    """Check a source's argument `reading` and return it; None returns the default.

    Raises:
        ConfigError: `reading` is neither a `ReadOptions` nor None.
    """
    if reading is None:
        return ReadOptions()
    if not isinstance(reading, ReadOptions):
        raise ConfigError(
            f"reading must be a ReadOptions, got {reading!r:.200}.",
            "Pass sources.ReadOptions(open_shards=2), or leave it out.",
            setting="reading",
        )
    return reading


def too_long(num_bytes: int, limit_bytes: int) -> str:
    """Return the reason for rejecting a document above the limit of `ReadOptions`."""
    return f"has {num_bytes} bytes and is longer than max_document_bytes={limit_bytes}"
