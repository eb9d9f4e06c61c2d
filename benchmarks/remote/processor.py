"""Processor time of requests and of the cache, for one file.

Each figure is the least of some rounds, in ms: for a MB in requests of 4 MiB, for a request of
1,000 bytes, and for a MB that is written to the cache and read from it, with its checksums. "s3fs"
makes the same requests in the same rounds.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.remote import far
from streampack.remote.filesystems import open_filesystem
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage

HEAD = ["", "streampack, ms", "s3fs, ms"]
MEGABYTES = [64.0]
_REQUEST = 4 << 20
_ROUNDS = 8
_SMALL = 100


def rows(store: far.FarStore, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    size = max(int(options.megabytes[0] * 1e6) // _REQUEST, 1) * _REQUEST
    (store.base / "processor").mkdir()
    content = np.random.default_rng(0).bytes(size)
    (store.base / "processor" / "a.bin").write_bytes(content)
    store.put("processor")
    url, folder = f"{store.store.url}/processor/a.bin", store.base / "processor-cache"
    filesystem = open_filesystem("s3", {}, 60.0)
    storage = Storage(cache_dir=folder, read_ahead_bytes=0)
    remote = storage.remote
    listed, get = remote.listed(url), remote._get
    data = memoryview(content[:_REQUEST])
    blocks = size // BLOCK_BYTES

    def large(ask: Callable[[int, int], Any]) -> Callable[[], Any]:
        return lambda: [ask(at, at + _REQUEST) for at in range(0, size, _REQUEST)]

    def small(ask: Callable[[int, int], Any]) -> Callable[[], Any]:
        return lambda: [ask(1000 * k, 1000 * k + 1000) for k in range(_SMALL)]

    def ours(start: int, stop: int) -> Any:
        return get(listed, start, stop)

    def theirs(start: int, stop: int) -> Any:
        return filesystem.cat_file(url, start=start, end=stop)

    def write() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with storage.open(listed) as file:
            for number in range(0, blocks, _REQUEST // BLOCK_BYTES):
                remote.fetcher._fetched(file, number, number + _REQUEST // BLOCK_BYTES)

    def read() -> None:
        with Storage(cache_dir=folder, read_ahead_bytes=0).open(listed) as file:
            for number in range(blocks):
                file.array(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)

    theirs(0, 1000)  # opens connections
    ours(0, 1000)
    names = [
        ("a MB of S3, in requests of 4 MiB", size / 1e6, large(ours), large(theirs)),
        ("a request of 1,000 bytes", _SMALL, small(ours), small(theirs)),
    ]
    for name, number, *actions in names:
        yield [name, *_least(actions, number)]
    remote.fetcher._get = lambda listed, start, stop: data[: stop - start]
    yield ["a MB written to the cache", *_least([write], size / 1e6), ""]
    yield ["a MB read from it", *_least([read], size / 1e6), ""]


def _least(actions: list[Callable[[], Any]], number: float) -> list[str]:
    """Milliseconds of processor time of one of the `number` things that each action does."""
    spent: list[list[float]] = [[] for _ in actions]
    for _ in range(_ROUNDS):
        for times, action in zip(spent, actions, strict=True):
            began = time.process_time()
            action()
            times.append(time.process_time() - began)
    return [f"{min(times) / number * 1e3:.2f}" for times in spent]
