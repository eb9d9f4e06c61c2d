"""Settings of a conversion, and its division into parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from streampack.arguments import one_of, whole_number
from streampack.cached import cached_property
from streampack.conversion.shards import Destination
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.sharded import ShardedSource
from streampack.tokenization import Tokenizer

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
        if self.tokenizer is not None and self.source.tokenized:
            raise ConfigError(
                "A tokenizer is for documents of text, but these are tokenized already.",
                "Omit --tokenizer, or name a column of text with --text.",
                setting="tokenizer",
            )
        if self.source.once:
            raise ConfigError(
                f"The source must be readable more than once, got {self.source!r}.",
                "Write the documents to files, or pass a list.",
                setting="source",
            )

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
        part_bytes: approximate bytes of the source, as stored, in a part: the unit of work of a
            process, repeated if the process dies. A part has shards of its own, so parts should
            give several shards each.
    """

    part_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("part_bytes", self.part_bytes)
        if self.num_parts > MOST_PARTS:
            raise ConfigError(
                f"A corpus is divided into at most {MOST_PARTS:,} parts, got {self.num_parts:,} of "
                f"{self.part_bytes:,} bytes.",
                "Use larger parts (--part-size).",
                setting="part_bytes",
            )

    @cached_property
    def num_parts(self) -> int:
        """Return the number of parts, which depends on the listing and `part_bytes` alone."""
        inner = self.source.inner
        if isinstance(inner, ShardedSource):
            size = int(inner.manifest.num_bytes.sum())
        else:
            size = (self.source.estimate_tokens() or 0) * _TOKEN_BYTES
        wanted = max(-(-size // self.part_bytes), 1)
        most = self.source.max_lanes()
        return wanted if most is None else min(wanted, most)

    def common_dtype(self) -> str | None:
        """Return the dtype of the ids in all parts; None for text.

        It is the setting's, else the tokenizer's, else that of the first block.
        """
        if self.dtype is not None:
            return self.dtype
        if self.tokenizer is not None:
            return self.tokenizer.dtype.name
        if not self.source.tokenized:
            return None
        (reader,) = self.source.lanes(1, seed=0, epoch=0, shuffle=False)
        block = next((block for block, _ in reader.read(None, ErrorPolicy(self.on_error))), None)
        narrow = isinstance(block, Documents) and block.tokens.dtype == np.uint16
        return "uint16" if narrow else "uint32"

    def settings(self) -> dict[str, Any]:
        """See `ShardSettings.settings`."""
        return {**super().settings(), "version": 2, "part_bytes": self.part_bytes}
