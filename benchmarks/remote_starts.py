"""Starts with few and with many small files in a store: ``python -m benchmarks.remote_starts``.

Files of 2,048 ids each lie in an S3 store 30 ms away that sends 50 MB/s. They are read in two
lanes by a process of its own with an empty cache, with windows of 16 rows of 256 tokens, so that a
first batch needs about as many files whether there are ten or thousands.

- "listing": seconds and KB of the listing alone (MDS: of its index, which is parsed too).
- "first", "KB", "requests", "CPU": seconds to the first batch, data and requests by then, and
  processor time; all without a listing's share.
- "CPU ms a file": of an epoch, from a store without delay, after the first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks import layouts
from benchmarks.layouts import Documents
from benchmarks.remote import EOS_ID, far_store, flat, parquet
from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore
from demo.object_store import ObjectStore
from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources

DOCUMENTS, LENGTH = 8, 256  # of each file
LANES = 2


def megatron(folder: Path, documents: Documents) -> None:
    """Ids and their index, as Megatron-LM's tools write them."""
    count, lengths = len(documents), np.array([len(ids) for ids in documents])
    np.concatenate(documents).tofile(folder / "a.bin")
    pointers = 2 * np.cumsum([0, *lengths[:-1]])
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([8])
    head += np.array([count, count + 1], np.uint64).tobytes()
    ends = np.arange(count + 1, dtype=np.int64)
    arrays = (lengths.astype(np.int32), pointers.astype(np.int64), ends)
    (folder / "a.idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))


def arrow(folder: Path, documents: Documents) -> None:
    """A stream, as `datasets` writes it."""
    table = layouts.table_of(documents)
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)


class Format(NamedTuple):
    """A writer of one file and the number of files read; `write` None is MDS, written at once."""

    write: Callable[[Path, Documents], None] | None
    kind: Any
    arguments: dict[str, Any]


_TOKENS = {"tokens": "tokens"}
FORMATS = {
    "Parquet": Format(parquet(1000), sources.Parquet, _TOKENS),
    "Arrow": Format(arrow, sources.Arrow, _TOKENS),
    "Megatron": Format(megatron, sources.MegatronIndexed, {}),
    ".jsonl": Format(layouts.lines(None), sources.JSONL, _TOKENS),
    ".npy": Format(flat("a.npy"), sources.Tokens, {"eos_id": EOS_ID}),
    ".bin": Format(flat("a.bin"), sources.Tokens, {"eos_id": EOS_ID, "dtype": "uint16"}),
    "tar": Format(layouts.archive(None), sources.WebDataset, {"tokens": "npy"}),
    "MDS": Format(None, sources.MDS, _TOKENS),
}


def files_of(chosen: Format, count: int, scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files; each has other ids."""
    ids = np.random.default_rng(0).integers(1, 50_000, (count, DOCUMENTS, LENGTH), np.uint16)
    if chosen.write is None:
        layouts.mds(2 * DOCUMENTS * LENGTH)(scratch, list(ids.reshape(-1, LENGTH)))
        for file in scratch.rglob("*"):
            if file.is_file():
                yield file.name, file.read_bytes()
        return
    for number in range(count):
        chosen.write(scratch, list(ids[number]))
        for file in scratch.iterdir():
            yield f"{number:05}{file.suffix}", file.read_bytes()


def put(store: ObjectStore, prefix: str, files: Iterator[tuple[str, bytes]]) -> None:
    """Upload files, several at a time."""
    import boto3

    client = boto3.client("s3", endpoint_url=store.environment["AWS_ENDPOINT_URL"])
    bucket = store.url.removeprefix("s3://")

    def upload(file: tuple[str, bytes]) -> None:
        client.put_object(Bucket=bucket, Key=f"{prefix}/{file[0]}", Body=file[1])

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(upload, files):
            pass


def read(name: str, url: str, *, whole: bool) -> None:
    """Start a run in this process, or read an epoch of it; tell the figures of each step."""
    kind, arguments = FORMATS[name].kind, FORMATS[name].arguments

    def batches(storage: sources.Storage) -> Iterator[Any]:
        dataset = PackedDataset(
            kind(url, storage=storage, **arguments),
            seq_len=LENGTH,
            lanes=LANES,
            window=WindowConfig(rows=16),
            topology=Topology(),
        )
        return iter(PackedLoader(dataset))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:  # threads still fetch
        storage = sources.Storage(cache_dir=f"{base}/cold")

        def listed() -> None:
            if kind is sources.MDS:
                kind(url, storage=storage, **arguments).prepare()
            else:
                storage.list(url, endings=kind.endings)

        with _Told("warm"):  # imports, kernels, a connection
            next(batches(sources.Storage(cache_dir=f"{base}/warm")))
            listed()
        with _Told("listing"):
            listed()
        with _Told("first") as first:
            if kind is not sources.MDS:
                first.leave_out(storage, "list")
            run = batches(storage)
            next(run)
        with _Told("epoch"):
            for _ in run if whole else ():
                pass


class _Told:
    """Measure a step, print its figures, and wait until the parent has read them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left_out: list[tuple[float, float]] = []

    def __enter__(self) -> _Told:
        self._began = time.perf_counter(), time.process_time()
        return self

    def leave_out(self, owner: object, name: str) -> None:
        """Report the time in calls of a method apart from the step."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter(), time.process_time()
            found = method(*arguments, **named)
            spent_s, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
            self._left_out.append((spent_s, cpu_s))
            return found

        setattr(owner, name, timed)

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            return
        now = time.perf_counter(), time.process_time()
        spent = (end - begin for end, begin in zip(now, self._began, strict=True))
        names = (f"{self._name} s", f"{self._name} CPU")
        told = dict(zip(names, spent, strict=True))
        if self._left_out:
            names = (f"{self._name} listing s", f"{self._name} listing CPU")
            told |= dict(zip(names, map(sum, zip(*self._left_out, strict=True)), strict=True))
        print(json.dumps(told), flush=True)
        sys.stdin.readline()


def measured(arguments: list[str], store: SlowStore) -> dict[str, float]:
    """Return the figures of one process, and the store's counts in each step."""
    endpoint = f"http://127.0.0.1:{store.port}"
    found: dict[str, float] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.remote_starts", *arguments],
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step in ("warm", "listing", "first", "epoch"):
            store.served.clear()
            found |= json.loads(process.stdout.readline() or "{}")
            found |= {f"{step} {what}": number for what, number in store.served.items()}
            process.stdin.write("\n")
            process.stdin.flush()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed.")
    return found


HEAD = [
    "format", "files", "listing, s", "KB", "first, s", "KB", "requests", "CPU, s", "CPU ms a file",
]  # fmt: skip


def row(name: str, count: int, found: dict[str, float], epoch_cpu_s: float | None) -> list[str]:
    """Return a row of the table."""

    def beyond(figure: str) -> float:  # the run lists once more
        listing = found.get(f"first listing {figure}", found[f"listing {figure}"])
        return found[f"first {figure}"] - listing

    return [
        name,
        f"{count:,}",
        f"{found['listing s']:.2f}",
        f"{found['listing bytes'] / 1e3:,.0f}",
        f"{beyond('s'):.2f}",
        f"{beyond('bytes') / 1e3:,.0f}",
        f"{beyond('requests'):,.0f}",
        f"{beyond('CPU'):.2f}",
        "" if epoch_cpu_s is None else f"{epoch_cpu_s / count * 1e3:.1f}",
    ]


def compare(arguments: argparse.Namespace) -> None:
    """Run the formats one after the other, and print the table."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        with far_store(base / "store") as (store, slow, fast):
            for name in (name for name in FORMATS if arguments.only in name):
                for count in arguments.files:
                    prefix = f"{name}-{count}".replace(".", "")
                    (base / prefix).mkdir()
                    put(store, prefix, files_of(FORMATS[name], count, base / prefix))
                    url = f"{store.url}/{prefix}"
                    found = measured(["--start", name, url], slow)
                    epoch = None
                    if not arguments.starts:
                        epoch = measured(["--epoch", name, url], fast)["epoch CPU"]
                    rows.append(row(name, count, found, epoch))
                    print(" | ".join(rows[-1]), file=sys.stderr)
    print_table(f"From {store.name}, in {LANES} lanes", HEAD, rows)


def main() -> None:
    """One run, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[10, 500, 8000])
    parser.add_argument("--only", default="", help="formats whose names contain this")
    parser.add_argument("--starts", action="store_true", help="read no epochs")
    parser.add_argument("--start", nargs=2, metavar=("NAME", "URL"), help="one start")
    parser.add_argument("--epoch", nargs=2, metavar=("NAME", "URL"), help="one epoch")
    arguments = parser.parse_args()
    if arguments.start or arguments.epoch:
        read(*(arguments.start or arguments.epoch), whole=arguments.epoch is not None)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
