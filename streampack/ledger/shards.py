"""Shards of `streampack convert`, read by the lengths of their documents in place of their ids."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.accounts.leaf import Epochs
from streampack.conversion.shards import NUM_TOKENS, OF_IDS
from streampack.documents.blocks import offsets_of
from streampack.exclusion.leaf import FindKeys
from streampack.fields.stage import Cast
from streampack.files.file_source import ShardBlock
from streampack.formats.parquet.source import Parquet
from streampack.formats.rows.columns import BlockMaker
from streampack.ledger.replay import zeros
from streampack.mixtures.source import Mixture
from streampack.sources.base import Source
from streampack.stages.ids import Apart, CheckedIds, Numbered, Unsigned, WithoutEmpty
from streampack.tokenization.ends import Ended

#: Stages that see the number of ids of a document alone; `Ended` does with the rule "append".
_OF_LENGTHS = (Apart, Numbered, CheckedIds, WithoutEmpty, Unsigned, Cast, FindKeys, Epochs)


class ShardLengths(Parquet):
    """A source of Parquet files that gives zeros as ids where files have the lengths of documents.

    `by_lengths` makes it of another one. Blocks and cursors are the same.

    Attributes:
        known: indices of the shards that were read by lengths.
    """

    known: set[int]
    _kind = "Parquet"

    @property
    def wanted_columns(self) -> list[str]:
        """Names of the columns that are read from files that have the lengths."""
        names = [NUM_TOKENS, *self.field_types.document, *(self.where.names if self.where else ())]
        return list(dict.fromkeys(names))

    def _columns(self, schema: pa.Schema) -> list[str]:
        if not has_lengths(schema):
            ids = copy.copy(self)
            ids.__class__ = Parquet  # type: ignore[assignment]
            return ids._columns(schema)
        return super()._columns(schema)

    def _block_maker(self, shard: int, schema: pa.Schema, dtype: str) -> BlockMaker:
        make: Any = super()._block_maker(shard, schema, dtype)
        if not has_lengths(schema):
            return make  # type: ignore[no-any-return]
        self.known.add(shard)
        make = replace(make, loss_masks=())

        def blocks(rows: pa.RecordBatch, numbers: NDArray[np.int64]) -> Iterator[ShardBlock]:
            offsets = offsets_of(rows.column(NUM_TOKENS).to_numpy().astype(np.int64))
            ids = pa.array(zeros(int(offsets[-1]), dtype))
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), ids)
            names = [*rows.schema.names, self.column]
            yield from make(pa.RecordBatch.from_arrays([*rows.columns, lists], names), numbers)

        return blocks


def has_lengths(schema: pa.Schema) -> bool:
    """Return True if a file with this schema has the lengths that `streampack convert` writes."""
    return NUM_TOKENS in schema.names and (schema.field(NUM_TOKENS).metadata or {}).items() >= (
        OF_IDS.items()
    )


def by_lengths(source: Source, stages: Any) -> Source:
    """Return a source that reads lengths in place of ids, or itself where stages need these.

    Args:
        source: prepared source.
        stages: the stages of each of its parts, as in `Preparation`.
    """
    if isinstance(source, Mixture):
        mixed, parts = copy.copy(source), source.sources.items()
        mixed.sources = {
            name: by_lengths(part, [each]) for (name, part), each in zip(parts, stages, strict=True)
        }
        return mixed
    suits = type(source) is Parquet and source.tokenized and not source.field_types.token
    if not suits or not all(
        isinstance(stage, _OF_LENGTHS) or (isinstance(stage, Ended) and stage.rule == "append")
        for stage in stages[0]
    ):
        return source
    lengths: Any = copy.copy(source)
    lengths.__class__ = ShardLengths
    lengths.known = set()
    return lengths  # type: ignore[no-any-return]
