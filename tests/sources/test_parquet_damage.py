"""Damaged Parquet files: footers and pages with flipped bits, and files that claim too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.errors import ContentError
from streampack.sources import Parquet
from tests.support.source_contract import read_all

#: Reads a file with damage in many places, one after the other, in a process that a signal would
#: end. Arguments: the file, an empty folder, "footer" or "pages".
_DAMAGE = """
import logging, random, sys
from pathlib import Path
from streampack.errors import StreampackError
from streampack.sources import Parquet
from streampack.sources.skips import Skips

logging.disable()
whole, folder, where = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), sys.argv[3]
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
kinds = [{"text": "text"}, {"tokens": "ids", "loss_mask": "mask"}]
ended = [{"read": 0, "refused": 0} for _ in kinds]
rng = random.Random(0)
flips = [[bit] for bit in range(8 * footer, 8 * len(whole), 13)]
if where == "pages":
    flips = [[rng.randrange(32, 8 * footer) for _ in range(1 + k % 4)] for k in range(300)]
for bits in flips:
    data = bytearray(whole)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    (folder / "a.parquet").write_bytes(data)
    for columns, own in zip(kinds, ended):
        try:
            source = Parquet(folder, **columns)
            source.prepare()
            lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
            skips = Skips("skip")
            for block, _ in lane.read(None, skips):
                len(block)
            own["refused" if skips.count else "read"] += 1
        except StreampackError:
            own["refused"] += 1
for own in ended:
    print(own["read"], own["refused"])
"""


def _write(path: Path, **options: Any) -> Path:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1 << 32, n).tolist() for n in rng.integers(0, 6, 30)]
    columns = {
        "ids": pa.array(rows, pa.list_(pa.int64())),
        "mask": pa.array([[i % 2 == 0 for i in row] for row in rows]),
        "text": pa.array([f"{i} wörd " * (i % 5) for i in range(30)]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=10, **options)
    return path


def _read_damaged(path: Path, folder: Path, where: str) -> np.ndarray[Any, Any]:
    """Of texts and of ids, how many damaged files were read in whole, and how many refused."""
    folder.mkdir()
    command = [sys.executable, "-c", _DAMAGE, str(path), str(folder), where]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    return np.array(run.stdout.split(), dtype=int).reshape(2, 2)


@pytest.mark.parametrize(
    "options",
    [{"write_page_index": True, "compression": "zstd"}],
)
def test_no_flipped_bit_of_a_footer_ends_the_process(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = _write(tmp_path / "whole.parquet", **options)
    assert (_read_damaged(path, tmp_path / "damaged", "footer") > 100).all()


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "snappy", "data_page_version": "2.0"},
    ],
    ids=["dictionary", "second-version"],
)
def test_no_damaged_page_ends_the_process(tmp_path: Path, options: dict[str, Any]) -> None:
    path = _write(tmp_path / "whole.parquet", **options)
    assert (_read_damaged(path, tmp_path / "damaged", "pages") > 30).all()


def test_a_flipped_bit_of_a_page_with_a_checksum_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", write_page_checksum=True, compression="none")
    whole = path.read_bytes()
    at = whole.index("3 wörd 3 wörd".encode())
    path.write_bytes(whole[:at] + b"4" + whole[at + 1 :])
    with pytest.raises(ContentError) as caught:
        read_all(Parquet(path, text="text"))
    assert caught.value.rest_of_shard
