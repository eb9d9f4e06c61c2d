"""The store, the proxies before it, and processes that read from one of them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import layouts
from benchmarks.remote import corpora
from benchmarks.slow_store import SlowStore, slow_store
from demo.object_store import ObjectStore, find_weed, object_store

_UNLIMITED = 1e12


class FarStore:
    """A store, and proxies before it.

    Attributes:
        base: folder of the corpora.
        store: the store itself.
        slow: proxy with the delay and the rate of the options.
        waiting: proxy with the delay alone.
        fast: proxy that only counts.
    """

    def __init__(self, base: Path, store: ObjectStore, proxies: list[SlowStore]) -> None:
        self.base, self.store = base, store
        self.slow, self.waiting, self.fast = proxies
        self._sizes: dict[str, int] = {}

    def corpus(self, name: str, megabytes: float, count: int) -> tuple[str, int]:
        """Return the URL and the bytes of a corpus of a layout in `count` files, made once."""
        prefix = f"{name}-{megabytes:g}-{count}".strip(".").replace(" ", "").replace(",", "")
        if prefix not in self._sizes:
            layout = corpora.LAYOUTS[name]
            folder = self.base / prefix
            folder.mkdir()
            documents = layouts.lognormal(megabytes * 1e6 / layout.id_bytes)
            corpora.write(layout, documents, count, folder)
            self._sizes[prefix] = self.put(prefix)
        return f"{self.store.url}/{prefix}", self._sizes[prefix]

    def put(self, prefix: str, folder: Path | None = None) -> int:
        """Upload a folder, by default the one of this name; return the bytes of its files."""
        import boto3

        client = boto3.client("s3", endpoint_url=self.store.environment["AWS_ENDPOINT_URL"])
        bucket, folder = self.store.url.removeprefix("s3://"), folder or self.base / prefix
        files = [file for file in folder.rglob("*") if file.is_file()]

        def upload(file: Path) -> int:
            key, content = f"{prefix}/{file.relative_to(folder)}", file.read_bytes()
            client.put_object(Bucket=bucket, Key=key, Body=content)
            return len(content)

        with ThreadPoolExecutor(8) as pool:
            return sum(pool.map(upload, files))


@contextmanager
def far_store(options: argparse.Namespace) -> Iterator[FarStore]:
    """Run a store and its proxies for the length of a block."""
    limits = [
        (options.delay_s, options.bytes_per_s), (options.delay_s, _UNLIMITED), (0.0, _UNLIMITED)
    ]  # fmt: skip
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        store = stack.enter_context(object_store(base / "store", find_weed()))
        port = urlsplit(store.environment["AWS_ENDPOINT_URL"]).port or 0
        proxies = [
            stack.enter_context(slow_store(port, delay_s=delay_s, bytes_per_s=rate))
            for delay_s, rate in limits
        ]
        yield FarStore(base, store, proxies)


def run(store: SlowStore, *calls: list[Any], python: Path | str = sys.executable) -> dict[str, Any]:
    """Return the figures of processes that run at the same time.

    Args:
        store: proxy that they read from.
        calls: a list for each process: "module:function" of this package, and its arguments. The
            function yields names and figures of its stages.
        python: interpreter of the processes.

    Returns:
        "STAGE FIGURE" for each figure, and of each stage the "bytes" and "requests" so far and
        "at", a time of `time.monotonic`.

    Raises:
        RuntimeError: a process fails.
    """
    endpoint = f"http://127.0.0.1:{store.port}"
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
    store.forget()
    processes = [
        subprocess.Popen(
            [str(python), "-m", "benchmarks.remote.child", json.dumps(call)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for call in calls
    ]  # fmt: skip
    figures: dict[str, Any] = {}
    try:
        reading = [*processes]
        while reading:
            for process in [*reading]:
                assert process.stdin is not None
                assert process.stdout is not None
                line = next((line for line in process.stdout if line.startswith('["')), "")
                if not line:
                    reading.remove(process)
                    if process.wait():
                        raise RuntimeError(f"It ended with status {process.returncode}.")
                    continue
                stage, told = json.loads(line)
                told |= {"bytes": store.served["bytes"], "requests": store.served["requests"]}
                told["at"] = time.monotonic()
                figures |= {f"{stage} {name}": figure for name, figure in told.items()}
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return figures
