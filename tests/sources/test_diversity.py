"""The number of shards from which the documents of a window come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack.formats.jsonl import JSONL
from streampack.formats.tar.source import WebDataset
from streampack.sources.base import Block
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import TURN_DOCUMENTS, ReadOptions
from streampack.sources.sharded import ShardedSource
from tests.support.corpora import write_tar
from tests.support.source_contract import read_lane

SHARDS, DOCUMENTS = 10, 600
CORPUS = [
    [np.array([shard, i], dtype=np.uint16) for i in range(DOCUMENTS)] for shard in range(SHARDS)
]


def _lines(folder: Path, **options: Any) -> JSONL:
    for shard, documents in enumerate(CORPUS):
        lines = "".join(json.dumps({"t": tokens.tolist()}) + "\n" for tokens in documents)
        (folder / f"{shard}.jsonl").write_text(lines)
    return JSONL(folder, tokens="t", **options)


def _tar(folder: Path, **options: Any) -> WebDataset:
    for shard, documents in enumerate(CORPUS):
        write_tar(folder / f"{shard}.tar", documents)
    return WebDataset(folder, tokens="npy", **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [_lines, _tar])
@pytest.mark.parametrize("open_shards", [1, 2, 8])
def test_any_window_holds_documents_of_every_open_shard_and_no_more_are_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., ShardedSource],
    open_shards: int,
) -> None:
    source = make(tmp_path, reading=ReadOptions(open_shards=open_shards))
    opened, most = 0, 0
    read_shard = source.read_shard

    def counted(
        shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Block, int, int]]:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        yield from read_shard(shard, low, high, position, skips)
        opened -= 1

    monkeypatch.setattr(source, "read_shard", counted)
    lane = source.lanes(1, seed=0, epoch=0, shuffle=True)[0]
    blocks = read_lane(lane)
    assert most == open_shards
    shards = np.array([shard for block, _ in blocks for (shard, _), _ in block])
    assert len(shards) == SHARDS * DOCUMENTS
    # Ten shards of equal size: the open ones end together, and at the last few are left over.
    whole = SHARDS // open_shards * open_shards * DOCUMENTS
    for start in range(0, whole - TURN_DOCUMENTS, 100):
        distinct = len(set(shards[start : start + TURN_DOCUMENTS].tolist()))
        assert distinct >= open_shards
