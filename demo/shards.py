"""The corpus as MDS and tar shards."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DIMENSIONS = 1 << 2 | 2  # of an array: one, told by four bytes


def write_mds(documents: Sequence[NDArray[np.generic]], folder: Path, shard_bytes: int) -> None:
    """Write MDS shards with one column of ids, `tokens`, as mosaicml-streaming writes them."""
    folder.mkdir()
    about: dict[str, Any] = {
        "column_encodings": [f"ndarray:{documents[0].dtype}"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": shard_bytes,
        "version": 2,
    }
    head = json.dumps(about, sort_keys=True).encode()
    samples, shards, left = [*map(_mds_sample, documents)], list[dict[str, Any]](), 0
    for number in count():
        ends = np.cumsum([len(sample) + 4 for sample in samples[left:]])
        taken = samples[left : left + max(int((ends < shard_bytes).sum()), 1)]
        if not taken:
            break
        left += len(taken)
        begin = 4 + 4 * (len(taken) + 1) + len(head)
        offsets = np.cumsum([begin, *map(len, taken)], dtype=np.uint32)
        name = f"shard.{number:05}.mds"
        shard = np.uint32(len(taken)).tobytes() + offsets.tobytes() + head + b"".join(taken)
        (folder / name).write_bytes(shard)
        raw = {"basename": name, "bytes": len(shard), "hashes": {}}
        shards.append({**about, "raw_data": raw, "samples": len(taken), "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def _mds_sample(ids: NDArray[np.generic]) -> bytes:
    """Return a sample: the size of its array, and the array after its shape."""
    array = bytes([_DIMENSIONS]) + np.uint32(len(ids)).tobytes() + ids.tobytes()
    return np.uint32(len(array)).tobytes() + array


def write_tars(documents: Sequence[NDArray[np.generic]], folder: Path, files: int) -> None:
    """Write tar shards with a member of ids, `00000012.npy`, for each document."""
    folder.mkdir()
    for number in range(files):
        with tarfile.open(folder / f"shard-{number:03}.tar", "w") as archive:
            for i in range(number, len(documents), files):
                np.save(data := io.BytesIO(), documents[i])
                member = tarfile.TarInfo(f"{i:08}.npy")
                member.size = data.tell()
                data.seek(0)
                archive.addfile(member, data)
