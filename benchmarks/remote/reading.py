"""Our readers: a corpus in twelve lanes with an empty cache, and the shares of hosts."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import layouts
from benchmarks.remote import corpora
from benchmarks.remote.corpora import LAYOUTS
from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.metrics import fetched
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.fetching import Fetcher
from streampack.storage.growing import GrowingFile

LANES = 12
SEQ_LEN = 2048
_SHORTEST_S = 0.005  # of a wait that is kept

#: What a stage of a child tells: its name and figures.
Stages = Iterator[tuple[str, dict[str, Any]]]


def warm(name: str, base: Path) -> None:
    """Do the imports, kernels and credentials of a process, without a request."""
    folder = base / "warm"
    folder.mkdir()
    corpora.write(LAYOUTS[name], layouts.lognormal(1e5), 2, folder)
    source = LAYOUTS[name].source(str(folder), sources.Storage(cache_dir=base / "warm-cache"))
    for _ in PackedLoader(PackedDataset(source, seq_len=SEQ_LEN, topology=Topology())):
        pass
    sources.Storage(cache_dir=base / "warm-cache").remote.catalog("s3")


@contextmanager
def waits() -> Iterator[list[tuple[float, float, str]]]:
    """Collect the times (begin, end) in which a reader waited for a block, and its name."""
    found: list[tuple[float, float, str]] = []

    def timed(method: Any, name: Any) -> Any:
        def block(self: Any, *arguments: Any) -> Any:
            began = time.monotonic()
            try:
                return method(self, *arguments)
            finally:
                ended = time.monotonic()
                is_reader = "read-ahead" not in threading.current_thread().name
                if is_reader and ended - began > _SHORTEST_S:
                    found.append((began, ended, name(self, *arguments)))

        return block

    def remote(_: Fetcher, file: Any, number: int, end: int) -> str:
        return f"{Path(file.listed.path).name}:{number}"

    def growing(_: GrowingFile, number: int) -> str:
        return f"decoded:{number}"

    with (
        mock.patch.object(Fetcher, "block", timed(Fetcher.block, remote)),
        mock.patch.object(GrowingFile, "block", timed(GrowingFile.block, growing)),
    ):
        yield found


def read(name: str, url: str, whole: bool) -> Stages:
    """Read a corpus up to its first batch, and then to its end if `whole`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base, waits() as waited:
        warm(name, Path(base))
        began = time.monotonic()
        source = LAYOUTS[name].source(url, sources.Storage(cache_dir=Path(base) / "cold"))
        dataset = PackedDataset(source, seq_len=SEQ_LEN, lanes=LANES, topology=Topology())
        loader = PackedLoader(dataset)
        batches = iter(loader)
        next(batches)
        yield "first", {"s": time.monotonic() - began, "waits": waited}
        if not whole:
            return
        cpu_began = time.process_time()
        for _ in batches:
            pass
        figures = {"s": time.monotonic() - began, "cpu": time.process_time() - cpu_began}
        yield "epoch", {**figures, "waits": waited}


def share(name: str, url: str, hosts: int) -> Stages:
    """Read the documents of hosts one after the other, each with a cache."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:  # threads still fetch
        for host in range(hosts):
            source = LAYOUTS[name].source(url, sources.Storage(cache_dir=Path(base) / str(host)))
            source.prepare()
            for lane in source.lanes(LANES, seed=0, epoch=0, shuffle=True)[host::hosts]:
                for _ in lane.read(None, ErrorPolicy()):
                    fetched.clear()
        yield "epoch", {}
