"""A full cache keeps files for the next epoch, and files that are on their way to readers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.file_info import FileInfo
from streampack.storage.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockCache
from streampack.storage.files import MemoryFile
from streampack.storage.growing import derived_key
from streampack.storage.room import Entry, Room, order_of_removal

DAY_S = 24 * 3600.0
CORPUS = 80  # blocks, of half as many as a cache has room for
KEYS = ["a" * 24, "b" * 24, "c" * 24]
DERIVED = f"{'a' * 16}{'b' * 8}m"


def read(cache: BlockCache, key: str, numbers: Iterable[int]) -> int:
    """Read blocks one after another, each a file of its own; return how many were there."""
    hits = 0
    for number in numbers:
        hits += cache.get(key, number) is not None
        if not cache.has(key, number):
            cache.put(key, number, bytes(BLOCK_BYTES))
            assert cache.get(key, number) is not None
    return hits


def blocks(count: int) -> range:
    return range(0, count * EXTENT_BLOCKS, EXTENT_BLOCKS)


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(tmp_path / "blocks", CORPUS // 2 * BLOCK_BYTES)


def kept(cache: BlockCache, key: str, count: int = CORPUS) -> list[int]:
    return [number for number in blocks(count) if cache.has(key, number)]


def age(cache: BlockCache, seconds: float) -> None:
    """Let all files of the cache be older."""
    for path in cache.folder.glob("*/*"):
        status = path.stat()
        times_ns = status.st_atime_ns, status.st_mtime_ns
        os.utime(path, ns=(times_ns[0] - int(seconds * 1e9), times_ns[1] - int(seconds * 1e9)))


def test_a_later_epoch_has_nearly_the_blocks_for_which_the_cache_has_room(
    cache: BlockCache,
) -> None:
    order = np.random.default_rng(0)
    hits = [read(cache, KEYS[0], order.permutation(blocks(CORPUS))) for _ in range(3)]
    assert hits[0] == 0
    assert min(hits[1:]) >= 0.85 * CORPUS / 2


def test_blocks_on_their_way_to_readers_stay_until_these_have_read_them(cache: BlockCache) -> None:
    for number in blocks(10):
        cache.put(KEYS[0], number, bytes(BLOCK_BYTES))
    read(cache, KEYS[1], blocks(3 * CORPUS))
    assert kept(cache, KEYS[0]) == [*blocks(10)]
    assert read(cache, KEYS[0], blocks(10)) == 10


def test_a_file_stays_until_its_last_block_was_read(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, CORPUS * BLOCK_BYTES)
    read(cache, KEYS[2], blocks(CORPUS))
    for key in KEYS[:2]:
        cache.put(key, 0, bytes(2 * BLOCK_BYTES))
        assert cache.get(key, 0) is not None
    assert cache.get(KEYS[1], 1) is not None
    read(cache, KEYS[2], blocks(2 * CORPUS)[CORPUS:])
    assert [cache.has(key, 1) for key in KEYS[:2]] == [True, False]


@pytest.mark.parametrize("mark", [True, False])
def test_a_file_that_another_part_needs_stays(cache: BlockCache, mark: bool) -> None:
    read(cache, KEYS[1], blocks(CORPUS))
    cache.put(KEYS[0], 0, bytes(2 * BLOCK_BYTES))
    for number in (0, 1):
        assert cache.get(KEYS[0], number, mark=mark) is not None
    read(cache, KEYS[2], blocks(CORPUS))
    assert cache.has(KEYS[0], 1) != mark


def test_two_runs_keep_the_corpus_of_the_one_with_another_epoch_to_come(cache: BlockCache) -> None:
    """The first one reads its corpus once, and fills the cache."""
    read(cache, KEYS[0], blocks(CORPUS))
    cache.room.keep("second", lambda: [KEYS[1]])
    read(cache, KEYS[1], blocks(CORPUS // 3))
    read(cache, KEYS[0], blocks(CORPUS))
    assert kept(cache, KEYS[1]) == [*blocks(CORPUS // 3)]


def test_a_corpus_stays_for_its_run_however_long_an_epoch_is_and_no_longer(
    cache: BlockCache,
) -> None:
    read(cache, KEYS[0], blocks(CORPUS // 2 - 4))
    before = kept(cache, KEYS[0])
    age(cache, 3 * DAY_S)
    cache.room.keep("first", lambda: [KEYS[0], KEYS[2]])
    read(cache, KEYS[1], blocks(CORPUS))
    assert len(kept(cache, KEYS[0])) >= 0.9 * len(before)
    age(cache, 3 * DAY_S)  # its list too
    read(cache, KEYS[2], blocks(CORPUS))
    assert kept(cache, KEYS[0]) == kept(cache, KEYS[1]) == []


def test_a_list_is_shown_to_be_in_use_and_other_processes_take_it(cache: BlockCache) -> None:
    cache.room.keep("first", lambda: [KEYS[0]])
    (path,) = (cache.folder / "lists").iterdir()
    age(cache, 3 * DAY_S)
    Room(cache.folder, cache.limit_bytes).keep("first", lambda: pytest.fail("it is there"))
    assert time.time() - path.stat().st_mtime < DAY_S / 2


def test_derived_content_stays_beside_files_that_were_read(cache: BlockCache) -> None:
    """All of it is made anew if a block is missing."""
    read(cache, DERIVED, blocks(10))
    read(cache, KEYS[2], blocks(3 * CORPUS))
    assert kept(cache, DERIVED) == [*blocks(10)]
    other = f"{KEYS[1]}m"
    read(cache, other, blocks(30))
    read(cache, KEYS[2], blocks(3 * CORPUS)[CORPUS:])
    assert kept(cache, DERIVED) == []
    assert kept(cache, other) == [*blocks(30)]


def test_derived_content_belongs_to_the_list_of_its_file() -> None:
    files = [MemoryFile(np.zeros(5, np.uint8)) for _ in range(2)]
    for number, file in enumerate(files):
        file.listed = FileInfo(f"s3://b/{number}", 5)
        file.version = ("s3://b", number)
    keys = [derived_key(file, what) for file in files for what in "xyz"]
    assert len({*keys}) == 6
    listed = [np.array([FileInfo("s3://b/0", 5).key[:16]], "S16")]
    entries = [Entry(2, 1, 5, f"/{key}-0") for key in keys]
    assert order_of_removal(entries, listed, 10, 100)[:3] == entries[3:]


@given(st.data())
def test_every_file_goes_once_and_files_of_no_run_go_first(data: st.DataObject) -> None:
    times = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9))
    drawn = data.draw(st.lists(times, min_size=1, max_size=20))
    keys = st.sampled_from([*KEYS, DERIVED])
    files = [
        Entry(used, made, size, f"/x/{data.draw(keys)}-{number}")
        for number, (used, made, size) in enumerate(drawn)
    ]
    quota = data.draw(st.integers(16, 300))
    lists = [np.array([KEYS[0][:16]], "S16"), np.array([], "S16")]
    order = order_of_removal(files, lists, 10, quota)
    assert sorted(order) == sorted(files)
    plain = [file for file in order if file.key != DERIVED]
    unused = [file.last_ns < 10 and file.key != KEYS[0] for file in plain]
    assert unused == sorted(unused, reverse=True)
    # Of the others those go that were read, but for some that were read last.
    later = plain[sum(unused) :]
    stayed = {*later[len(later) - sum(file.used_ns <= file.made_ns for file in later) :]}
    assert sum(file.num_bytes for file in stayed if file.used_ns > file.made_ns) <= quota // 16
    derived = [file for file in order if file.key == DERIVED]
    assert derived == sorted(derived, key=lambda file: file.last_ns)


def test_a_full_disk_makes_room_in_a_cache_that_is_below_its_limit(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1 << 40)
    for number in range(8):
        cache.put(KEYS[0], number, bytes(BLOCK_BYTES))
    cache.room.make(cache.path(KEYS[0], 0))
    assert len(cache.missing(KEYS[0], 0, 8)) in (4, 5)


def test_small_files_cost_the_same_however_many_there_are(tmp_path: Path) -> None:
    looks: list[int] = []

    class Counted(Room):
        def look(self, zone: int, *, is_full: bool = False) -> None:
            looks.append(zone)
            super().look(zone, is_full=is_full)

    cache = BlockCache(tmp_path, 64 << 30)
    cache.room = Counted(tmp_path, 64 << 30)
    for number in range(3000):
        cache.put(f"{number}", 0, b"x" * 2000)
    assert len(looks) < 30
