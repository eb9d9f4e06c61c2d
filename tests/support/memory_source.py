"""A sharded source over arrays in memory, for tests of the layers above the formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, make_origin
from streampack.documents.fields import FieldSpec
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource


class MemorySource(ShardedSource):
    """Shards are lists of token arrays (and of masks, if given); the rest is for `ReadOptions`.

    A document weighs one. It has the fields that `hashed_fields` gives it, where they are declared.
    """

    tokenized = True

    def __init__(
        self,
        shards: Sequence[Sequence[NDArray[np.generic]]],
        masks: Sequence[Sequence[NDArray[np.bool_]]] | None = None,
        **reading: int,
    ) -> None:
        super().__init__(reading=ReadOptions(**reading))
        self.shards = shards
        self.masks = masks

    def list_shards(self) -> Manifest:
        return Manifest(
            paths=tuple(f"memory-{i}" for i in range(len(self.shards))),
            weights=np.array([len(shard) for shard in self.shards], dtype=np.int64),
            num_bytes=np.array([sum(map(len, s)) * 4 for s in self.shards], dtype=np.int64),
        )

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Documents, int, int]]:
        start = low if position is None else position
        while start < high:
            end = min(start + self.reading.documents_per_block, high)
            masks = self.masks[shard][start:end] if self.masks is not None else None
            origin = make_origin(shard, np.arange(start, end, dtype=np.int64))
            block = Documents.from_arrays(self.shards[shard][start:end], origin, masks)
            yield hashed_fields(block, self.field_types), end, end
            start = end


def numbered_documents(lengths: Sequence[int], dtype: Any = np.uint32) -> list[NDArray[np.generic]]:
    """Documents with distinct tokens, so that each can be traced."""
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return [np.arange(bounds[i], bounds[i + 1]).astype(dtype) for i in range(len(lengths))]


def heavy_tailed(count: int, seed: int, longest: int = 2000) -> list[int]:
    values = np.exp(np.random.default_rng(seed).normal(2.5, 1.2, count)).astype(int) + 1
    return np.minimum(values, longest).tolist()


def hashed_fields(documents: Documents, types: FieldSpec) -> Documents:
    """The documents with values that tell which document, and which of its tokens, they are of."""
    place = documents.origin["shard"].astype(np.int64) * 1009 + documents.origin["index"]
    lengths = documents.lengths
    document = np.repeat(place, lengths)
    token = np.arange(documents.num_tokens) - np.repeat(documents.offsets[:-1], lengths)
    return replace(
        documents,
        token_fields={
            name: token_hash(name, document, token, dtype.shape)
            for name, dtype in types.token.items()
        },
        document_fields={name: token_hash(name, place, 0) for name in types.document},
    )


def token_hash(name: str, document: Any, token: Any, shape: tuple[int, ...] = ()) -> Any:
    """The value, or the values of a shape, that `hashed_fields` gives one token of a document."""
    first = np.asarray(document) * 7919 + np.asarray(token) * 104_729 + len(name)
    inner = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 31
    return (first.reshape(first.shape + (1,) * len(shape)) + inner) % 65_521
