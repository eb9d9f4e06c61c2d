"""Servers and protocols without ranges: whole files, once per host, in the cache's blocks."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streampack.errors import StateError, StorageError
from streampack.storage import growing, locks
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.read_ahead import settle
from tests.support.servers import HTTPServer

FORK = multiprocessing.get_context("fork")
WAIT_S = 60.0
SIZE = 9 * BLOCK_BYTES + 123
DATA = np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def url(http: HTTPServer) -> str:
    http.ranges = False
    (http.folder / "a.bin").write_bytes(DATA)
    return f"{http.url}/a.bin"


def blocks(storage: Storage) -> list[Path]:
    """The blocks in the cache, without the size of a whole file, which has the number -1."""
    assert storage.cache_dir is not None
    files = storage.cache_dir.glob("blocks/*/[!.]*")
    return sorted(file for file in files if not file.name.endswith("--1"))


def read(storage: Storage, url: str) -> None:
    with storage.open(url) as file, file.stream() as stream:
        assert stream.read() == DATA


def test_a_file_is_downloaded_once_for_all_processes_with_one_line_for_the_server(
    http: HTTPServer, storage: Storage, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        children = [FORK.Process(target=read, args=(storage, url)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(WAIT_S)
        assert [child.exitcode for child in children] == [0] * 3
        for _ in range(2):
            read(storage, url)
    asked = [request.range for request in http.requests if request.method == "GET"]
    assert asked.count(None) == 1
    assert sum(map(len, map(Path.read_bytes, blocks(storage)))) == SIZE + 10 * 8
    assert len([m for m in caplog.messages if "whole" in m]) <= 1


def test_a_file_that_is_asked_for_whole_takes_one_request_and_no_room(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    for _ in range(2):
        assert storage.read_range(url, 0, SIZE) == DATA
    assert http.count("GET") == 2
    assert blocks(storage) == []
    assert storage.read_range(url, 5, 9) == DATA[5:9]
    read(storage, url)
    assert len(blocks(storage)) == 10


def read_first(storage: Storage, url: str) -> None:
    with storage.open(url) as file:
        assert file.read(5, 4 * BLOCK_BYTES - 9) == DATA[5 : 4 * BLOCK_BYTES - 9]


@pytest.fixture
def released(http: HTTPServer) -> Iterator[threading.Event]:
    """An event that lets the second halves of bodies go."""
    event = threading.Event()
    http.halfway = lambda _: event.wait(WAIT_S)
    yield event
    event.set()


def test_the_first_half_of_a_file_is_read_before_the_second_has_come(
    storage: Storage, url: str, released: threading.Event
) -> None:
    read_first(storage, url)
    other = FORK.Process(target=read_first, args=(storage, url))
    other.start()
    other.join(WAIT_S)
    assert other.exitcode == 0
    assert not released.is_set()
    released.set()
    read(storage, url)


def test_a_process_that_is_stopped_while_it_fetches_a_file_holds_up_nobody(
    storage: Storage,
    url: str,
    released: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(growing, "PATIENCE_S", 0.5)
    monkeypatch.setattr(locks, "PATIENCE_S", 0.5)
    child = FORK.Process(target=read, args=(storage, url))
    child.start()
    while not blocks(storage):
        assert child.is_alive()
        child.join(0.01)
    os.kill(child.pid or 0, signal.SIGSTOP)
    released.set()
    try:
        with caplog.at_level(logging.WARNING):
            read(storage, url)
        assert any("is fetched here too" in message for message in caplog.messages)
    finally:
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join(WAIT_S)


def test_a_server_may_send_ranges_and_whole_files_in_turns(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    fresh = Storage(cache_dir=storage.cache_dir)
    http.ranges = True
    for at, ranges in enumerate((True, False, True, False)):
        http.ranges = ranges
        with fresh.open(url) as file:
            low = 2 * at * BLOCK_BYTES
            assert file.read(low, low + 9) == DATA[low : low + 9]
    read(fresh, url)
    assert len(blocks(fresh)) == 10


class NotEachThird:
    """True for two questions of three."""

    def __init__(self) -> None:
        self._questions = itertools.count()

    def __bool__(self) -> bool:
        return next(self._questions) % 3 != 2


def test_a_server_that_sends_some_ranges_whole_is_read_by_ranges(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    http.ranges = NotEachThird()  # type: ignore[assignment]
    with storage.open(url) as file:
        for at in range(0, SIZE, BLOCK_BYTES):
            assert file.read(at, at + BLOCK_BYTES) == DATA[at : at + BLOCK_BYTES]
    assert len(blocks(storage)) == 10 < http.count("GET") < 20
    assert all(request.range for request in http.requests if request.method == "GET")


def test_a_read_after_an_outage_fetches_the_file(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    storage = Storage(cache_dir=tmp_path / "c", retries=0, read_ahead_bytes=0)
    storage.read_range(url, 0, 1)
    settle()  # the rest of the file is still written
    shutil.rmtree(tmp_path / "c")
    http.fail_next = 1
    with pytest.raises(StorageError) as caught:
        read(storage, url)
    assert caught.value.failure == "transient"
    read(storage, url)


def test_who_is_killed_while_downloading_stops_nobody(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    begun, release = threading.Event(), threading.Event()

    def gate(_: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    http.gate = gate
    child = FORK.Process(target=read, args=(storage, url))
    child.start()
    assert begun.wait(WAIT_S)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(WAIT_S)
    release.set()
    http.gate = None
    read(storage, url)


@pytest.mark.parametrize("fault", ["fail_next", "cut_next"])
def test_a_download_that_breaks_off_restarts(
    http: HTTPServer, storage: Storage, url: str, fault: str
) -> None:
    storage.size(url)
    storage.read_range(url, 0, 1)
    settle()
    shutil.rmtree(storage.cache_dir or "")
    setattr(http, fault, 2)
    read(storage, url)
    assert getattr(http, fault) == 0


def test_an_outage_at_the_end_of_a_download_is_waited_out(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    """A file that is there is looked up once more, in two requests."""
    (listed,) = storage.list(url)

    def gate(_: str) -> None:
        if http.requests[-1].range is None:
            http.gate = None
            http.fail_head_too, http.fail_next = True, 2

    http.gate = gate
    with storage.open(listed) as file:
        assert file.read(0, SIZE) == DATA
    assert not http.fail_next


def test_a_cache_that_is_removed_meanwhile_is_refilled(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    removed = []

    def remove(_: str) -> None:
        if blocks(storage) and not removed:
            removed.append(storage.cache_dir)
            shutil.rmtree(storage.cache_dir or "", ignore_errors=True)

    read(storage, url)
    http.gate = remove
    for block in blocks(storage)[:3]:
        block.unlink()
    read(Storage(cache_dir=storage.cache_dir), url)  # without the blocks that are mapped here
    assert removed


def test_a_file_that_is_replaced_meanwhile_leaves_no_block(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    file = http.folder / "a.bin"
    at_s = file.stat().st_mtime

    def write(data: bytes, age_s: float) -> None:
        file.write_bytes(data)
        os.utime(file, (at_s, at_s - age_s))  # versions are times in whole seconds

    begun = threading.Lock()

    def replace_once(_: str) -> None:
        if http.count("GET") > 3 and begun.acquire(blocking=False):  # the whole file is on its way
            write(DATA[::-1], age_s=10)

    http.gate = replace_once
    with pytest.raises(StateError) as caught:
        read(storage, url)
    assert caught.value.path == url
    http.gate = None
    write(DATA, age_s=0)
    read(Storage(cache_dir=storage.cache_dir), url)


class MetOnce(dict[str, Exception]):
    """Errors that two readers find before either takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def get(self, key: str, default: Any = None) -> Any:
        error = super().get(key, default)
        if error is not None and threading.current_thread().name == "reader":
            with suppress(threading.BrokenBarrierError):
                self._both.wait(1)
        return error


def test_each_thread_that_waits_for_a_file_gets_the_error_of_its_download(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    storage = Storage(cache_dir=tmp_path / "c", retries=0, read_ahead_bytes=0)
    storage._growings().failed = MetOnce()
    (listed,), errors = storage.list(url), list[Exception]()

    def replace(_: str) -> None:
        if http.requests[-1].range is None:  # the whole file is on its way
            os.utime(http.folder / "a.bin", (0, 0))

    def read() -> None:
        with storage.open(listed) as file:
            try:
                file.read(SIZE - 1, SIZE)
            except Exception as error:
                errors.append(error)

    http.gate = replace
    readers = [threading.Thread(target=read, name="reader") for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(WAIT_S)
    assert [type(error) for error in errors] == [StateError] * 2


def test_a_file_that_the_cache_cannot_hold_is_named(
    http: HTTPServer, tmp_path: Path, url: str
) -> None:
    storage = Storage(cache_dir=tmp_path / "cache", cache_limit_bytes=SIZE)
    with pytest.raises(StorageError) as caught:
        read(storage, url)
    assert caught.value.setting == "cache_limit_bytes"
    read(Storage(cache_dir=tmp_path / "cache", cache_limit_bytes=4 * SIZE), url)


def test_a_server_without_ranges_is_read_by_fsspec_too(url: str, tmp_path: Path) -> None:
    options = {"params": {"a": "b"}}  # which our own requests do not know
    storage = Storage(cache_dir=tmp_path / "cache", retries=0, storage_options=options)
    assert storage.remote.read_start(url, 100) == DATA[:100]
    assert storage.read_range(url, 5, 999) == DATA[5:999]
    read(storage, url)


class WholeOnly(MemoryFileSystem):  # type: ignore[misc]
    """A protocol that sends whole files only."""

    protocol = "wholeonly"
    store: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("wholeonly://", "memory://")))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        if start is not None:
            raise NotImplementedError
        return bytes(super().cat_file(path))


def test_a_protocol_without_ranges_is_read(storage: Storage) -> None:
    fsspec.register_implementation("wholeonly", WholeOnly, clobber=True)
    WholeOnly().pipe("/a.bin", DATA)
    read(storage, "wholeonly://a.bin")
    assert len(blocks(storage)) == 10
