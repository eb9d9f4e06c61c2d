"""A real corpus that every machine with Python has: Python's own source and its packages' source.

Thousands of documents with a heavy tail, as in pre-training corpora: half of the files are short,
a few are hundreds of times as long.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["gather", "write_parquet"]

_LONGEST = 1 / 16  # of the corpus, so that no lane lies inside one document
_ROWS_PER_GROUP = 64


def gather(limit_bytes: int) -> list[str]:
    """Texts of .py files on this machine, each once, about `limit_bytes` in all.

    Which files are taken is a function of their names, so the same machine gives the same corpus.
    """
    texts: list[str] = []
    seen: set[bytes] = set()
    total = 0
    for path in sorted(_files(), key=lambda path: _digest(path.as_posix().encode())):
        try:
            data = path.read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        digest = _digest(data)  # packages carry copies of each other's files
        if len(data) < 64 or len(data) > _LONGEST * limit_bytes or digest in seen:
            continue
        seen.add(digest)
        texts.append(text)
        total += len(data)
        if total >= limit_bytes:
            break
    return texts


def _files() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    roots = {Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")}
    outer = [root for root in roots if not any(root.is_relative_to(r) for r in roots - {root})]
    for root in outer:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def write_parquet(texts: list[str], folder: Path, files: int) -> None:
    """Write the texts to Parquet files with one column, `text`."""
    folder.mkdir(parents=True)
    for number in range(files):
        part = texts[number * len(texts) // files : (number + 1) * len(texts) // files]
        pq.write_table(
            pa.table({"text": pa.array(part, type=pa.string())}),
            folder / f"part-{number:03}.parquet",
            row_group_size=_ROWS_PER_GROUP,
            compression="zstd",
        )
