"""Stores that are silent, wrong for a moment or without versions; processes that wait for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import StorageError
from streampack.remote import failures
from streampack.storage import blocks, fetching, locks
from streampack.storage.storage import Storage
from streampack.threads import in_threads
from tests.support.raw_server import Connection, raw_server
from tests.support.read_ahead import settle
from tests.support.servers import HTTPServer

DATA = os.urandom(600_000)

BEGIN = """
import sys, threading, time
from streampack.storage.storage import Storage

url, cache = sys.argv[1:]
storage = Storage(cache_dir=cache)
"""
DECODING = """
def make(file, out):
    with file.stream() as source:
        while data := source.read(1 << 16):
            out.write(data)

with storage.open(url + "/a.gz") as file:
    decoded = storage.decoded(file, "content", make)
    threading.Thread(target=lambda: decoded.has(1), daemon=True).start()
    print("waits", flush=True)
    time.sleep(1)
print("ended", time.monotonic(), flush=True)
"""
LISTING = """
print("waits", flush=True)
storage.list([url + f"/{n}.bin" for n in range(3)])
"""


def silent(answered: str) -> Callable[[Connection], None]:
    """Answer requests of a method, and no other ones."""

    def respond(connection: Connection) -> None:
        if connection.method == answered:
            connection.answer("200 OK", f'Content-Length: {len(DATA)}\nETag: "a"\n')
        else:
            connection.stopping.wait(600)

    return respond


def started(code: str, url: str, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + code, url, str(cache)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_a_script_ends_while_a_thread_decodes_from_a_silent_store(tmp_path: Path) -> None:
    with raw_server(silent("HEAD")) as server:
        process = started(DECODING, server.url, tmp_path)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert time.monotonic() - float(out.split()[1]) < 60  # it would wait for minutes
        assert any(request.startswith("GET") for request in server.requests)


def test_an_interrupt_ends_the_listing_of_a_silent_store(tmp_path: Path) -> None:
    with raw_server(silent("none")) as server:
        process = started(LISTING, server.url, tmp_path)
        while len(server.requests) < 3:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert "KeyboardInterrupt" in err


THREAD = """
storage.read_range(url, 0, 1)

def read():
    threading.main_thread().join()
    with storage.open(url) as file:
        print(len(file.read(0, file.num_bytes)), flush=True)

print("waits", flush=True)
threading.Thread(target=read).start()
"""


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_thread_reads_on(tmp_path: Path) -> None:
    def slow(connection: Connection) -> None:
        if connection.method == "GET" and not connection.stopping.wait(0.5):
            first, last = map(int, re.findall(r"bytes=(\d+)-(\d+)", connection.head)[0])
            sent = f'Content-Range: bytes {first}-{last}/{len(DATA)}\nETag: "a"\n'
            connection.answer("206 Partial Content", sent, DATA[first : last + 1])
        else:
            connection.answer("200 OK", f'Content-Length: {len(DATA)}\nETag: "a"\n')

    with raw_server(slow) as server:
        out, err = started(THREAD, f"{server.url}/a.bin", tmp_path).communicate(timeout=300)
    assert out == f"{len(DATA)}\n", err


LOCKED = """
from streampack.storage.blocks import BlockCache
from pathlib import Path

blocks = BlockCache(Path(cache) / "blocks", 1 << 30)
with storage.open(url) as file, blocks.fetching(file.key, 0, 3):
    print("waits", flush=True)
    time.sleep(60)
"""


def test_a_block_that_a_stopped_process_has_locked_is_fetched_with_a_line(
    http: HTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    monkeypatch.setattr(locks, "PATIENCE_S", 0.2)
    process = started(LOCKED, f"{http.url}/a.bin", tmp_path / "cache")
    try:
        process.send_signal(signal.SIGSTOP)
        with Storage(cache_dir=tmp_path / "cache").open(f"{http.url}/a.bin") as file:
            assert file.read(0, len(DATA)) == DATA
        lines = [record for record in caplog.records if record.name == fetching.logger.name]
        assert len(lines) == 1
    finally:
        process.kill()
        process.communicate()


def test_a_reader_is_not_behind_threads_that_wait_for_a_stopped_process(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    over: list[str] = []

    class Patience(locks.Patience):
        def is_over(self) -> bool:
            if is_over := super().is_over():
                over.append(threading.current_thread().name)
            return is_over

    process = started(LOCKED, f"{http.url}/a.bin", tmp_path / "cache")
    try:
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(locks, "PATIENCE_S", 0.2)
        monkeypatch.setattr(blocks, "Patience", Patience)
        with Storage(cache_dir=tmp_path / "cache").open(f"{http.url}/a.bin") as file:
            file.plan([(0, len(DATA))])
            settle()
            assert len(over) <= 2  # the first block, and those after it
            assert file.read(0, len(DATA)) == DATA
    finally:
        process.kill()
        process.communicate()


def test_a_lock_is_free_between_two_attempts(http: HTTPServer, storage: Storage) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    cache = blocks.BlockCache(storage.cache_dir / "blocks", 1 << 30)  # type: ignore[operator]
    with storage.open(f"{http.url}/a.bin") as file:
        http.fail_next = 1000
        reader = threading.Thread(target=lambda: file.read(0, 10))
        reader.start()
        while http.count("GET") < 2:
            time.sleep(0.01)
        with cache.fetching(file.key, 0, 1, wait_s=5) as stop:  # type: ignore[attr-defined]
            assert stop == 1
        http.fail_next = 0
        reader.join()


def test_a_whole_answer_now_and_then_makes_no_server_without_ranges(
    http: HTTPServer, storage: Storage
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    times = iter([False, False])  # an answer looks twice

    class Once:
        def __bool__(self) -> bool:
            return next(times, True)

    with storage.open(f"{http.url}/a.bin") as file:
        http.ranges = Once()  # type: ignore[assignment]
        assert file.read(300_000, 300_010) == DATA[300_000:300_010]
    assert http.count("GET") == 2


@pytest.mark.parametrize("wrong", ["not HTTP at all\n\n", "a page"])
def test_a_garbled_answer_or_the_page_of_a_portal_is_asked_for_once_more(
    wrong: str, tmp_path: Path
) -> None:
    asked: list[str] = []

    def respond(connection: Connection) -> None:
        sizes = f'Content-Length: {len(DATA)}\nETag: "a"\n'
        if connection.method == "HEAD":
            connection.answer("200 OK", sizes)
            return
        asked.append(connection.head)
        if len(asked) == 1 and wrong == "a page":
            connection.answer("200 OK", body=b"<html>")
        elif len(asked) == 1:
            connection.send(wrong)
        else:
            first, last = map(int, re.findall(r"bytes=(\d+)-(\d+)", connection.head)[0])
            body = DATA[first : last + 1]
            head = f'Content-Range: bytes {first}-{last}/{len(DATA)}\nETag: "a"\n'
            connection.answer("206 Partial Content", head, body)

    with raw_server(respond) as server:
        storage = Storage(cache_dir=tmp_path / "cache", retries=1)
        with storage.open(f"{server.url}/a.bin") as file:
            assert file.read(0, 10) == DATA[:10]


def test_attempts_are_repeated_by_time_unless_a_number_is_given(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    monkeypatch.setattr(failures, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(failures, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(failures, "RETRY_S", 20.0)
    with Storage(cache_dir=tmp_path / "cache").open(f"{http.url}/a.bin") as file:
        http.fail_next = 30
        assert file.read(0, 10) == DATA[:10]
        monkeypatch.setattr(failures, "RETRY_S", 0.1)
        http.fail_next = 10_000
        with pytest.raises(StorageError) as caught:
            file.read(400_000, 400_010)
    assert caught.value.failure == "transient"


def test_reading_works_without_threads_and_without_maps(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)
    storage = Storage(cache_dir=tmp_path / "cache")
    with storage.open(f"{http.url}/a.bin") as file:
        assert file.read(0, 10) == DATA[:10]  # the loop of fsspec has its thread now

        def refused(*_: Any) -> Any:
            raise OSError(12, "Cannot allocate memory")

        def no_thread(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(blocks, "mapped", refused)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with file.stream() as stream:
            assert stream.read() == DATA
        file.plan([(0, 10)])
        assert in_threads(lambda n: n + 1, range(20)) == [*range(1, 21)]


def waiting(threads: list[threading.Thread]) -> int:
    """Return how many threads wait for another's look-up."""
    frames = sys._current_frames()
    stacks = [traceback.extract_stack(frames.get(thread.ident or 0)) for thread in threads]
    return sum({"look_up", "awaited"} <= {call.name for call in stack} for stack in stacks)


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
def test_threads_that_look_up_a_file_at_once_ask_once_and_get_one_answer(
    status: str, tmp_path: Path
) -> None:
    answered = threading.Event()

    def respond(connection: Connection) -> None:
        assert answered.wait(60)
        connection.answer(status, f"Content-Length: {len(DATA)}\n")

    storage = Storage(cache_dir=tmp_path, retries=0)
    outcomes: list[int | StorageError] = []

    def look_up(url: str) -> None:
        try:
            outcomes.append(storage.remote.look_up(url).num_bytes)
        except StorageError as error:
            outcomes.append(error)

    with raw_server(respond) as server:
        url = f"{server.url}/a.bin"
        threads = [threading.Thread(target=look_up, args=(url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while waiting(threads) < 3:
            time.sleep(0.01)
        answered.set()
        for thread in threads:
            thread.join()
        one_look = 1 if status == "200 OK" else 2  # a GET has the words of a refusal
        assert len(server.requests) == one_look
        assert len(outcomes) == 4
        assert len(set(outcomes)) == 1
        look_up(url)
        assert len(server.requests) == (1 if status == "200 OK" else 2 * one_look)


def test_a_look_up_after_an_interrupted_one_asks_anew(
    http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(DATA)

    class Interrupted(dict[str, Any]):
        def setdefault(self, url: str, asked: Any) -> Any:  # type: ignore[override]
            super().setdefault(url, asked)
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(storage.remote, "_asked", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            storage.remote.look_up(f"{http.url}/a.bin")
        assert not storage.remote._asked
    assert storage.remote.look_up(f"{http.url}/a.bin").num_bytes == len(DATA)


def test_errors_in_threads_are_raised_in_the_order_of_the_items() -> None:
    def check(number: int) -> int:
        if number % 3 == 2:
            time.sleep(0.05 / number)
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="2"):
        in_threads(check, range(9))


def test_content_without_a_version_belongs_to_a_start_and_to_its_options(tmp_path: Path) -> None:
    contents = {"": b"a" * 1000}

    def respond(connection: Connection) -> None:
        token = "".join(re.findall(r"(?i)x-token: (\w+)", connection.head))
        body = contents.get(token, b"b" * 1000)
        connection.answer("200 OK", "Accept-Ranges: bytes\n", body)

    def first_byte(options: dict[str, Any]) -> bytes:
        storage = Storage(cache_dir=tmp_path / "cache", storage_options=options)
        with storage.open(f"{server.url}/a.bin") as file:
            return file.read(0, 1)

    code = BEGIN + "with storage.open(url) as file: print(file.read(0, 1).decode())"
    with raw_server(respond) as server:
        assert first_byte({}) == b"a"
        assert first_byte({"headers": {"X-Token": "other"}}) == b"b"
        contents[""] = b"c" * 1000
        assert first_byte({}) == b"a"  # one start reads one content
        command = [sys.executable, "-c", code, f"{server.url}/a.bin", str(tmp_path / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "c\n"
