"""Files in an S3 store 30 ms away that sends 50 MB/s: ``python -m benchmarks.remote``.

Each layout is one corpus of token ids, `--megabytes` large, read in twelve lanes by a process of
its own with an empty cache. The proxy `benchmarks.slow_store` before the store counts.

- "first": seconds to the first batch, listing included and imports of s3fs not.
- "MB", "requests": received and made by then, listing included.
- "epoch": seconds for all of it; "read": of these, waiting for the store, or for decoded bytes.
- "MB/s": of the files, from the first batch to the end; "CPU ms/MB": processor time after the
  first batch, of all threads of the process, over the MB of the files.
- "x": bytes received for all of it over the bytes of the files; "x of 4 hosts": by hosts with a
  cache each, which have a part of the lanes each and read nothing but documents.

``--webdataset`` adds the first sample of `webdataset` from the same tars.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq

from benchmarks import layouts
from benchmarks.layouts import Documents
from benchmarks.report import print_table
from benchmarks.slow_store import SlowStore, slow_store
from demo.object_store import ObjectStore, find_weed, object_store
from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.metrics import fetched
from streampack.sources.error_policy import ErrorPolicy

LANES = 12
HOSTS = 4
SEQ_LEN = 2048
EOS_ID = 0
_PART_BYTES = 1 << 26


def parquet(rows: int, *, columns: int = 1) -> Callable[[Path, Documents], None]:
    """Row groups of `rows` rows, uncompressed; other columns are as large as the ids."""

    def write(folder: Path, documents: Documents) -> None:
        own = documents[: len(documents) // columns]
        table = layouts.table_of(own)
        for number in range(1, columns):
            table = table.append_column(f"other_{number}", table["tokens"])
        pq.write_table(
            table, folder / "a.parquet", row_group_size=rows, compression=None, use_dictionary=False
        )

    return write


def flat(name: str) -> Callable[[Path, Documents], None]:
    """One array, a document up to each end token."""

    def write(folder: Path, documents: Documents) -> None:
        ids = np.concatenate([part for ids in documents for part in (ids, [EOS_ID])])
        ids = ids.astype(np.uint16)
        np.save(folder / name, ids) if name.endswith(".npy") else ids.tofile(folder / name)

    return write


class Layout(NamedTuple):
    """A writer of files, the source and arguments to read them, and bytes per id."""

    write: Callable[[Path, Documents], None]
    kind: Any
    arguments: dict[str, Any]
    id_bytes: float = 2.0


_TOKENS = {"tokens": "tokens"}
_COLUMN = (sources.Parquet, _TOKENS, 4.0)  # which has 32 bits per id
LAYOUTS = {
    "Parquet, groups of 1,000 rows": Layout(parquet(1000), *_COLUMN),
    "Parquet, groups of 32 MB": Layout(parquet(11_000), *_COLUMN),
    "Parquet, one group": Layout(parquet(1 << 30), *_COLUMN),
    "Parquet, one of 6 columns": Layout(parquet(1000, columns=6), *_COLUMN),
    ".jsonl": Layout(layouts.lines(None), sources.JSONL, _TOKENS, 6.8),
    ".jsonl.gz": Layout(layouts.lines("gz"), sources.JSONL, _TOKENS, 3.2),
    ".jsonl.zst": Layout(layouts.lines("zst"), sources.JSONL, _TOKENS, 3.2),
    ".npy": Layout(flat("a.npy"), sources.Tokens, {"eos_id": EOS_ID}),
    ".bin": Layout(flat("a.bin"), sources.Tokens, {"eos_id": EOS_ID, "dtype": "uint16"}),
    "tar": Layout(layouts.archive(None), sources.WebDataset, {"tokens": "npy"}, 3.0),
    "MDS": Layout(layouts.mds(_PART_BYTES), sources.MDS, _TOKENS),
    "Arrow": Layout(layouts.arrow_stream, sources.Arrow, _TOKENS),
}
PEER = "webdataset"


def read(name: str, url: str) -> None:
    """Read a corpus in this process; tell the figures at the first batch and at the end."""
    import s3fs  # noqa: F401  before the clock starts, as for peers

    layout = LAYOUTS[name]
    with tempfile.TemporaryDirectory() as cache:
        storage = sources.Storage(cache_dir=cache)
        source = layout.kind(url, storage=storage, **layout.arguments)
        began = time.perf_counter()
        dataset = PackedDataset(source, seq_len=SEQ_LEN, lanes=LANES, topology=Topology())
        loader = PackedLoader(dataset)
        for number, _ in enumerate(loader):
            if number == 0:
                _tell({"first": time.perf_counter() - began})
                cpu_began = time.process_time()
        spent = time.perf_counter() - began
        read_s, cpu_s = loader.metrics().times.read_s, time.process_time() - cpu_began
        _tell({"epoch": spent, "read": read_s, "cpu": cpu_s})


def read_share(name: str, url: str) -> None:
    """Read the documents of hosts one after the other, in this process."""
    layout = LAYOUTS[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:  # threads still fetch
        for host in range(HOSTS):
            storage = sources.Storage(cache_dir=Path(base) / str(host))
            source = layout.kind(url, storage=storage, **layout.arguments)
            source.prepare()
            for lane in source.lanes(LANES, seed=0, epoch=0, shuffle=True)[host::HOSTS]:
                for _ in lane.read(None, ErrorPolicy()):
                    fetched.clear()
    _tell({})
    _tell({})


def read_peer(url: str) -> None:
    """The same with webdataset: its first samples, and then all of them."""
    import webdataset

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    command = f"pipe:{sys.executable} -m benchmarks.remote --cat {url}/a.tar {endpoint}"
    began = time.perf_counter()
    for number, _ in enumerate(webdataset.WebDataset(command, shardshuffle=False)):
        if number == 0:
            _tell({"first": time.perf_counter() - began})
    _tell({"epoch": time.perf_counter() - began, "read": 0})


def cat(url: str, endpoint: str) -> None:
    """Write an object to the standard output as it comes."""
    import boto3

    bucket, _, key = url.removeprefix("s3://").partition("/")
    body = boto3.client("s3", endpoint_url=endpoint).get_object(Bucket=bucket, Key=key)["Body"]
    for part in body.iter_chunks(1 << 20):
        sys.stdout.buffer.write(part)


def _tell(figures: dict[str, float]) -> None:
    """Print figures, and wait until the parent has read them."""
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()


def measured(arguments: list[str], slow: SlowStore) -> dict[str, float]:
    """Return the figures of one run, and the store's counts meanwhile."""
    slow.served.clear()
    endpoint = f"http://127.0.0.1:{slow.port}"
    found: dict[str, float] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.remote", *arguments],
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for stage in ("first", "epoch"):
            found |= json.loads(process.stdout.readline() or "{}")
            found |= {f"{stage} {what}": number for what, number in slow.served.items()}
            process.stdin.write(b"\n")
            process.stdin.flush()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed.")
    return found


def put(store: ObjectStore, folder: Path, prefix: str) -> int:
    """Upload the files of a folder; their bytes."""
    import boto3

    client = boto3.client("s3", endpoint_url=store.environment["AWS_ENDPOINT_URL"])
    bucket = store.url.removeprefix("s3://")
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in files:
        client.upload_file(str(file), bucket, f"{prefix}/{file.name}")
    return sum(file.stat().st_size for file in files)


def row(name: str, size: int, found: dict[str, float]) -> list[str]:
    """Return a row of the table."""
    return [
        name,
        f"{size / 1e6:,.0f}",
        f"{found['first']:.2f}",
        f"{found['first bytes'] / 1e6:,.1f}",
        f"{found['first requests']:,.0f}",
        f"{found['epoch']:.1f}",
        f"{found['read']:.1f}",
        f"{size / 1e6 / (found['epoch'] - found['first']):.0f}",
        f"{found.get('cpu', 0) * 1e9 / size:.1f}",
        f"{found['epoch bytes'] / size:.2f}",
    ]


HEAD = [
    "layout", "files, MB", "first, s", "MB", "requests", "epoch, s", "read, s", "MB/s",
    "CPU ms/MB", "x", "x of 4 hosts",
]  # fmt: skip


def compare(arguments: argparse.Namespace) -> None:
    """Run the layouts one after the other, and print the table."""
    wanted = {name: own for name, own in LAYOUTS.items() if arguments.only in name}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        far = far_store(base / "store", arguments.delay_s, arguments.bytes_per_s)
        with far as (store, slow, fast):
            for number, (name, layout) in zip(itertools.count(), wanted.items(), strict=False):
                folder = base / str(number)
                folder.mkdir()
                documents = layouts.lognormal(arguments.megabytes * 1e6 / layout.id_bytes)
                layout.write(folder, documents)
                size = put(store, folder, folder.name)
                url = f"{store.url}/{folder.name}"
                found = measured(["--read", name, url], slow)
                shares = measured(["--share", name, url], fast)
                rows.append([*row(name, size, found), f"{shares['epoch bytes'] / size:.2f}"])
                print(" | ".join(rows[-1]), file=sys.stderr)
                if arguments.webdataset and layout.kind is sources.WebDataset:
                    peer = row(PEER, size, measured(["--read", PEER, url], slow))
                    rows.append([*peer, ""])
    print_table(f"From {store.name}, in {LANES} lanes", HEAD, rows)


@contextmanager
def far_store(
    folder: Path, delay_s: float = 0.03, bytes_per_s: float = 50e6
) -> Iterator[tuple[ObjectStore, SlowStore, SlowStore]]:
    """Run a store in a folder, a proxy before it that makes it far away, and one that counts."""
    with object_store(folder, find_weed()) as store:
        port = urlsplit(store.environment["AWS_ENDPOINT_URL"]).port or 0
        with (
            slow_store(port, delay_s=delay_s, bytes_per_s=bytes_per_s) as slow,
            slow_store(port, delay_s=0.0, bytes_per_s=1e12) as fast,
        ):
            yield store, slow, fast


def main() -> None:
    """One run, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100.0, help="of each layout's files")
    parser.add_argument("--only", default="", help="layouts whose names contain this")
    parser.add_argument("--delay-s", type=float, default=0.03)
    parser.add_argument("--bytes-per-s", type=float, default=50e6)
    parser.add_argument("--webdataset", action="store_true")
    parser.add_argument("--read", nargs=2, metavar=("NAME", "URL"), help="one run")
    parser.add_argument("--share", nargs=2, metavar=("NAME", "URL"), help="one run of hosts")
    parser.add_argument("--cat", nargs=2, metavar=("URL", "ENDPOINT"), help="one object")
    arguments = parser.parse_args()
    if arguments.cat:
        cat(*arguments.cat)
    elif arguments.share:
        read_share(*arguments.share)
    elif arguments.read:
        name, url = arguments.read
        read_peer(url) if name == PEER else read(name, url)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
