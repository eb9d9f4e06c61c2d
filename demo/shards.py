"""The corpus as MDS and tar shards, written by the formats' own writers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.mosaic import streaming_module


def write_mds(documents: Sequence[NDArray[np.generic]], folder: Path, shard_bytes: int) -> None:
    """Write MDS shards with one column of ids, `tokens`."""
    columns = {"tokens": f"ndarray:{documents[0].dtype}"}
    with (
        streaming_module("base.format.mds") as mds,
        mds.MDSWriter(out=str(folder), columns=columns, size_limit=shard_bytes) as writer,
    ):
        for ids in documents:
            writer.write({"tokens": ids})


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
