"""A damaged copy in the cache is fetched anew, and a broken file is never kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streampack.errors import ContentError
from streampack.sources import JSONL, MDS
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds
from tests.support.servers import HTTPServer
from tests.support.source_contract import read_all

RNG = np.random.default_rng(0)
IDS = [RNG.integers(0, 60_000, n).astype(np.uint16) for n in RNG.integers(1, 90, 400)]
READING = ReadOptions(block_documents=16)

Make = Callable[[Path, str, Storage], tuple[str, ShardedSource]]


def _mds(folder: Path, url: str, storage: Storage) -> tuple[str, ShardedSource]:
    write_mds(folder, IDS, size_limit=1 << 20, hashes=["sha1"])
    source = MDS(f"{url}/mds", validate_hash="sha1", reading=READING, storage=storage)
    return "mds/shard.00000.mds", source


def _lines(folder: Path, url: str, storage: Storage) -> tuple[str, ShardedSource]:
    lines = "".join(json.dumps({"ids": row.tolist()}) + "\n" for row in IDS)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    source = JSONL(f"{url}/a.jsonl.gz", tokens="ids", reading=READING, storage=storage)
    return "a.jsonl.gz", source


def _damage(file: Path) -> None:
    """Other bytes in the middle; the size stays."""
    data = bytearray(file.read_bytes())
    half = len(data) // 2
    data[half : half + 1500] = bytes([255]) * 1500
    file.write_bytes(data)


@pytest.mark.parametrize("make", [_mds, _lines])
def test_a_damaged_copy_is_fetched_anew_and_nothing_is_read_twice(
    http: HTTPServer, storage: Storage, make: Make
) -> None:
    name, source = make(http.folder, http.url, storage)
    expected = read_all(source)
    assert len(expected) == len(IDS)
    assert storage.cache_dir is not None
    for copy in storage.cache_dir.glob("blocks/*/[!.]*"):
        _damage(copy)
    before = http.count("GET", name)
    assert read_all(source) == expected
    assert http.count("GET", name) == before + 1
    assert read_all(source) == expected
    assert http.count("GET", name) == before + 1


@pytest.mark.parametrize("make", [_mds, _lines])
def test_a_shard_that_is_damaged_where_it_comes_from_is_refused_and_not_kept(
    http: HTTPServer, storage: Storage, make: Make
) -> None:
    name, source = make(http.folder, http.url, storage)
    _damage(http.folder / name)
    with pytest.raises(ContentError, match=Path(name).name):
        read_all(source)
    before = http.count("GET", name)
    with pytest.raises(ContentError, match=Path(name).name):
        read_all(source)
    assert http.count("GET", name) > before
