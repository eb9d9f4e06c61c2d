"""Small corpora of ids that are converted in many parts, and kills on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import open as open_source

#: Options of the command that give the parts and shards of `conversion`.
OPTIONS = ("--tokens", "ids", "--part-size", "9kB", "--shard-size", "3kB")


def write_lines(folder: Path) -> Path:
    """Three files of JSON lines with 390 documents."""
    rng = np.random.default_rng(3)
    for file in range(3):
        rows = [
            json.dumps({"ids": [file, n, *rng.integers(0, 60_000, rng.integers(0, 60)).tolist()]})
            for n in range(130)
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def documents_in(folder: Path) -> list[list[int]]:
    """The documents of the files, in order."""
    texts = [path.read_text() for path in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line)["ids"] for text in texts for line in text.splitlines()]


def conversion(source: Path, out: Path | Destination, **options: Any) -> Conversion:
    """A conversion in about twelve parts of a few shards each."""
    return Conversion(
        source=open_source(source, tokens="ids", reading=ReadOptions(open_shards=1)),
        destination=out if isinstance(out, Destination) else Destination(str(out)),
        **{"shard_bytes": 3_000, "part_bytes": 9_000, **options},
    )


def content(folder: Path) -> dict[str, bytes]:
    """All files."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def documents_of(folder: Path) -> list[list[int]]:
    """The documents of the shards, in order."""
    shards = sorted(folder.glob("part-*.parquet"))
    return [row for shard in shards for row in pq.read_table(shard)["tokens"].to_pylist()]


def written(out: Path) -> int:
    """The number of shards and notes."""
    return len([*out.glob("part-*"), *out.glob(".streampack/part-*")])


class Slow(Destination):
    """Takes some time for each file."""

    def put(self, file: Path, name: str) -> None:
        time.sleep(0.05)
        super().put(file, name)


_files: Counter[str] = Counter()  # of this process, by the destination


class Dying(Destination):
    """Ends a worker at one of its files, as many times as asked."""

    def __init__(self, url: Path, marker: Path, at: int, times: int = 1) -> None:
        super().__init__(str(url))
        self.driver = os.getpid()
        self.marker, self.at, self.times = marker, at, times
        marker.mkdir()

    def put(self, file: Path, name: str) -> None:
        if os.getpid() != self.driver:
            _files[self.url] += 1
            if _files[self.url] > self.at:
                self._die()
        super().put(file, name)

    def _die(self) -> None:
        for number in range(self.times):
            try:
                (self.marker / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
