"""Remote files are read by range, in blocks that the processes of a host share."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from streampack.errors import StateError, StorageError
from streampack.storage.blocks import BLOCK_BYTES, BlockCache
from streampack.storage.file_info import FileInfo
from streampack.storage.storage import Storage
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import HTTPServer, S3Server

FORK = multiprocessing.get_context("fork")
WAIT_S = 60.0
MANY = 40 * BLOCK_BYTES + 123
DATA = np.random.default_rng(0).bytes(MANY)


@pytest.fixture
def url(http: HTTPServer) -> str:
    (http.folder / "a.bin").write_bytes(DATA)
    return f"{http.url}/a.bin"


def blocks(storage: Storage) -> list[Path]:
    assert storage.cache_dir is not None
    return sorted(storage.cache_dir.glob("blocks/*/[!.]*"))


def fetched(http: HTTPServer) -> int:
    """Bytes of the ranges that were asked for."""
    spans = [r.range.removeprefix("bytes=").split("-") for r in http.requests if r.range]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def test_a_range_that_is_read_once_is_fetched_exactly_and_not_kept(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    assert storage.read_range(url, 7, 99) == DATA[7:99]
    assert fetched(http) == 92
    assert blocks(storage) == []


def test_only_the_blocks_of_a_range_are_fetched_and_only_once(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    begin, end = 5 * BLOCK_BYTES - 7, 7 * BLOCK_BYTES + 9
    for _ in range(2):
        with storage.open(url) as file:
            assert file.num_bytes == MANY
            assert file.array(begin, end).tobytes() == DATA[begin:end]
            assert file.read(MANY - 200, MANY + 50) == DATA[-200:]
    assert fetched(http) == 4 * BLOCK_BYTES + 123 + BLOCK_BYTES


def test_a_stream_gives_the_file_from_any_place_and_fetches_no_more_than_was_planned(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream(BLOCK_BYTES + 3) as stream:
        file.plan([(BLOCK_BYTES, 19 * BLOCK_BYTES)])
        assert stream.read(12) == DATA[BLOCK_BYTES + 3 : BLOCK_BYTES + 15]
        rest = stream.read(17 * BLOCK_BYTES)
        assert rest == DATA[BLOCK_BYTES + 15 :][: len(rest)]
        assert stream.tell() == 18 * BLOCK_BYTES + 15
    assert fetched(http) <= 19 * BLOCK_BYTES
    with storage.open(url) as file, file.stream() as stream:
        assert stream.read() == DATA
        assert stream.read(1) == b""
    assert fetched(http) == MANY


def test_reading_forwards_fetches_ahead_in_few_requests(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        file.plan([(0, MANY)])
        while stream.read(1 << 16):
            pass
    assert fetched(http) == MANY
    assert http.count("GET") <= 24


def _read_blocks(storage: Storage, listed: FileInfo) -> None:
    with storage.open(listed) as file, file.stream() as stream:
        assert stream.read() == DATA


def test_processes_forked_after_their_parent_has_read_share_fetched_blocks(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    (listed,) = storage.list(url)
    with storage.open(listed) as file:
        assert file.read(0, 10) == DATA[:10]
    children = [FORK.Process(target=_read_blocks, args=(storage, listed)) for _ in range(2)]
    for child in children:
        child.start()
    _read_blocks(storage, listed)
    for child in children:
        child.join(WAIT_S)
    assert [child.exitcode for child in children] == [0, 0]
    assert fetched(http) == MANY


def test_workers_forked_after_the_parent_has_listed_and_read_read_a_bucket(
    s3: S3Server, storage: Storage
) -> None:
    s3.put("many/a.bin", DATA)
    (listed,) = storage.list("s3://bucket/many/*.bin")
    with storage.open(listed) as file:
        assert file.read(0, 10) == DATA[:10]
    children = [FORK.Process(target=_read_blocks, args=(storage, listed)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(WAIT_S)
    assert [child.exitcode for child in children] == [0, 0]


def test_a_damaged_block_is_refetched(http: HTTPServer, storage: Storage, url: str) -> None:
    _read_blocks(storage, storage.list(url)[0])
    first, second, *_ = [path for path in blocks(storage) if path.stat().st_size > BLOCK_BYTES]
    first.write_bytes(first.read_bytes()[:-9] + b"damage!!!")
    second.write_bytes(b"")
    _read_blocks(storage, storage.list(url)[0])
    assert fetched(http) == MANY + 2 * BLOCK_BYTES
    _read_blocks(storage, storage.list(url)[0])
    assert fetched(http) == MANY + 2 * BLOCK_BYTES


def test_who_is_killed_while_fetching_stops_nobody(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    begun, release = threading.Event(), threading.Event()

    def gate(_: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    (listed,) = storage.list(url)
    http.gate = gate
    child = FORK.Process(target=_read_blocks, args=(storage, listed))
    child.start()
    assert begun.wait(WAIT_S)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(WAIT_S)
    release.set()
    http.gate = None
    _read_blocks(storage, listed)


def test_a_cache_that_is_removed_while_a_file_is_read_is_refilled(
    storage: Storage, url: str
) -> None:
    with storage.open(url) as file, file.stream() as stream:
        for number in range(0, MANY, 1 << 20):
            assert stream.read(1 << 20) == DATA[number : number + (1 << 20)]
            assert storage.cache_dir is not None
            shutil.rmtree(storage.cache_dir, ignore_errors=True)


def test_a_cache_that_cannot_be_written_is_named(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    (tmp_path / "file").write_text("")
    storage = Storage(cache_dir=tmp_path / "file")
    with pytest.raises(StorageError) as caught:
        _read_blocks(storage, storage.list(url)[0])
    assert caught.value.setting == "cache_dir"


def test_blocks_keep_the_limit_of_the_cache_and_mapped_ones_stay_readable(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    limit = 12 * BLOCK_BYTES
    storage = Storage(cache_dir=tmp_path / "cache", cache_limit_bytes=limit)
    with storage.open(url) as file:
        first = file.array(0, BLOCK_BYTES)
        for begin in range(0, MANY, BLOCK_BYTES):
            assert file.read(begin, begin + 99) == DATA[begin:][:99]
            assert sum(path.stat().st_size for path in blocks(storage)) <= limit + BLOCK_BYTES
        assert first.tobytes() == DATA[:BLOCK_BYTES]


def test_the_block_opened_longest_ago_is_evicted_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 10 * BLOCK_BYTES)
    block = bytes(BLOCK_BYTES)
    for number in range(8):
        cache.put("a", number, block)
        os.utime(cache.path("a", number), (number, number))
    assert cache.get("a", 0, BLOCK_BYTES) is not None
    cache.put("a", 8, block)
    cache.put("a", 9, block)
    cache.put("a", 10, block)
    assert cache.has("a", 0)
    assert not cache.has("a", 1)


def test_an_object_that_is_replaced_is_named_wherever_reading_is(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    (listed,) = storage.list(url)
    with storage.open(listed) as file:
        assert file.read(0, 10) == DATA[:10]
        for other in (DATA[::-1], DATA[:-1], DATA + b"x", b"short"):
            (http.folder / "a.bin").write_bytes(other)
            with pytest.raises(StateError) as caught:
                file.read(30 * BLOCK_BYTES, 30 * BLOCK_BYTES + 5)
            assert caught.value.path == url
        assert file.read(0, 10) == DATA[:10]  # of the version that was listed


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 4 * BLOCK_BYTES)
    cache.put("a", 0, bytes(BLOCK_BYTES))
    folder = cache.path("a", 0).parent
    for name in (".b-1", ".c-0.lock"):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (0, 0))
    for number in range(1, 8):
        cache.put("a", number, bytes(BLOCK_BYTES))
    assert [path.name for path in tmp_path.glob("*/.*")] == []


def test_a_server_without_ranges_is_read_whole_with_one_line(
    http: HTTPServer, storage: Storage, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    http.ranges = False
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            _read_blocks(storage, storage.list(url)[0])
    assert http.count("GET") == 4  # the range that was not sent three times, and the file
    assert len([m for m in caplog.messages if "whole" in m]) == 1


def test_bytes_that_arrive_one_by_one_are_the_same(tmp_path: Path) -> None:
    body = DATA[:3000]

    def respond(connection: Connection) -> None:
        if connection.method == "HEAD":
            connection.answer("200 OK", 'Content-Length: 3000\nETag: "a"\n')
            return
        connection.send(
            "HTTP/1.1 206 Partial\nContent-Range: bytes 0-2999/3000\nContent-Length: 3000\n"
            'ETag: "a"\nConnection: close\n\n'
        )
        for number in range(3000):
            connection.send(body[number : number + 1])

    with raw_server(respond) as server:
        storage = Storage(cache_dir=tmp_path / "cache")
        with storage.open(f"{server.url}/a.bin") as file, file.stream() as stream:
            assert stream.read() == body


def test_small_files_cost_the_same_however_many_there_are(tmp_path: Path) -> None:
    looks: list[int] = []

    class Counted(BlockCache):
        def _look(self, zone: int, *, everything: bool = False) -> None:
            looks.append(zone)
            super()._look(zone, everything=everything)

    cache = Counted(tmp_path, 64 << 30)
    for number in range(3000):
        cache.put(f"{number}", 0, b"x" * 2000)
    assert len(looks) < 30
