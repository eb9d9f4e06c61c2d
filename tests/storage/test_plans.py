"""A process fetches along the plans of its readers, and no more than they allow."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import threads
from streampack.file_info import FileInfo, Range
from streampack.storage import blocks, growing, locks, plans
from streampack.storage.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockCache
from streampack.storage.plans import FIRST_BLOCKS, Plans, Window
from streampack.storage.storage import Storage
from streampack.storage.turns import in_turns
from tests.support.forked import in_fork
from tests.support.raw_server import Connection, raw_server
from tests.support.read_ahead import WAIT_S, fetched_blocks, settle
from tests.support.servers import HTTPServer

BLOCKS = 150
DATA = np.arange((BLOCKS * BLOCK_BYTES + 100) // 4, dtype=np.uint32).tobytes()


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
        file.plan([(0, len(DATA))])
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
        file.plan([(0, len(DATA))])
        settle()
        assert fetched_blocks(http) == list(range(FIRST_BLOCKS))
        stream.read(3 * BLOCK_BYTES)
        settle()
        assert 3 + 3 <= len(fetched_blocks(http)) <= 3 + 2 * 3
    http.requests.clear()
    with storage.open(url) as file, file.stream(70 * BLOCK_BYTES) as stream:
        file.plan([(70 * BLOCK_BYTES, 90 * BLOCK_BYTES)])
        stream.read(20 * BLOCK_BYTES)
        settle()
        assert fetched_blocks(http) == list(range(70, 90))


@pytest.mark.parametrize("limit", [0, 8])
def test_all_readers_together_hold_no_more_than_the_limit(
    http: HTTPServer, tmp_path: Path, url: str, limit: int
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=limit * BLOCK_BYTES)
    (listed,) = storage.list(url)
    starts = [start * BLOCK_BYTES for start in range(0, BLOCKS, 50)]
    with storage.open(url) as file:
        for start in starts:
            storage.plan(start, [[Range(listed, start, start + 50 * BLOCK_BYTES)]], 1)
        streams = [file.stream(start) for start in starts]
        for turn in range(1, 20):
            for start, stream in zip(starts, streams, strict=True):
                at = start + (turn - 1) * BLOCK_BYTES
                assert stream.read(BLOCK_BYTES) == DATA[at : at + BLOCK_BYTES]
            settle()
            held = len(fetched_blocks(http)) - len(streams) * turn
            assert held <= (limit + EXTENT_BLOCKS if limit else 0)
    assert len(fetched_blocks(http)) == len(set(fetched_blocks(http)))


def test_nothing_is_fetched_ahead_of_a_closed_file(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        file.plan([(0, len(DATA))])
        stream.read(20 * BLOCK_BYTES)
    settle()
    before = len(fetched_blocks(http))
    with storage.open(url) as file:
        assert file.read(0, 10) == DATA[:10]
    settle()
    assert len(fetched_blocks(http)) == before < BLOCKS


def test_ranges_side_by_side_are_fetched_whole_and_each_block_once(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    half = BLOCK_BYTES // 2
    ranges = [(at, at + 5 * half) for at in range(20 * BLOCK_BYTES, 60 * BLOCK_BYTES, 5 * half)]
    with storage.open(url) as file:
        file.plan(ranges)
        for start, stop in ranges:
            assert file.read(start, stop) == DATA[start:stop]
        settle()
    assert fetched_blocks(http) == [*range(20, 60)]


def test_a_reader_that_passes_over_the_beginning_of_its_plan_is_read_ahead_of(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    """Blocks that it has passed would count for ever."""
    with storage.open(url) as file:
        file.plan([(0, len(DATA))])
        settle()
        for number in range(FIRST_BLOCKS, 100):
            file.read(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
        settle()
        assert len(fetched_blocks(http)) > BLOCKS - EXTENT_BLOCKS


def test_blocks_that_a_plan_failed_to_fetch_are_fetched_in_one_request_by_their_reader(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        http.fail_next = 2
        file.plan([(0, FIRST_BLOCKS * BLOCK_BYTES)])
        settle()
        assert len(http.requests) >= 2
        http.requests.clear()
        assert stream.read(FIRST_BLOCKS * BLOCK_BYTES) == DATA[: FIRST_BLOCKS * BLOCK_BYTES]
    assert http.count("GET") <= 2


def test_parts_that_are_read_later_leave_half_of_the_limit_to_readers(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=16 * BLOCK_BYTES)
    (listed,) = storage.list(url)
    for part in range(3):
        ranges = Range(listed, part * 30 * BLOCK_BYTES, (part + 1) * 30 * BLOCK_BYTES)
        storage.plan(part, [[ranges]], 1, later=True)
    settle()
    later = {*fetched_blocks(http)}
    assert 8 <= len(later) < 8 + FIRST_BLOCKS
    with storage.open(url) as file:
        file.plan([(100 * BLOCK_BYTES, 110 * BLOCK_BYTES)])
        settle()
    assert {*fetched_blocks(http)} - later == {*range(100, 100 + FIRST_BLOCKS)}


class Asked:
    """Plans over files of memory, which note the blocks that were asked for, in order."""

    def __init__(self) -> None:
        self.blocks: list[tuple[str, int]] = []
        self.plans = Plans(self._fetch, 1 << 40)

    def _fetch(self, file: FileInfo, first: int, end: int) -> None:
        self.blocks += [(file.key, number) for number in range(first, end)]

    def plan(self, name: str, blocks: int) -> FileInfo:
        """Plan a file of so many blocks."""
        file = FileInfo(name, blocks * BLOCK_BYTES)
        self.plans.plan(name, [(file, 0, file.num_bytes)])  # type: ignore[list-item]
        return file


class Clock:
    """A clock that a test sets; `looks` counts who reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.looks = 0.0, threading.Semaphore(0)
        beats = SimpleNamespace(monotonic=lambda: self.now_s, sleep=time.sleep)
        monkeypatch.setattr(threads, "_threads", threading.local())
        monkeypatch.setattr(threads, "time", beats)
        monkeypatch.setattr(plans, "time", self)
        monkeypatch.setattr(locks, "time", self)

    def monotonic(self) -> float:
        self.looks.release()
        return self.now_s


@pytest.mark.parametrize("comes", [True, False])
def test_a_block_on_its_way_is_waited_for_as_long_as_bytes_come(
    comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, plans = Clock(monkeypatch), Plans(lambda *_: True, 0)
    assert plans.claim("a", 0, 1, 5.0) == 1
    ends: list[int] = []
    reader = threading.Thread(target=lambda: ends.append(plans.claim("a", 0, 1, 5.0)))
    reader.start()
    for _ in range(2):
        assert clock.looks.acquire(timeout=WAIT_S)
        if comes:
            with plans._lock:
                clock.now_s += 4
                threads.pulse().beat()
                plans._done.notify_all()
        else:
            clock.now_s = 6
    if comes:
        assert clock.looks.acquire(timeout=WAIT_S)
        plans.release("a", 0, 1)
    reader.join(WAIT_S)
    assert ends == [1 if comes else 0]  # the end of the blocks that it claims


def test_an_interrupt_of_a_thread_that_takes_a_lock_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = len(locks._held())
    with monkeypatch.context() as patch:
        patch.setattr(locks.Lock, "is_current", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            locks.Lock.acquire(tmp_path / "lock")
    assert len(locks._held()) == held  # of a forked child, which would close other descriptors
    lock = locks.Lock.acquire(tmp_path / "lock")
    assert lock is not None
    lock.remove()


def test_an_interrupt_of_a_thread_that_has_taken_a_lock_of_blocks_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BlockCache(tmp_path, 1 << 30)

    def interrupted() -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(blocks, "pulse", interrupted)
    with pytest.raises(KeyboardInterrupt), cache.fetching("a", 0, 4):
        pass
    with BlockCache(tmp_path, 1 << 30).fetching("a", 0, 4) as stop:
        assert stop == 4
    with cache.fetching("a", 0, 4) as stop:
        assert stop == 4


def test_the_holder_of_a_lock_is_waited_for_as_long_as_it_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path = Clock(monkeypatch), tmp_path / "lock"
    lock = locks.Lock.acquire(path)
    assert lock is not None
    assert locks.Lock.acquire(path) is None
    patience = locks.Patience(path, 5.0)
    for clock.now_s in (4, 8, 12):
        os.utime(path, (0, clock.now_s))  # as another beat
        assert not patience.is_over()
    threads.pulse().seen.append(lock.touch)
    clock.now_s = 16
    threads.pulse().beat()
    threads.pulse().seen.clear()
    assert path.stat().st_mtime > 12
    assert not patience.is_over()
    clock.now_s = 22
    assert patience.is_over()
    lock.remove()


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False])
def test_bytes_that_come_slowly_are_fetched_once_by_threads_and_processes(
    ranges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 * BLOCK_BYTES)

    def respond(connection: Connection) -> None:
        asked = re.findall(r"(?i)range: bytes=(\d+)-(\d+)", connection.head) if ranges else []
        first, last = map(int, asked[0]) if asked else (0, len(data) - 1)
        place = f"Content-Range: bytes {first}-{last}/{len(data)}\n" if asked else ""
        place += f'Content-Length: {last + 1 - first}\nETag: "a"\n'
        connection.send(f"HTTP/1.1 {206 if asked else 200} OK\n{place}\n")
        for at in range(first, last + 1, 4096):
            if connection.method == "HEAD" or connection.stopping.wait(0.05):
                return
            connection.send(data[at : min(at + 4096, last + 1)])

    monkeypatch.setattr(locks, "PATIENCE_S", 6.0)
    monkeypatch.setattr(growing, "PATIENCE_S", 6.0)
    with raw_server(respond) as server:
        storage = Storage(cache_dir=tmp_path / "cache")

        def read() -> bytes:
            with storage.open(f"{server.url}/a.bin") as file:
                file.plan([(0, file.num_bytes)])
                return file.read(0, file.num_bytes)

        storage.read_range(f"{server.url}/a.bin", 0, 1)  # a fork must not interrupt an import
        read_here: list[bytes] = []
        threads = [threading.Thread(target=lambda: read_here.append(read())) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert in_fork(read) == data
        for thread in threads:
            thread.join()
    assert read_here == [data, data]
    parts = re.findall(r"(?i)range: bytes=(\d+)-(\d+)", "\n".join(server.requests))
    if ranges:
        assert sum(int(last) + 1 - int(first) for first, last in parts) == len(data) + 1
    else:
        whole = [r for r in server.requests if r.startswith("GET") and "ange: bytes" not in r]
        assert len(whole) == 1


def test_each_plan_has_its_first_block_before_any_has_its_second() -> None:
    asked, held = Asked(), threading.Event()
    for _ in range(16):  # each thread has its task until all are planned
        asked.plans.soon(lambda: held.wait(WAIT_S))
    files = [asked.plan(str(number), 40) for number in range(100)]
    held.set()
    settle()
    firsts = [number for _, number in asked.blocks[: len(files) - 16]]
    assert firsts == [0] * len(firsts)
    assert sorted(asked.blocks) == sorted((f.key, n) for f in files for n in range(FIRST_BLOCKS))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 4))
def test_turns_give_each_byte_of_all_pieces_once_and_in_order(
    blocks: list[int], width: int
) -> None:
    files = [FileInfo(str(number), 1 << 40) for number in range(len(blocks))]
    pieces = [
        [Range(file, 7, 7 + count * BLOCK_BYTES), Range(file, 1 << 30, (1 << 30) + 9)]
        for file, count in zip(files, blocks, strict=True)
    ]
    given_: dict[str, list[tuple[int, int]]] = {file.path: [] for file in files}
    for file, start, stop in in_turns(pieces, width):
        own = given_[file.path]
        if own and own[-1][1] == start:
            start = own.pop()[0]
        own.append((start, stop))
    expected = [[(start, stop) for _, start, stop in piece] for piece in pieces]
    assert [*given_.values()] == expected


@pytest.mark.parametrize(
    ("rate", "delay_s", "least", "most"),
    [(200, 0.15, 90, 200), (200, 0.03, 18, 200), (8, 0.15, 16, 16), (4000, 0.3, 256, 256)],
    ids=["far", "near", "slow", "wide"],
)
def test_a_line_is_kept_full_and_a_block_waits_for_a_second_of_it_at_most(
    rate: float, delay_s: float, least: int, most: int
) -> None:
    window, blocks = Window(), set()
    for rounds in range(1000):
        took_s = max(delay_s, window._blocks / rate)
        window._delay_s = min(window._delay_s, took_s)
        window._adapt(window._blocks / took_s)
        if rounds >= 5:
            blocks.add(window._blocks)
    assert least <= min(blocks) <= max(blocks) <= most
