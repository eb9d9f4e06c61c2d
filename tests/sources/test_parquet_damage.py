"""Damaged Parquet files: footers and pages with flipped bits, and files that claim too much."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.parametrize("claimed", [1 << 62, -1])
def test_rows_that_no_file_has_are_refused(tmp_path: Path, claimed: int) -> None:
    path = _uncompressed(tmp_path / "a.parquet", [[i % 7] for i in range(ROWS)])
    _claim(path, ROWS, claimed)
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


def test_a_page_that_claims_more_rows_than_its_group_takes_no_memory_for_them(
    tmp_path: Path,
) -> None:
    path, rows, claimed = tmp_path / "a.parquet", 10_001, 1 << 30
    _uncompressed(path, [[]] * rows, use_dictionary=False, write_statistics=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    data = path.read_bytes()
    page = data[4 : 4 + size]
    assert page.count(_number(rows)) == 3  # of values, and two runs of levels
    more = len(_number(claimed)) - len(_number(rows))
    for old, new in (
        (_number(rows), _number(claimed)),
        (bytes([4, 0, 0, 0]), bytes([4 + more, 0, 0, 0])),  # bytes of levels
        (b"\x15" + _number(16), b"\x15" + _number(16 + 2 * more)),  # bytes of the page
    ):
        page = page.replace(old, new)
    path.write_bytes(b"PAR1" + page + data[4 + size :])
    _claim(path, size, len(page))
    with _arrow_memory() as pool:
        with pytest.raises(ContentError, match="lists of row group 0 would unfold"):
            read_all(Parquet(path, tokens="ids"))
        assert pool.max_memory() < 1 << 20


def test_of_rows_that_take_few_bytes_only_some_are_decoded_at_once(tmp_path: Path) -> None:
    path, text = tmp_path / "a.parquet", "x" * 20_000
    pq.write_table(pa.table({"text": [text] * 8000}), path)
    assert path.stat().st_size < 40_000
    with _arrow_memory() as pool:
        assert read_all(Parquet(path)) == [text] * 8000
        assert pool.max_memory() < 80 << 20  # of 160 million bytes


# ------------------------------------------------------------------ bombs


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        {"use_dictionary": False, "compression": "zstd", "write_batch_size": 1},
        {"use_dictionary": False, "write_batch_size": 1, "data_page_version": "2.0"},
    ],
    ids=["dictionary", "prefixes", "plain", "second-version"],
)
def test_long_texts_among_short_ones_are_decoded_a_few_at_a_time(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path, most = tmp_path / "a.parquet", 3 << 20
    texts = ["short"] * 3000 + ["x" * (1 << 20)] * 60 + ["short"] * 3000
    pq.write_table(pa.table({"text": texts}), path, data_page_size=1 << 20, **options)
    with _arrow_memory() as pool:
        assert read_all(Parquet(path, reading=Reading(max_document_bytes=most))) == texts
        assert pool.max_memory() < 8 * most


def test_a_page_that_unfolds_to_more_than_the_limit_is_refused_before_it_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * (40 << 20)]}), path, compression="zstd")
    source = Parquet(path, reading=Reading(max_document_bytes=32 << 20))
    with _arrow_memory() as pool:
        with pytest.raises(ContentError, match="max_document_bytes=") as caught:
            read_all(source)
        assert str(path) in str(caught.value)
        assert read_all(source, Skips("skip")) == []
        assert pool.max_memory() < 1 << 20
    assert len(read_all(Parquet(path))) == 1


@pytest.mark.parametrize("rows", [[20_000_000], [1] * 5000 + [20_000_000]], ids=["one", "among"])
def test_a_list_of_ids_that_unfolds_to_more_than_the_limit_is_refused_before_it_does(
    tmp_path: Path, rows: list[int]
) -> None:
    path = tmp_path / "a.parquet"
    ids = pa.array(np.ones(sum(rows), dtype=np.int32))
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    pq.write_table(pa.table({"ids": pa.ListArray.from_arrays(offsets, ids)}), path)
    assert path.stat().st_size < 100_000
    with _arrow_memory() as pool:
        source = Parquet(path, tokens="ids", reading=Reading(max_document_bytes=32 << 20))
        with pytest.raises(ContentError, match="max_document_bytes="):
            read_all(source)
        assert pool.max_memory() < 1 << 20


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


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_above_the_limit_that_hold_what_they_say_are_read(
    tmp_path: Path, version: str
) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 50_000, n) for n in rng.integers(0, 3000, 2000)]
    table = pa.table(
        {
            "ids": rows,
            "mask": [np.ones(len(row), dtype=np.bool_) for row in rows],
            "text": [" ".join(map(str, row)) for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", data_page_version=version)
    reading = Reading(max_document_bytes=100_000)
    for arguments in ({"tokens": "ids", "loss_mask": "mask"}, {"text": "text"}):
        source = Parquet(tmp_path / "a.parquet", reading=reading, **arguments)
        assert len(read_all(source)) == 2000


@contextmanager
def _arrow_memory() -> Iterator[pa.MemoryPool]:
    """What Arrow allocates meanwhile."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
