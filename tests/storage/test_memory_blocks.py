"""A storage with `cache_blocks=False`: the same batches, and no block on disk at any time."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.memory_blocks import MemoryBlocks
from streampack.storage.storage import Storage
from tests.support.corpora import write_tar
from tests.support.forked import in_fork
from tests.support.read_ahead import WAIT_S, settle
from tests.support.servers import HTTPServer

FORK = multiprocessing.get_context("fork")
FILES, LANES = 2, 3
NAMES = "{0..1}"


def ids() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    return (rng.integers(1, 60_000, n).astype(np.uint16) for n in rng.integers(200, 900, 2400))


def write(kind: str, folder: Path) -> None:
    documents = [*ids()]
    for number in range(FILES):
        part = documents[number::FILES]
        if kind == ".tar":
            write_tar(folder / f"{number}.tar", part)
        elif kind == ".parquet":
            table = pa.table({"tokens": part, "other": part})
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=100)
        elif kind == ".npy":
            np.save(folder / f"{number}.npy", np.concatenate([np.append(each, 0) for each in part]))
        else:
            text = "".join(json.dumps({"tokens": each.tolist()}) + "\n" for each in part)
            with pa.output_stream(str(folder / f"{number}{kind}"), compression="detect") as out:
                out.write(text.encode())


def dataset(kind: str, url: str, storage: Storage) -> PackedDataset:
    classes: dict[str, Any] = {
        ".tar": lambda path: sources.WebDataset(path, tokens="npy", storage=storage),
        ".parquet": lambda path: sources.Parquet(path, tokens="tokens", storage=storage),
        ".npy": lambda path: sources.Tokens(path, eos_id=0, storage=storage),
    }
    lines = lambda path: sources.JSONL(path, tokens="tokens", storage=storage)  # noqa: E731
    source = classes.get(kind, lines)(f"{url}/{NAMES}{kind}")
    return PackedDataset(source, seq_len=1024, batch_size=4, lanes=LANES, topology=Topology())


def digests(loader: Any) -> list[str]:
    return [hashlib.sha1(batch.input_ids.numpy().tobytes()).hexdigest() for batch in loader]


def on_disk(storage: Storage) -> list[Path]:
    """Files in the cache, hidden ones too."""
    assert storage.cache_dir is not None
    return [path for path in storage.cache_dir.rglob("*") if path.is_file()]


@pytest.fixture
def memory(tmp_path: Path) -> Storage:
    return Storage(cache_dir=tmp_path / "none", cache_blocks=False, read_ahead_bytes=16 << 20)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [".tar", ".parquet", ".npy"])
def test_batches_are_the_same_with_no_file_on_disk_meanwhile_and_after(
    kind: str, http: HTTPServer, storage: Storage, memory: Storage
) -> None:
    write(kind, http.folder)
    loader = PackedLoader(dataset(kind, http.url, storage))
    expected, state = [], {}
    for batch in loader:
        expected.append(hashlib.sha1(batch.input_ids.numpy().tobytes()).hexdigest())
        state = loader.state_dict() if len(expected) == 30 else state
    assert on_disk(storage)
    seen = []
    for batch in PackedLoader(dataset(kind, http.url, memory)):
        seen.append(hashlib.sha1(batch.input_ids.numpy().tobytes()).hexdigest())
        assert on_disk(memory) == []
    assert seen == expected
    assert digests(PackedLoader(dataset(kind, http.url, memory), num_workers=2)) == expected
    resumed = PackedLoader(dataset(kind, http.url, memory))
    resumed.load_state_dict(state)
    assert digests(resumed) == expected[30:]
    settle()
    assert on_disk(memory) == []


@pytest.mark.slow
def test_decoded_content_is_on_disk_and_the_stored_file_is_not(
    http: HTTPServer, storage: Storage, memory: Storage
) -> None:
    write(".jsonl.gz", http.folder)
    expected = digests(PackedLoader(dataset(".jsonl.gz", http.url, storage)))
    assert digests(PackedLoader(dataset(".jsonl.gz", http.url, memory))) == expected
    settle()
    assert on_disk(memory)
    assert {path.name.partition("-")[0][-1] for path in on_disk(memory)} == {"m"}


@pytest.mark.parametrize("ahead_bytes", [0, 8 << 20])
def test_memory_holds_blocks_ahead_and_little_more(
    ahead_bytes: int, http: HTTPServer, tmp_path: Path
) -> None:
    data = np.random.default_rng(0).bytes(90 * BLOCK_BYTES + 5)
    (http.folder / "a.bin").write_bytes(data)
    storage = Storage(cache_dir=tmp_path / "none", cache_blocks=False, read_ahead_bytes=ahead_bytes)
    cache = storage.remote.fetcher.cache
    assert isinstance(cache, MemoryBlocks)
    most = []
    http.gate = lambda _: most.append(len(cache._unread) + len(cache._read))
    for _ in range(2):
        with storage.open(f"{http.url}/a.bin") as file, file.stream() as stream:
            file.plan([(0, len(data))])
            assert b"".join(iter(lambda: stream.read(100_000), b"")) == data
    settle()
    assert max(most) <= 64
    assert on_disk(storage) == []


def test_blocks_that_are_forgotten_are_fetched_anew(http: HTTPServer, memory: Storage) -> None:
    data = bytes(3 * BLOCK_BYTES)
    (http.folder / "a.bin").write_bytes(data)
    url = f"{http.url}/a.bin"
    for requests, is_forgotten in ((1, False), (1, True), (2, True)):
        with memory.open(url) as file:
            assert file.read(0, len(data)) == data
        assert http.count("GET") == requests
        assert not is_forgotten or memory.forget(url)
    assert not memory.forget(url)


def test_a_process_that_is_killed_leaves_no_file_and_a_fork_reads_on(
    http: HTTPServer, memory: Storage
) -> None:
    data = np.random.default_rng(0).bytes(9 * BLOCK_BYTES)
    (http.folder / "a.bin").write_bytes(data)
    url, begun, release = f"{http.url}/a.bin", threading.Event(), threading.Event()

    def read() -> None:
        with memory.open(url) as file:
            assert file.read(0, file.num_bytes) == data

    def gate(_: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    with memory.open(url) as file:
        assert file.read(0, 9) == data[:9]
    http.gate = gate
    child = FORK.Process(target=read)
    child.start()
    assert begun.wait(WAIT_S)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(WAIT_S)
    http.gate = None
    release.set()
    in_fork(read)
    read()
    assert on_disk(memory) == []
