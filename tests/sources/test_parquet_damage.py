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

from streampack.errors import ConfigError, ContentError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources import Parquet
from streampack.sources.parquet import source as parquet
from tests.support.source_contract import read_all

#: Reads a file with damage in many places, one after the other, in a process that a signal would
#: end. Arguments: the file, an empty folder, "footer" or "pages".
_DAMAGE = """
import logging, random, sys
from pathlib import Path
from streampack.errors import StreampackError
from streampack.sources import Parquet
from streampack.reading.skips import Skips

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
    [{"store_schema": False}, {"write_page_index": True, "compression": "zstd"}],
    ids=["plain", "page-index"],
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
        {"compression": "none", "use_dictionary": False},
    ],
    ids=["dictionary", "second-version", "plain"],
)
def test_no_damaged_page_ends_the_process(tmp_path: Path, options: dict[str, Any]) -> None:
    path = _write(tmp_path / "whole.parquet", **options)
    assert (_read_damaged(path, tmp_path / "damaged", "pages") > 30).all()


# ------------------------------------------------------------------ claims


def _number(value: int) -> bytes:
    """As Thrift's compact protocol writes it: zigzag, seven bits a byte, low ones first."""
    value = 2 * value if value >= 0 else -2 * value - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _claim(path: Path, number: int, claimed: int) -> None:
    """Write another number into a footer, everywhere it stands there."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:-8]
    assert _number(number) in footer
    footer = footer.replace(_number(number), _number(claimed))
    path.write_bytes(data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


ROWS = 70_001


def _uncompressed(path: Path, rows: list[list[int]], **options: Any) -> Path:
    """One row group, in whose footer the number of rows is found if it is large."""
    table = pa.table({"ids": pa.array(rows, pa.list_(pa.int32()))})
    pq.write_table(table, path, store_schema=False, compression="none", **options)
    return path


def test_a_row_group_that_is_shorter_than_it_claims_is_named_after_its_rows(tmp_path: Path) -> None:
    path = _uncompressed(tmp_path / "a.parquet", [[i % 7] for i in range(ROWS)])
    _claim(path, ROWS, 1 << 36)
    skips = Skips("skip")
    assert len(read_all(Parquet(path, tokens="ids"), skips)) == ROWS
    assert [record[:3] for record in skips.records] == [[0, ROWS, True]]
    with pytest.raises(ContentError, match=rf"from row {ROWS} on: row group 0 is too short"):
        read_all(Parquet(path, tokens="ids"))


def test_rows_below_zero_are_refused(tmp_path: Path) -> None:
    path = _uncompressed(tmp_path / "a.parquet", [[i % 7] for i in range(ROWS)])
    _claim(path, ROWS, -1)
    with pytest.raises(ConfigError, match="its footer is broken"):
        Parquet(path, tokens="ids").prepare()


def test_row_groups_below_zero_are_refused_also_where_nobody_looked_at_the_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 1)
    rows = [[i] * 40 for i in range(300)]
    for name in "ab":
        table = pa.table({"ids": pa.array(rows, pa.list_(pa.int32()))})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=200)
    _claim(tmp_path / "b.parquet", 100, 400)
    _claim(tmp_path / "b.parquet", 200, -100)
    assert pq.read_metadata(tmp_path / "b.parquet").row_group(0).num_rows == -100
    with pytest.raises(ContentError, match="do not add up"):
        read_all(Parquet(tmp_path, tokens="ids"))
    assert len(read_all(Parquet(tmp_path, tokens="ids"), Skips("skip"))) == 300


@pytest.mark.parametrize("column", ["text", "ids"])
def test_a_row_above_the_limit_is_a_broken_document_and_the_others_are_read(
    tmp_path: Path, column: str
) -> None:
    rows = [np.arange(n) for n in (5, 1000, 7)]
    table = {"ids": rows, "text": ["x" * len(row) * 4 for row in rows]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", compression="none")
    arguments: dict[str, Any] = {{"text": "text", "ids": "tokens"}[column]: column}
    reading = Reading(max_document_bytes=3000)
    skips = Skips("skip")
    found = read_all(Parquet(tmp_path / "a.parquet", reading=reading, **arguments), skips)
    assert [len(document) * (1 if column == "text" else 4) for document in found] == [20, 28]
    assert [record[:3] for record in skips.records] == [[0, 1, False]]
    assert "4000 bytes" in skips.records[0][3]
