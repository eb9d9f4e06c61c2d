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
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.errors import StreampackError
from streampack.reading.sharded import ShardedSource
from streampack.reading.skips import Skips
from streampack.sources import JSONL, MDS, Parquet, WebDataset
from tests.support.corpora import write_mds

#: Numbers at which sums, shifts and products of 32 and 64 bits turn over.
_EXTREME = [0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**64 - 1]

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
    return folder / "gnu.tar", lambda: WebDataset(folder / "gnu.tar", key="npy")


def _pax(folder: Path) -> Made:
    _npy(folder)
    return folder / "pax.tar", lambda: WebDataset(folder / "pax.tar", key="npy")


def _tar_of_json(folder: Path) -> Made:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for i in range(4):
            content = json.dumps({"ids": list(range(i))}).encode()
            member = tarfile.TarInfo(f"{i}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder / "a.tar", lambda: WebDataset(folder / "a.tar", key="json", tokens="ids")


def _mds(folder: Path) -> Made:
    ids = [np.arange(n, dtype=np.uint16) for n in (3, 1, 300, 7)]
    out = Path(write_mds(folder, ids))
    return out / "shard.00000.mds", lambda: MDS(out, column="t")


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


def _with_checksums(data: bytearray) -> None:
    """Let every header of a tar have the checksum of what it says, as an attacker would."""
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def _damage(rng: random.Random, whole: bytes, path: Path) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        if path.suffix == ".json" and (places := [i for i, b in enumerate(data) if 48 <= b <= 57]):
            at = rng.choice(places)
            data[at : at + 1] = str(rng.choice(_EXTREME)).encode()
            continue
        kind = rng.choice(["bit", "number", "digits", "cut", "copy"])
        if kind == "bit":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "number":
            data[at : at + 8] = struct.pack(rng.choice("<>") + "Q", rng.choice(_EXTREME))
        elif kind == "digits":
            data[at : at + 11] = b"%011o" % rng.randrange(8**11)
        elif kind == "copy":
            source = rng.randrange(len(data))
            data[at : at + 16] = data[source : source + 16]
        elif rng.random() < 0.3:
            del data[at:]
        if not data:
            break
    if path.suffix == ".tar" and rng.random() < 0.7:
        _with_checksums(data)
    return bytes(data)


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
            path.write_bytes(_damage(rng, whole, path))
            read += _is_read_whole(source)
        ended[make.__name__[1:]] = [read, int(cases) - read]
    print(json.dumps(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
