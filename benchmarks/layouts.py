"""The layouts of files that people have, in one lane and twelve: ``python -m benchmarks.layouts``.

Each run reads all of a layout in a process of its own, into rows of 1,024 tokens, with an empty
cache and from files that are not in memory. Before it, the same process reads the first batch, so
kernels are loaded. Documents are lognormal(6.0, 1.1) ids unless noted.

- "first": seconds to the first batch, listing included.
- "ns": nanoseconds of processor time (user and system, all threads) per token.
- "x lane": 12 lanes over one lane; "x tokens": 12 lanes over tokenizing alone, on one thread.
- "MiB": private memory of the process, beyond what it had before.
- "read", "written": MB of files, or received from the store. The system's read-ahead counts.

``--remote`` adds layouts in an S3 store on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import feather

from benchmarks.report import print_table
from demo.object_store import find_weed, object_store
from streampack import PackedDataset, Topology, sources
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization.tokenizer import Tokenizer

Documents = list[NDArray[np.uint16]]
LANES = (1, 12)
SEQ_LEN = 1024
SAMPLED = 64  # batches between two looks at the memory
TEXT_BYTES = 24e6
TEXT_CALL = 256


def lognormal(tokens: float) -> Documents:
    """So many ids."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6.0, 1.1, max(int(tokens) // 740, 1)).astype(np.int64).clip(1, 16_000)
    return [rng.integers(1, 50_000, n, np.uint16) for n in lengths]


def of_length(tokens: float, length: int) -> Documents:
    """Documents of one length, so many ids in all."""
    rng = np.random.default_rng(0)
    return list(rng.integers(1, 50_000, (max(int(tokens) // length, 24), length), np.uint16))


def table_of(documents: Documents) -> pa.Table:
    """A column of lists."""
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int32)
    return pa.table({"tokens": pa.ListArray.from_arrays(offsets, np.concatenate(documents))})


def one_row_group(folder: Path, documents: Documents) -> None:
    """A row group as pandas and pyarrow write up to a million rows."""
    pq.write_table(table_of(documents), folder / "a.parquet", row_group_size=len(documents))


def small_row_groups(folder: Path, documents: Documents) -> None:
    """Row groups of 100 rows."""
    pq.write_table(table_of(documents), folder / "a.parquet", row_group_size=100)


def wide(folder: Path, documents: Documents) -> None:
    """Ids beside texts, numbers and nested records, some six times as many bytes."""
    table = table_of(documents)
    rng = np.random.default_rng(1)
    texts = pa.array([rng.bytes(len(ids)).hex() for ids in documents])
    turns = pa.array([[{"role": "user", "text": str(n)}] * (n % 9) for n in range(len(documents))])
    for number in range(4):
        table = table.append_column(f"text_{number}", texts)
        table = table.append_column(f"score_{number}", pa.array(rng.random(len(documents))))
    table = table.append_column("turns", turns)
    pq.write_table(table, folder / "a.parquet", row_group_size=1 << 16)


def lines(codec: str | None) -> Callable[[Path, Documents], None]:
    """Lists of ids, as JSON."""

    def write(folder: Path, documents: Documents) -> None:
        name = "a.jsonl" if codec is None else f"a.jsonl.{codec}"
        with pa.output_stream(str(folder / name), compression=CODECS[codec]) as file:
            for ids in documents:
                file.write(json.dumps({"tokens": ids.tolist()}).encode() + b"\n")

    return write


CODECS = {"gz": "gzip", "zst": "zstd", None: None}


def small_files(folder: Path, documents: Documents) -> None:
    """Files of some 20 KB, a document each."""
    for number, ids in enumerate(documents):
        (folder / f"{number:06d}.jsonl").write_text(json.dumps({"tokens": ids.tolist()}) + "\n")


def archive(codec: str | None) -> Callable[[Path, Documents], None]:
    """A member per document, as numpy saves it."""

    def write(folder: Path, documents: Documents) -> None:
        name = "a.tar" if codec is None else f"a.tar.{codec}"
        with (
            pa.output_stream(str(folder / name), compression=CODECS[codec]) as file,
            tarfile.open(fileobj=file, mode="w|") as tar,
        ):
            for number, ids in enumerate(documents):
                data = BytesIO()
                np.save(data, ids)
                member = tarfile.TarInfo(f"{number:07d}.npy")
                member.size = len(data.getvalue())
                tar.addfile(member, BytesIO(data.getvalue()))

    return write


def arrow_stream(folder: Path, documents: Documents) -> None:
    """An Arrow stream as `datasets` writes it: batches of 1,000 rows."""
    table = table_of(documents)
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def compressed_arrow(folder: Path, documents: Documents) -> None:
    """An Arrow file as `write_feather` makes it by default: lz4, batches of 65,536 rows."""
    feather.write_feather(table_of(documents), folder / "a.feather", compression="lz4")


def mds(shard_bytes: int, **options: Any) -> Callable[[Path, Documents], None]:
    """Shards of so many bytes."""

    def write(folder: Path, documents: Documents) -> None:
        from tests.support.corpora import write_mds

        write_mds(folder, documents, "tokens", size_limit=shard_bytes, **options)
        for file in (folder / "mds").iterdir():
            file.rename(folder / file.name)

    return write


def texts(folder: Path, _: Documents) -> None:
    """Python files of this machine, over and over."""
    from demo.corpus import gather

    found = gather(int(TEXT_BYTES))
    with pa.output_stream(str(folder / "a.jsonl.zst"), compression="zstd") as file:
        for text in found:
            file.write(json.dumps({"text": text}).encode() + b"\n")


@dataclass(frozen=True)
class Layout:
    """A writer of files, the source's class and arguments to read them, and millions of ids."""

    write: Callable[[Path, Documents], None]
    kind: Any
    millions: float
    field: str = "tokens"
    length: int | None = None
    remote: bool = False


LAYOUTS = {
    "MDS, shards of 32 MB": Layout(mds(1 << 25), sources.MDS, 48),
    "Parquet, one row group": Layout(one_row_group, sources.Parquet, 48, remote=True),
    "Parquet, groups of 100 rows": Layout(small_row_groups, sources.Parquet, 48),
    "Parquet, 10 columns, one read": Layout(wide, sources.Parquet, 24, remote=True),
    "one .jsonl.zst": Layout(lines("zst"), sources.JSONL, 24, remote=True),
    "one .jsonl.gz": Layout(lines("gz"), sources.JSONL, 24),
    "one .jsonl.zst of texts": Layout(texts, sources.JSONL, 0, "text"),
    "10,000 .jsonl of 20 KB": Layout(small_files, sources.JSONL, 32, length=3200),
    "tar of 500,000 samples": Layout(archive(None), sources.WebDataset, 10, "npy", 20),
    "one .tar.gz": Layout(archive("gz"), sources.WebDataset, 48, "npy"),
    "MDS, two samples a shard": Layout(mds(3000), sources.MDS, 4, length=700, remote=True),
    "MDS, one shard in zstd": Layout(mds(1 << 30, compression="zstd"), sources.MDS, 48),
    "Arrow, as datasets writes": Layout(arrow_stream, sources.Arrow, 48),
    "Arrow, lz4 batches": Layout(compressed_arrow, sources.Arrow, 48),
}


def find_tokenizer() -> Tokenizer:
    """A production vocabulary."""
    from demo.vocabulary import find_tokenizer

    return find_tokenizer(["a b c"])[0]


def status(name: str) -> int:
    """A number of KiB that the system keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def moved() -> tuple[int, int]:
    """Bytes of files that this process has had read and written."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def leave_memory(folder: Path) -> None:
    """Have the system drop its cached pages of files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(name: str, path: str, lanes: int) -> dict[str, float]:
    """One run; see the module."""
    layout = LAYOUTS[name]
    tokenizer = find_tokenizer() if layout.field == "text" else None

    def batches(cache: str) -> Iterator[Any]:
        names = {"text" if tokenizer else "tokens": layout.field}
        source = layout.kind(path, storage=sources.Storage(cache_dir=cache), **names)
        return iter(
            PackedDataset(
                source, seq_len=SEQ_LEN, lanes=lanes, topology=Topology(), tokenizer=tokenizer
            )
        )

    with tempfile.TemporaryDirectory() as cache:
        next(batches(cache + "/warm"))
        if "://" not in path:
            leave_memory(Path(path))
        before, (read, written), memory = sum(os.times()[:2]), moved(), status("RssAnon")
        began, first, tokens, most = time.perf_counter(), 0.0, 0, 0
        for number, batch in enumerate(batches(cache + "/cold")):
            first = first or time.perf_counter() - began
            tokens += batch.num_tokens
            if number % SAMPLED == 0:
                most = max(most, status("RssAnon") - memory)
        spent, (read_now, written_now) = sum(os.times()[:2]) - before, moved()
        downloads = [f for f in Path(cache, "cold").rglob("*") if "://" in path and f.is_file()]
        received = sum(file.stat().st_size for file in downloads)
    return {
        "first": first,
        "ns": spent / tokens * 1e9,
        "tokens": tokens,
        "MiB": most / 1024,
        "read": max(read_now - read, received if downloads else 0) / 1e6,
        "written": (written_now - written) / 1e6,
    }


def tokenizing(file: Path) -> float:
    """Nanoseconds of processor time per token, of the tokenizer alone on the same texts."""
    with pa.input_stream(str(file), compression="zstd") as stream:
        found = [json.loads(line)["text"] for line in stream.read().splitlines()]
    tokenizer = find_tokenizer()
    calls = [found[first : first + TEXT_CALL] for first in range(0, len(found), TEXT_CALL)]

    def encoded(call: list[str]) -> int:
        block = Texts(call, make_origin(0, np.arange(len(call))))
        return tokenizer.encode(block, ErrorPolicy("raise")).num_tokens

    encoded(calls[0])
    before = sum(os.times()[:2])
    tokens = sum(map(encoded, calls))
    return (sum(os.times()[:2]) - before) / tokens * 1e9


def measured(name: str, path: str) -> list[dict[str, float]]:
    """A run in one lane and one in twelve, each in its own process."""
    command = [sys.executable, "-m", "benchmarks.layouts", "--read", name, path]
    runs = []
    for lanes in LANES:
        done = subprocess.run([*command, str(lanes)], stdout=subprocess.PIPE, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return runs


def row(name: str, size: int, one: dict[str, float], many: dict[str, float]) -> list[Any]:
    """Return a row of the table, but for the comparison with tokenizing."""
    pairs = [f"{one[key]:{form}} / {many[key]:{form}}" for key, form in COLUMNS.items()]
    content = f"{size / 1e6:,.0f} MB, {one['tokens'] / 1e6:,.1f} M"
    return [
        name,
        content,
        pairs[0],
        pairs[1],
        f"{many['ns'] / one['ns']:.2f}" if one["ns"] else "-",  # all is in the first batch
        many["ns"],
        *pairs[2:],
    ]


COLUMNS = {"first": ".2f", "ns": ".1f", "MiB": ".0f", "read": ",.0f", "written": ",.0f"}
HEAD = ["layout", "content", "first, s", "ns", "x lane", "x tokens", "MiB", "read", "written"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="of all layouts; 1 is the table's")
    parser.add_argument("--only", default="", help="layouts whose names contain this")
    parser.add_argument("--remote", action="store_true", help="also in an S3 store")
    parser.add_argument("--read", nargs=3, metavar=("NAME", "PATH", "LANES"), help="one run")
    arguments = parser.parse_args()
    if arguments.read:
        name, path, lanes = arguments.read
        print(json.dumps(read(name, path, int(lanes))))
        return
    rows: list[list[Any]] = []
    wanted = {name: own for name, own in LAYOUTS.items() if arguments.only in name}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        base = Path(scratch)
        store = None
        if arguments.remote:
            store = stack.enter_context(object_store(base / "store", find_weed()))
        (base / "texts").mkdir()
        texts(base / "texts", [])
        alone = tokenizing(base / "texts" / "a.jsonl.zst")
        for number, (name, layout) in enumerate(wanted.items()):
            tokens = layout.millions * 1e6 * arguments.size
            folder = base / str(number)
            folder.mkdir()
            layout.write(
                folder, of_length(tokens, layout.length) if layout.length else lognormal(tokens)
            )
            os.sync()
            files = [file for file in folder.rglob("*") if file.is_file()]
            size = sum(file.stat().st_size for file in files)
            rows.append(row(name, size, *measured(name, str(folder))))
            if store is not None and layout.remote:
                import s3fs

                url = f"{store.url}/{number}"
                s3fs.S3FileSystem().put(str(folder), url, recursive=True)
                rows.append(row(f"{name}, from {store.name}", size, *measured(name, url)))
            print(*rows[-1 - (store is not None and layout.remote) :], sep="\n", file=sys.stderr)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    for cells in rows:
        cells[5] = f"{cells[5] / alone:.2f}"
    print_table("Layouts", HEAD, rows)
    print(f"\nTokenizing alone takes {alone:.0f} ns per token.")


if __name__ == "__main__":
    main()
