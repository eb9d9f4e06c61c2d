"""Reads shards with damage in many places, in kernels that check every index.

``python -m tests.support.damaged_shards FOLDER SEED CASES`` with NUMBA_BOUNDSCHECK=1. It ends in an
error if anything but a `StreampackError` is raised, and prints how many shards were read and how
many were refused in part or whole.
"""

from __future__ import annotations

import io
import json
import logging
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.errors import StreampackError
from streampack.sources import JSONL, MDS, Parquet, WebDataset
from streampack.sources.sharded import ShardedSource
from streampack.sources.skips import Skips
from tests.support.corpora import write_mds
from tests.support.damage import damaged

Made = tuple[Path, Callable[[], ShardedSource]]


def _npy(folder: Path) -> Made:
    """Members of each dtype and version, with GNU's long names and pax headers."""
    for name, form in (("gnu.tar", tarfile.GNU_FORMAT), ("pax.tar", tarfile.PAX_FORMAT)):
        with tarfile.open(folder / name, "w", format=form) as archive:
            for i, kind in enumerate(["uint16", "int64", "uint8", "int32"]):
                stream = io.BytesIO()
                values = np.arange(5 * i + 1).astype(kind)
                np.lib.format.write_array(stream, values, version=(1 + i % 2, 0))
                member = tarfile.TarInfo(f"{'d' * 60 * (i % 3)}/é{i}.npy")
                member.size = stream.tell()
                stream.seek(0)
                archive.addfile(member, stream)
    return folder / "gnu.tar", lambda: WebDataset(folder / "gnu.tar", tokens="npy")


def _pax(folder: Path) -> Made:
    _npy(folder)
    return folder / "pax.tar", lambda: WebDataset(folder / "pax.tar", tokens="npy")


def _tar_of_json(folder: Path) -> Made:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for i in range(4):
            content = json.dumps({"ids": list(range(i))}).encode()
            member = tarfile.TarInfo(f"{i}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder / "a.tar", lambda: WebDataset(folder / "a.tar", tokens="json:ids")


def _mds(folder: Path) -> Made:
    ids = [np.arange(n, dtype=np.uint16) for n in (3, 1, 300, 7)]
    out = Path(write_mds(folder, ids))
    return out / "shard.00000.mds", lambda: MDS(out)


def _mds_index(folder: Path) -> Made:
    _, source = _mds(folder)
    return folder / "mds" / "index.json", source


def _parquet(folder: Path) -> Made:
    rows = [list(range(n)) for n in (3, 0, 40, 7)]
    pq.write_table(pa.table({"ids": rows}), folder / "a.parquet")
    return folder / "a.parquet", lambda: Parquet(folder / "a.parquet", tokens="ids")


def _jsonl(folder: Path) -> Made:
    lines = [json.dumps({"ids": list(range(n))}) for n in (3, 0, 40, 7)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl", lambda: JSONL(folder / "a.jsonl", tokens="ids")


def _is_read_whole(make: Callable[[], ShardedSource]) -> bool:
    try:
        source = make()
        source.prepare()
        skips = Skips("skip")
        for block, _ in source.lanes(1, seed=0, epoch=0, shuffle=True)[0].read(None, skips):
            len(block)
    except StreampackError:
        return False
    return not skips.count


def main(folder: str, seed: str, cases: str) -> None:
    logging.disable()
    rng = random.Random(int(seed))
    ended: dict[str, Any] = {}
    for make in (_npy, _pax, _tar_of_json, _mds, _mds_index, _parquet, _jsonl):
        place = Path(folder) / make.__name__
        place.mkdir()
        path, source = make(place)
        assert _is_read_whole(source), path
        whole = path.read_bytes()
        read = 0
        for _ in range(int(cases)):
            path.write_bytes(damaged(rng, whole, path))
            read += _is_read_whole(source)
        ended[make.__name__[1:]] = [read, int(cases) - read]
    print(json.dumps(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
