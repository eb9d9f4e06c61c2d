"""The contract of every source in shards, checked on a real corpus in one call."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streampack.chats.conversations import Conversations
from streampack.documents.blocks import Documents
from streampack.sources.base import Block, Cursor, LaneReader, Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.sharded import ShardedSource

__all__ = ["assert_source_contract", "contents", "read_all", "read_lane"]

Document = str | tuple[int, ...]
Named = tuple[tuple[int, int], Document]


def contents(block: Block) -> list[Named]:
    """((shard, index), text or ids) of each document."""
    names = [(int(o["shard"]), int(o["index"])) for o in block.origin]
    if isinstance(block, Documents):
        documents: list[Document] = [
            tuple(block.document(i).astype(np.int64).tolist()) for i in range(len(block))
        ]
    elif isinstance(block, Conversations):
        documents = [
            json.dumps(list(chat.messages), sort_keys=True) for chat in block.conversations
        ]
    else:
        documents = list(block.texts)
    return list(zip(names, documents, strict=True))


def read_lane(
    lane: LaneReader, cursor: Cursor | None = None, skips: ErrorPolicy | None = None
) -> list[tuple[list[Named], Cursor]]:
    """The blocks of a lane with their cursors, which go through JSON as they would in a state."""
    blocks = []
    for block, position in lane.read(cursor, skips or ErrorPolicy()):
        assert len(block) > 0, "a reader yielded an empty block"
        blocks.append((contents(block), json.loads(json.dumps(position))))
    return blocks


def read_all(source: Source, skips: ErrorPolicy | None = None) -> list[Document]:
    """Every document of a source, in the order of the shards and their contents."""
    source.prepare()
    lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    named = [pair for block, _ in read_lane(lane, None, skips) for pair in block]
    return [document for _, document in sorted(named, key=lambda pair: pair[0])]


def _size(document: Document, itemsize: int) -> int:
    return len(document.encode()) if isinstance(document, str) else len(document) * itemsize


def _assert_blocks(source: Source, blocks: list[tuple[list[Named], Cursor]]) -> None:
    """Blocks keep their limits and, unshuffled, the order of their shard."""
    for block, _ in blocks:
        assert len(block) <= source.reading.documents_per_block
        names = [name for name, _ in block]
        assert len({shard for shard, _ in names}) == 1, "a block mixes shards"
        assert names == sorted(names), "unshuffled documents are out of order"
        size = sum(_size(document, 2) for _, document in block[:-1])
        assert size < source.reading.block_bytes, "a block went on after it was full"


def assert_source_contract(
    source: Source,
    expected_documents: Sequence[str | Sequence[int]],
    *,
    lane_counts: Sequence[int] | None = None,
    restarts: int = 8,
) -> None:
    """Hold a source against its contract.

    Args:
        source: any source in shards.
        expected_documents: all of its texts or ids, in the order of shards and their contents.
        lane_counts: numbers of lanes to try; None is a few, and one that is more than the shards.
        restarts: cursors per lane to restart from (all of them if there are no more).
    """
    expected: list[Document] = [
        document if isinstance(document, str) else tuple(int(token) for token in document)
        for document in expected_documents
    ]
    source.prepare()
    inner = source._inner
    assert isinstance(inner, ShardedSource)
    described: dict[str, Any] = json.loads(json.dumps(source.describe()))
    copy: Source = pickle.loads(pickle.dumps(source))
    assert copy.describe() == described, "a pickled source describes itself differently"
    if lane_counts is None:
        lane_counts = sorted({1, 2, 3, 7, max(7, len(inner.manifest) + 1)})
    for shuffle in (False, True):
        for n in lane_counts:
            everything: list[Named] = []
            lanes: Any = source.lanes(n, seed=3, epoch=1, shuffle=shuffle)
            others = copy.lanes(n, seed=3, epoch=1, shuffle=shuffle)
            assert len(lanes) == n
            assert sum(lane.left(None) for lane in lanes) == inner.manifest.weight
            for number in range(n):
                blocks = read_lane(lanes[number])
                left = [lanes[number].left(cursor) for cursor in (None, *(c for _, c in blocks))]
                assert left == sorted(left, reverse=True), "what is left became more"
                assert left[-1] >= 0
                if not shuffle:
                    _assert_blocks(source, blocks)
                everything += [pair for block, _ in blocks for pair in block]
                assert read_lane(others[number]) == blocks, "reading again gave something else"
                step = max(1, len(blocks) // restarts)
                for k in range(0, len(blocks), step):
                    rest = read_lane(lanes[number], blocks[k][1])
                    assert rest == blocks[k + 1 :], f"a restart behind block {k} went elsewhere"
            names = [name for name, _ in everything]
            assert len(set(names)) == len(names), "a document came twice"
            assert [d for _, d in sorted(everything, key=lambda pair: pair[0])] == expected


def read_by_cuts(source: Any, data: st.DataObject) -> list[list[int]]:
    """The ids of the documents of a listed source, read in parts between cuts that are drawn."""
    weight = source.manifest.weight
    cuts = sorted({0, weight, *data.draw(st.lists(st.integers(0, weight), max_size=6))})
    found: list[list[int]] = []
    for low, high in pairwise(cuts):
        for block, _ in source._span(low, high, seed=0, epoch=0, shuffle=False).read(
            None, ErrorPolicy()
        ):
            found += [block.document(i).tolist() for i in range(len(block))]
    return found
