"""A process fetches ahead of its readers, at their rate and within its limit."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from streampack.storage import read_ahead as ahead_module
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.file_info import FileInfo
from streampack.storage.read_ahead import FIRST_BLOCKS, MOST_BLOCKS, Hint, ReadAhead
from streampack.storage.storage import Storage
from tests.support.read_ahead import WAIT_S, fetched_blocks, settle
from tests.support.servers import HTTPServer

BLOCKS = 150
DATA = np.random.default_rng(1).bytes(BLOCKS * BLOCK_BYTES + 99)


@pytest.fixture
def url(http: HTTPServer) -> str:
    (http.folder / "a.bin").write_bytes(DATA)
    return f"{http.url}/a.bin"


def test_requests_of_one_reader_overlap_and_give_each_block_once(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    together = threading.Barrier(3)

    def gate(_: str) -> None:
        together.wait(WAIT_S)
        http.gate = None

    with storage.open(url) as file, file.stream() as stream:
        read = stream.read(12 * BLOCK_BYTES)
        http.gate = gate
        read += stream.read()
        assert read == DATA
    assert not together.broken
    settle()
    assert fetched_blocks(http) == list(range(BLOCKS + 1))


def test_a_reader_that_used_little_holds_little_and_one_at_its_end_nothing(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        stream.read(10)
        settle()
        assert len(fetched_blocks(http)) <= 2 * FIRST_BLOCKS + MOST_BLOCKS
    http.requests.clear()
    with storage.open(url) as file, file.stream(90 * BLOCK_BYTES) as stream:
        stream.seek(70 * BLOCK_BYTES)
        stream.read(20 * BLOCK_BYTES)
        settle()
        assert fetched_blocks(http) == list(range(70, 90))


@pytest.mark.parametrize("limit", [0, 8])
def test_all_readers_together_hold_no_more_than_the_limit(
    http: HTTPServer, tmp_path: Path, url: str, limit: int
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=limit * BLOCK_BYTES)
    starts = range(0, BLOCKS, 50)
    with storage.open(url) as file:
        streams = [file.stream(start * BLOCK_BYTES + 50 * BLOCK_BYTES) for start in starts]
        for start, stream in zip(starts, streams, strict=True):
            stream.seek(start * BLOCK_BYTES)
        for turn in range(1, 20):
            for start, stream in zip(starts, streams, strict=True):
                at = (start + turn - 1) * BLOCK_BYTES
                assert stream.read(BLOCK_BYTES) == DATA[at : at + BLOCK_BYTES]
            settle()
            missed = FIRST_BLOCKS if limit else 1  # by a reader that waited
            held = len(fetched_blocks(http)) - len(streams) * turn
            assert held <= max(limit, len(streams) * missed) + MOST_BLOCKS * bool(limit)
    assert len(fetched_blocks(http)) == len(set(fetched_blocks(http)))


def test_nothing_is_fetched_ahead_of_a_closed_file(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        stream.read(20 * BLOCK_BYTES)
    settle()
    before = len(fetched_blocks(http))
    with storage.open(url) as file:
        assert file.read(0, 10) == DATA[:10]
    settle()
    assert len(fetched_blocks(http)) == before < BLOCKS


def test_ranges_hinted_side_by_side_are_fetched_whole_and_each_block_once(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    (listed,) = storage.list(url)
    half = BLOCK_BYTES // 2
    for begin in range(20 * BLOCK_BYTES, 60 * BLOCK_BYTES, 5 * half):
        storage.prefetch(listed, begin, begin + 5 * half)
    settle()
    assert fetched_blocks(http) == [*range(20, 60)]


def test_the_first_blocks_of_all_hints_come_before_the_others() -> None:
    file, starts = FileInfo("memory://a", 1 << 30, ""), []
    added, all_began = threading.Event(), threading.Barrier(16)
    ahead = ReadAhead(lambda file, first, end: None, 0)

    def begin(file: FileInfo, start: int, stop: int) -> None:
        starts.append(start // BLOCK_BYTES)
        all_began.wait(WAIT_S)

    for _ in range(all_began.parties):  # each thread has its task
        ahead.add_hint(Hint(lambda *range: added.wait(WAIT_S), file, 0, 1))
    hinted = range(0, 100 * all_began.parties, 100)
    for block in hinted:
        stop = (block + 3 * FIRST_BLOCKS) * BLOCK_BYTES
        ahead.add_hint(Hint(begin, file, block * BLOCK_BYTES, stop))
    added.set()
    settle()
    assert sorted(starts[: len(hinted)]) == [*hinted]
    assert sorted(starts[len(hinted) :]) == [at + n * FIRST_BLOCKS for at in hinted for n in (1, 2)]


def test_later_blocks_of_a_few_of_many_hints_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges of earlier hints are read by then."""
    monkeypatch.setattr(ahead_module, "_THREADS", 1)
    most = ahead_module._MOST_HINTS
    file, starts, step = FileInfo("memory://a", 1 << 40, ""), [], 100 * BLOCK_BYTES
    ahead = ReadAhead(lambda file, first, end: None, 0)

    def begin(file: FileInfo, start: int, stop: int) -> None:
        starts.append(start)
        if start % step == 0 and start < 2 * most * step:
            add(start + step)

    def add(start: int) -> None:
        ahead.add_hint(Hint(begin, file, start, start + 2 * FIRST_BLOCKS * BLOCK_BYTES))

    add(0)
    settle()
    rests = [start // step for start in starts if start % step]
    assert rests == [*range(most + 1, 2 * most + 1)]


def test_a_reader_of_hinted_blocks_fetches_ahead_before_one_is_missing(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    (listed,) = storage.list(url)
    storage.prefetch(listed, 0, 2 * MOST_BLOCKS * BLOCK_BYTES)
    settle()
    assert fetched_blocks(http) == list(range(2 * MOST_BLOCKS))
    with storage.open(url) as file, file.stream() as stream:
        stream.read(MOST_BLOCKS * BLOCK_BYTES)
        settle()
        assert len(fetched_blocks(http)) == 2 * MOST_BLOCKS
        stream.read((MOST_BLOCKS - 1) * BLOCK_BYTES)
        settle()
        assert len(fetched_blocks(http)) > 2 * MOST_BLOCKS
