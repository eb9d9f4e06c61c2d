"""Mixtures of many remote sources under 1,024 descriptors: `python -m benchmarks.remote_mixture`.

A corpus of token ids, `--megabytes` large whatever the number of its sources, lies in an S3 store
on this machine: a folder of four `.npy` files is a source. Twelve lanes of one process read an
epoch of all sources, with an empty cache. The last rows limit the cache to a quarter of the corpus.

- "first": seconds to the first batch, the listings of all sources included, imports not.
- "CPU ns": processor time per token after the first batch, all threads; of the best of `--rounds`.
- "MiB": memory of the process at its highest, beyond that at its beginning; "of them mapped":
  blocks of the cache, which the system drops when it needs the memory.
- "descriptors": the most that were open at a time.
- "x": bytes received over the bytes of the files.
- "cache": the most that it held, over its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.remote import EOS_ID, LANES, SEQ_LEN, far_store
from benchmarks.remote_starts import put
from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore
from streampack import PackedDataset, PackedLoader, Topology, sources

FILES = 4  # of a source
DESCRIPTORS = 1024
_LOOK_S = 0.25
_RSS = ("RssAnon", "RssFile")


def files_of(count: int, megabytes: float, scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files of `count` sources; each has other ids."""
    rng = np.random.default_rng(0)
    size = int(megabytes * 1e6 / 2 / count / FILES)
    for source in range(count):
        for number in range(FILES):
            ids = rng.integers(1, 50_000, size, np.uint16)
            ids[np.cumsum(rng.lognormal(6.0, 1.1, size // 740 + 1).astype(int) + 1) % size] = EOS_ID
            np.save(scratch / "a.npy", ids)
            yield f"{source:03}/{number}.npy", (scratch / "a.npy").read_bytes()


class Watched(threading.Thread):
    """Looks at memory, descriptors and the cache of this process from time to time.

    Attributes:
        most: the highest figure of each.
    """

    def __init__(self, cache: Path) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, float] = {}
        self._cache, self._ends = cache, threading.Event()
        self._before = _memory()

    def run(self) -> None:
        """Look until it ends."""
        while not self._ends.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Keep the figures that are higher than before."""
        anonymous, mapped = (now - was for now, was in zip(_memory(), self._before, strict=True))
        held = sum(_size(file) for file in self._cache.rglob("*"))
        descriptors = len(os.listdir("/proc/self/fd"))
        self._keep(memory=anonymous + mapped, descriptors=descriptors, cache=held, mapped=mapped)

    def end(self) -> None:
        """Look for the last time."""
        self._ends.set()
        self.join()
        self.look()

    def _keep(self, **found: float) -> None:
        for name, number in found.items():
            self.most[name] = max(number, self.most.get(name, 0))


def _memory() -> tuple[int, int]:
    """Return the bytes of this process: private memory, and mapped files."""
    words = Path("/proc/self/status").read_text().split()
    anonymous, mapped = (1024 * int(words[words.index(f"{name}:") + 1]) for name in _RSS)
    return anonymous, mapped


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # evicted
        return 0


def read(count: int, url: str, limit_bytes: int) -> dict[str, float]:
    """Read all in this process; the figures."""
    import s3fs  # noqa: F401  before the clock starts

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        storage = sources.Storage(cache_dir=cache, cache_limit_bytes=limit_bytes)
        watched = Watched(Path(cache))
        watched.start()
        began, tokens = time.perf_counter(), 0
        corpora = {
            f"{number:03}": sources.Tokens(f"{url}/{number:03}", eos_id=EOS_ID, storage=storage)
            for number in range(count)
        }
        mixture = sources.Mixture(corpora)
        dataset = PackedDataset(mixture, seq_len=SEQ_LEN, lanes=LANES, topology=Topology())
        for batch in PackedLoader(dataset):
            if not tokens:
                first_s, cpu_began = time.perf_counter() - began, time.process_time()
            tokens += int(batch.num_tokens)
        cpu_s = time.process_time() - cpu_began
        watched.end()
    return {"first": first_s, "cpu": cpu_s / tokens, **watched.most}


def measured(arguments: list[str], store: SlowStore) -> dict[str, float]:
    """Return the figures of one process, and the store's counts."""
    store.served.clear()
    endpoint = f"http://127.0.0.1:{store.port}"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.remote_mixture", "--read", *arguments],
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {**json.loads(done.stdout), **store.served}


HEAD = [
    "sources", "cache limit, MB", "first, s", "CPU ns", "MiB", "of them mapped", "descriptors", "x",
    "cache",
]  # fmt: skip


def row(count: int, size: float, limit: float, found: dict[str, float]) -> list[str]:
    """Return a row of the table."""
    return [
        str(count),
        f"{limit / 1e6:,.0f}",
        f"{found['first']:.2f}",
        f"{found['cpu'] * 1e9:.0f}",
        f"{found['memory'] / 2**20:,.0f}",
        f"{found['mapped'] / 2**20:,.0f}",
        f"{found['descriptors']:.0f}",
        f"{found['bytes'] / size:.2f}",
        f"{found['cache'] / limit:.2f}",
    ]


def compare(arguments: argparse.Namespace) -> None:
    """Run one after the other, and print the table."""
    size = arguments.megabytes * 1e6
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        with far_store(base / "store") as (store, _, fast):
            for count in arguments.sources:
                put(store, f"{count}", files_of(count, arguments.megabytes, base))
            for limit in (10 * size, size / 4):
                for count in arguments.sources:
                    run = [str(count), f"{store.url}/{count}", str(int(limit))]
                    several = [measured(run, fast) for _ in range(arguments.rounds)]
                    best = min(several, key=lambda found: found["cpu"])
                    rows.append(row(count, size, limit, best))
                    print(" | ".join(rows[-1]), file=sys.stderr)
    print_table(f"From {store.name}, in {LANES} lanes", HEAD, rows)


def main() -> None:
    """One run, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=400.0, help="of all sources together")
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 10, 30, 100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--read", nargs=3, metavar=("SOURCES", "URL", "LIMIT"), help="one run")
    arguments = parser.parse_args()
    if arguments.read:
        count, url, limit = arguments.read
        print(json.dumps(read(int(count), url, int(limit))))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
