"""Settings of a conversion, and its division into parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from streampack.arguments import one_of, whole_number
from streampack.cached import cached_property
from streampack.conversion.shards import Destination
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.base import Block, LaneReader, Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.sharded import ShardedSource
from streampack.tokenization import Tokenizer

if TYPE_CHECKING:
    from streampack.conversion.chats import Chats

_COMPRESSIONS = ("zstd", "gzip", "brotli", "snappy", "lz4")
MOST_PARTS = 100_000  # five digits in the names of shards, which are read in the order of names
_TOKEN_BYTES = 4  # of a source that is not in files


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """Source, destination and settings of a corpus that is rewritten as shards.

    Attributes:
        source: the corpus, read without shuffling.
        destination: an empty folder, or one with an unfinished run of the same settings.
        tokenizer: tokenizer for a source of text; None writes the text itself.
        shard_bytes: most content of a shard, in bytes. Larger shards mean fewer requests; smaller
            ones shuffle better.
        compression: Parquet compression: "zstd", "gzip", "brotli", "snappy" or "lz4". None does
            not compress, which suits token ids.
        dtype: dtype of the ids in the shards, "uint16" or "uint32"; None uses the tokenizer's or
            the source's.
        on_error: policy for broken documents, "raise" or "skip".
    """

    source: Source
    destination: Destination
    tokenizer: Tokenizer | None = None
    shard_bytes: int = 64 << 20
    compression: str | None = None
    dtype: str | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        whole_number("shard_bytes", self.shard_bytes)
        for name, known in (("compression", _COMPRESSIONS), ("dtype", ("uint16", "uint32"))):
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), known)
        for source in self.sources:
            if self.tokenizer is not None and source.tokenized:
                raise ConfigError(
                    "A tokenizer is for documents of text, but these are tokenized already.",
                    "Omit --tokenizer, or name a column of text with --text.",
                    setting="tokenizer",
                )
            if source.once:
                raise ConfigError(
                    f"The source must be readable more than once, got {source!r}.",
                    "Write the documents to files, or pass a list.",
                    setting="source",
                )

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in order."""
        return (self.source,)

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the result; only an equal run can continue it."""
        return {
            "version": 1,
            "source": self.source.describe(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.fingerprint,
            "shard_bytes": self.shard_bytes,
            "compression": self.compression,
            "dtype": self.dtype,
            "on_error": self.on_error,
        }


@dataclass(frozen=True, kw_only=True)
class Conversion(ShardSettings):
    """Source, destination and settings of a conversion.

    Attributes:
        source, destination, tokenizer, shard_bytes, compression, dtype, on_error: as for
            `ShardSettings`.
        more: further sources, converted after the first; documents are not mixed.
        part_bytes: approximate bytes of the source, as stored, in a part: the unit of work of a
            process, repeated if the process dies. A part has shards of its own, so parts should
            give several shards each.
        keep: document fields that shards hold beside the documents: "text" or a dtype by name, or
            None until `kept.keeping` has found it.
    """

    more: tuple[Source, ...] = ()
    part_bytes: int = 256 << 20
    keep: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("part_bytes", self.part_bytes)
        kinds = {type(source).__name__: source.tokenized for source in self.sources}
        if len({*kinds.values()}) > 1:
            raise ConfigError(
                "Sources must be all of text or all of token ids, got "
                f"{', '.join(f'ids in {n}' if ids else f'text in {n}' for n, ids in kinds.items())}"
                ".",
                "Convert them to two destinations.",
                setting="source",
            )
        if self.tokenizer is None and any(_renders(source) for source in self.sources):
            raise ConfigError(
                "Conversations need a tokenizer, got none.",
                "Pass tokenizer= (--tokenizer), with a chat template.",
                setting="tokenizer",
            )
        if self.num_parts > MOST_PARTS:
            raise ConfigError(
                f"A corpus is divided into at most {MOST_PARTS:,} parts, got {self.num_parts:,} of "
                f"{self.part_bytes:,} bytes.",
                "Use larger parts (--part-size).",
                setting="part_bytes",
            )

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in order."""
        return (self.source, *self.more)

    @cached_property
    def parts_of_sources(self) -> list[int]:
        """Return each source's number of parts, by its listing and `part_bytes` alone."""
        return [self._parts_of(source) for source in self.sources]

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return sum(self.parts_of_sources)

    def reader(self, part: int) -> tuple[Source, LaneReader]:
        """Return a part's source and reader."""
        for source, parts in zip(self.sources, self.parts_of_sources, strict=True):
            if part < parts:
                inner = source._inner
                rules: Any = {"seed": 0, "epoch": 0, "shuffle": False}
                if isinstance(inner, ShardedSource):  # without the readers of all other parts
                    return source, inner._span(*inner._share(part, parts), **rules)
                return source, source.lanes(parts, **rules)[part]
            part -= parts
        raise IndexError(part)

    def chats(self, source: Source) -> Chats | None:
        """Return the encoder of a source's conversations; None for other documents."""
        if self.tokenizer is None or not _renders(source):
            return None
        from streampack.conversion.chats import Chats

        return Chats(cast(Any, source), self.tokenizer)

    def common_dtype(self) -> str | None:
        """Return the dtype of the ids in all parts; None for text.

        It is the setting's, else the tokenizer's, else the widest of the sources' first blocks.
        """
        if self.dtype is not None:
            return self.dtype
        if self.tokenizer is not None:
            return self.tokenizer.dtype.name
        if not self.source.tokenized:
            return None
        wide = False
        for source in self.sources:
            block = first_block(source, self.on_error)
            wide |= not isinstance(block, Documents) or block.tokens.dtype != np.uint16
        return "uint32" if wide else "uint16"

    def settings(self) -> dict[str, Any]:
        """See `ShardSettings.settings`."""
        described: dict[str, Any] = {**super().settings(), "version": 2}
        if self.more:
            described["source"] = [source.describe() for source in self.sources]
        encoders = [chats for source in self.sources if (chats := self.chats(source))]
        if encoders:
            described["tokenizer"] = [chats.fingerprint for chats in encoders]
        kept = {"keep": dict(self.keep)} if self.keep else {}
        return {**described, **kept, "part_bytes": self.part_bytes}

    def _parts_of(self, source: Source) -> int:
        inner = source._inner
        if isinstance(inner, ShardedSource):
            size = int(inner.manifest.num_bytes.sum())
        else:
            size = (source.estimate_tokens() or 0) * _TOKEN_BYTES
        wanted = max(-(-size // self.part_bytes), 1)
        most = source.max_lanes()
        return wanted if most is None else min(wanted, most)


def first_block(source: Source, on_error: Literal["raise", "skip"]) -> Block | None:
    """Return the first documents of a source; None if it has none."""
    (reader,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    return next((block for block, _ in reader.read(None, ErrorPolicy(on_error))), None)


def _renders(source: Source) -> bool:
    """Return True if blocks are conversations."""
    return getattr(source, "renders", False) and not source.tokenized
