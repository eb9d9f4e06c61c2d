"""Remote files are read by range, in blocks that the processes of a host share."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.errors import StateError, StorageError
from streampack.file_info import FileInfo
from streampack.storage.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockCache
from streampack.storage.storage import Storage
from tests.support.raw_server import Connection, raw_server
from tests.support.servers import HTTPServer, S3Server

FORK = multiprocessing.get_context("fork")
WAIT_S = 60.0
MANY = 40 * BLOCK_BYTES + 123
DATA = np.random.default_rng(0).bytes(MANY)
MARKED = b"".join(bytes([number]) * BLOCK_BYTES for number in range(64))


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
    both = first.stat().st_size + second.stat().st_size
    content = first.read_bytes()
    first.write_bytes(b"damage!!!" + content[9:])
    second.write_bytes(b"")
    again = Storage(cache_dir=storage.cache_dir)
    _read_blocks(again, again.list(url)[0])
    before = fetched(http)
    assert MANY + 2 * BLOCK_BYTES <= before <= MANY + both
    again = Storage(cache_dir=storage.cache_dir)
    _read_blocks(again, again.list(url)[0])
    assert fetched(http) == before


def test_a_file_of_the_cache_that_is_cut_or_has_other_checksums_is_not_used(
    tmp_path: Path,
) -> None:
    content = DATA[: 3 * BLOCK_BYTES + 77]
    BlockCache(tmp_path, 1 << 40).put("a", 16, content)
    path = BlockCache(tmp_path, 1 << 40).path("a", 16)
    stored = path.read_bytes()
    for damaged in (
        stored[:-1],
        stored[:-4],
        stored[:-BLOCK_BYTES],
        stored + b"x",
        stored[:3],
        b"",
    ):
        path.write_bytes(damaged)
        cache = BlockCache(tmp_path, 1 << 40)
        assert all(cache.get("a", number) is None for number in range(15, 21))
    for place in (len(stored) - 1, len(stored) - 13, len(stored) - 17):
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :])
        cache = BlockCache(tmp_path, 1 << 40)
        views = [cache.get("a", number) for number in range(16, 20)]
        assert None in views
        for number, view in enumerate(views):
            assert view is None or view == content[number * BLOCK_BYTES :][:BLOCK_BYTES]


@given(st.lists(st.tuples(st.integers(0, 47), st.integers(1, 16)), max_size=12))
def test_the_cache_has_the_blocks_that_were_put(puts: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, files = BlockCache(Path(folder), 1 << 40), dict[int, int]()
        for first, length in puts:
            end = min(first + length, first // EXTENT_BLOCKS * EXTENT_BLOCKS + EXTENT_BLOCKS)
            cache.put("a", first, MARKED[first * BLOCK_BYTES : end * BLOCK_BYTES])
            files[first] = end  # in place of another file with this beginning
        there = {number for first, end in files.items() for number in range(first, end)}
        for each in (cache, BlockCache(Path(folder), 1 << 40)):
            assert each.missing("a", 0, 64) == [n for n in range(64) if n not in there]
            for number in range(64):
                view = each.get("a", number, BLOCK_BYTES)
                assert (view is not None) == (number in there)
                assert view is None or view == MARKED[number * BLOCK_BYTES :][:BLOCK_BYTES]


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


def test_processes_that_share_a_small_cache_fetch_their_parts_once(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    storages = [
        Storage(cache_dir=tmp_path / "cache", cache_limit_bytes=16 * BLOCK_BYTES) for _ in range(3)
    ]
    bounds = [BLOCK_BYTES * 13 * part for part in range(4)]
    with ExitStack() as stack:
        readers = []
        for storage, low, high in zip(storages, bounds, bounds[1:], strict=False):
            file = stack.enter_context(storage.open(url))
            file.plan([(low, high)])
            readers.append((low, stack.enter_context(file.stream(low))))
        for at in range(0, bounds[1], BLOCK_BYTES):
            for low, stream in readers:
                assert stream.read(BLOCK_BYTES) == DATA[low + at :][:BLOCK_BYTES]
    assert fetched(http) <= bounds[-1] + 2 * BLOCK_BYTES


def test_an_object_that_is_replaced_is_named_at_any_position_of_the_reader(
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
