"""The documents that each lane reads, and manifests of many shards."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.packing.rng import derive_seed, permutation
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest, Names
from tests.support.memory_source import MemorySource, numbered_documents


def _source(weights: list[int]) -> MemorySource:
    documents = numbered_documents([1] * sum(weights))
    bounds = np.concatenate([[0], np.cumsum(weights)])
    shards = [documents[a:b] for a, b in pairwise(bounds)]
    return MemorySource(shards, open_shards=3, block_documents=2)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.integers(1, 40),
    st.booleans(),
)
def test_lanes_read_every_document_of_the_shuffled_shards_once_in_equal_parts(
    weights: list[int], n: int, shuffle: bool
) -> None:
    source = _source(weights)
    order = permutation(len(weights), derive_seed(5, 2)) if shuffle else np.arange(len(weights))
    expected = [(int(s), i) for s in order for i in range(weights[s])]
    found = []
    for lane in source.lanes(n, seed=5, epoch=2, shuffle=shuffle):
        pieces = list(lane.pieces)
        assert len(pieces) == len(lane.pieces)
        assert all(start < stop for _, start, stop in pieces)
        own = [(s, i) for s, start, stop in pieces for i in range(start, stop)]
        assert abs(len(own) - sum(weights) / n) < 1
        assert len(own) == lane.left(None)
        assert [lane.pieces.weight(k) for k in range(len(pieces) + 1)] == [
            sum(stop - start for _, start, stop in pieces[k:]) for k in range(len(pieces) + 1)
        ]
        found += own
    assert found == expected


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.integers(1, 12),
    st.booleans(),
)
def test_the_rest_behind_a_cursor_is_read_after_it(
    weights: list[int], n: int, shuffle: bool
) -> None:
    for lane in _source(weights).lanes(n, seed=5, epoch=2, shuffle=shuffle):
        for _, cursor in lane.read(None, ErrorPolicy()):
            rest = sum(len(block) for block, _ in lane.read(cursor, ErrorPolicy()))
            assert lane.left(cursor) == rest


@given(st.lists(st.text(max_size=8)))
def test_names_give_back_every_name(names: list[str]) -> None:
    kept = Names(names)
    assert list(kept) == [kept[i] for i in range(len(kept))] == names
    assert kept[1:-1] == names[1:-1]
    assert list(pickle.loads(pickle.dumps(kept))) == names
    if names:
        assert kept[-1] == names[-1]
    with pytest.raises(IndexError):
        kept[len(names)]


def test_names_that_are_not_utf_8_come_back_as_the_system_gave_them() -> None:
    names = ["/data/a\udcff.parquet", "/data/a\udcfe.parquet"]
    assert list(Names(names)) == names


@pytest.mark.slow
def test_manifest_of_a_million_shards_is_small_and_takes_its_digest_along() -> None:
    count = 1_000_000
    names = [f"s3://bucket/corpus/train/part-{i:06d}.parquet" for i in range(count)]
    weights = np.arange(count, dtype=np.int64) % 977 + 15_000
    manifest = Manifest(names, weights, weights * 1_500)
    digest = manifest.digest
    data = pickle.dumps(manifest)
    assert len(data) < 48 * count
    copy = pickle.loads(data)
    assert copy.__dict__["digest"] == digest
    assert copy.paths[777_777] == names[777_777]
