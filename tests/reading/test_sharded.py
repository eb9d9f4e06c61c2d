"""Which lane reads what, and manifests of many shards."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.packing.rng import derive_seed, permutation
from streampack.reading.manifest import Manifest, Names
from streampack.reading.skips import Skips
from tests.support.memory_source import MemorySource, numbered_documents


def _source(units: list[int]) -> MemorySource:
    documents = numbered_documents([1] * sum(units))
    bounds = np.concatenate([[0], np.cumsum(units)])
    shards = [documents[a:b] for a, b in pairwise(bounds)]
    return MemorySource(shards, open_shards=3, block_documents=2)


@settings(deadline=None)  # the first example compiles
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.integers(1, 40),
    st.booleans(),
)
def test_lanes_read_every_document_of_the_shuffled_shards_once_in_equal_parts(
    units: list[int], n: int, shuffle: bool
) -> None:
    source = _source(units)
    order = permutation(len(units), derive_seed(5, 2)) if shuffle else np.arange(len(units))
    expected = [(int(s), i) for s in order for i in range(units[s])]
    found = []
    for lane in source.lanes(n, seed=5, epoch=2, shuffle=shuffle):
        pieces = list(lane.pieces)
        assert len(pieces) == len(lane.pieces)
        assert all(start < stop for _, start, stop in pieces)
        own = [(s, i) for s, start, stop in pieces for i in range(start, stop)]
        assert abs(len(own) - sum(units) / n) < 1
        found += own
    assert found == expected


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12), st.booleans())
def test_lanes_of_whole_shards_take_turns_in_the_shuffled_order(
    units: list[int], n: int, shuffle: bool
) -> None:
    source = _source([*units, 1])
    source.splittable = False
    n = min(n, len(units) + 1)
    order = permutation(len(units) + 1, derive_seed(5, 2)) if shuffle else np.arange(len(units) + 1)
    lanes = source.lanes(n, seed=5, epoch=2, shuffle=shuffle)
    assert [[s for s, _, _ in lane.pieces] for lane in lanes] == [
        order[k::n].tolist() for k in range(n)
    ]


def test_lanes_of_a_process_share_one_order_of_the_shards_and_no_pickle_holds_it() -> None:
    source = _source([4] * 50)
    held = [source.lanes(10, seed=1, epoch=0, shuffle=True)[k].pieces.order for k in range(10)]
    assert all(order is held[0] for order in held)
    later = source.lanes(10, seed=1, epoch=1, shuffle=True)[0].pieces.order
    assert later is not held[0]
    assert source.lanes(10, seed=1, epoch=0, shuffle=True)[3].pieces.order is held[0]
    assert len(source._orders) == 2
    for epoch in range(2, 9):
        source.lanes(10, seed=1, epoch=epoch, shuffle=True)
    assert len(source._orders) == 2, "orders of epochs long past are kept"
    copy = pickle.loads(pickle.dumps(source))
    assert not copy._orders
    for lane, other in zip(
        source.lanes(10, seed=1, epoch=3, shuffle=True),
        copy.lanes(10, seed=1, epoch=3, shuffle=True),
        strict=True,
    ):
        assert [c for _, c in lane.read(None, Skips())] == [c for _, c in other.read(None, Skips())]


@settings(deadline=None)  # the first example compiles
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


def test_names_that_are_no_utf_8_come_back_as_the_system_gave_them() -> None:
    names = ["/data/a\udcff.parquet", "/data/a\udcfe.parquet"]
    assert list(Names(names)) == names


def test_manifest_of_a_million_shards_is_small_and_takes_its_digest_along() -> None:
    count = 1_000_000
    names = [f"s3://bucket/corpus/train/part-{i:06d}.parquet" for i in range(count)]
    units = np.arange(count, dtype=np.int64) % 977 + 15_000
    manifest = Manifest(names, units, units * 1_500, "document")
    digest = manifest.digest
    data = pickle.dumps(manifest)
    assert len(data) < 48 * count
    copy = pickle.loads(data)
    assert copy.__dict__["digest"] == digest
    assert copy.paths[777_777] == names[777_777]
