"""Footers of Parquet files, whole and damaged, and what they say of chunks of columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.sources.parquet.column_chunks import DamagedFooterError, column_chunks
from streampack.sources.parquet.footer import footer_bytes

KINDS = ["int8", "uint16", "int32", "uint32", "int64", "uint64"]


def _values(rng: np.random.Generator, kind: str, rows: int) -> list[list[int]]:
    top = min(int(np.iinfo(kind).max), 1 << 40)
    low = max(int(np.iinfo(kind).min), -5)
    return [rng.integers(low, top, n).tolist() for n in rng.integers(0, 6, rows)]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(0, 40),
    group_rows=st.sampled_from([1, 7, 1000]),
    seed=st.integers(0, 1000),
    statistics=st.booleans(),
    dictionary=st.booleans(),
    codec=st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli"]),
    others=st.integers(0, 20),
)
def test_chunks_are_what_pyarrow_says_of_them(
    tmp_path_factory: Any, kind: str, rows: int, group_rows: int, seed: int, statistics: bool,
    dictionary: bool, codec: str, others: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    ids = pa.array(_values(rng, kind, rows), pa.list_(getattr(pa, kind)()))
    columns = {f"c{i}": pa.array([str(i)] * rows) for i in range(others)}
    columns["ids"] = ids
    nested = pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())})
    columns["both"] = pa.array([{"a": i, "b": [str(i)]} for i in range(rows)], nested)
    path = tmp_path_factory.mktemp("chunks") / "a.parquet"
    pq.write_table(
        pa.table(columns), path, row_group_size=group_rows, compression=codec,
        write_statistics=statistics, use_dictionary=dictionary, write_page_index=bool(seed % 2),
    )  # fmt: skip
    metadata = pq.read_metadata(path)
    found = column_chunks(metadata, footer_bytes(str(path)), ["ids", "both"])
    assert len(found) == metadata.num_row_groups
    for group, chunks in enumerate(found):
        assert len(chunks) == 3
        for chunk, number in zip(chunks, range(others, others + 3), strict=True):
            known = metadata.row_group(group).column(number)
            assert chunk.num_values == known.num_values
            assert chunk.uncompressed_bytes == known.total_uncompressed_size
            assert chunk.compressed_bytes == known.total_compressed_size
            assert chunk.data_page_offset == known.data_page_offset
            assert chunk.codec == known.compression
            assert chunk.physical_type in (known.physical_type, "")
            if known.has_dictionary_page:
                assert chunk.dictionary_page_offset == known.dictionary_page_offset
            if number == others and known.statistics is not None and known.statistics.has_min_max:
                signed = not kind.startswith("u")
                assert chunk.smallest is not None
                assert chunk.largest is not None
                low = int.from_bytes(chunk.smallest, "little", signed=signed)
                high = int.from_bytes(chunk.largest, "little", signed=signed)
                assert (low, high) == (known.statistics.min, known.statistics.max)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_damaged_bytes_are_walked_without_harm(whole: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    footer = footer_bytes(str(whole)).copy()
    metadata = pq.read_metadata(whole)
    for at in rng.integers(0, len(footer), int(rng.integers(1, 6))):
        footer[at] = rng.integers(0, 256)
    footer = footer[: int(rng.integers(0, len(footer) + 1)) if rng.random() < 0.3 else None]
    try:
        found = column_chunks(metadata, footer, ["ids"])
    except DamagedFooterError:
        return
    assert [len(chunks) for chunks in found] == [1, 1, 1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = _values(np.random.default_rng(0), "int64", 30)
    path = tmp_path_factory.mktemp("whole") / "a.parquet"
    table = pa.table({"ids": pa.array(rows, pa.list_(pa.int64())), "n": list(range(30))})
    pq.write_table(table, path, row_group_size=10, store_schema=False)
    return path


_FLIP = """
import logging, sys
from pathlib import Path
from streampack.errors import StreampackError
from streampack.sources import Parquet
from streampack.reading.skips import Skips

logging.disable()
whole, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
ended = {"read": 0, "refused": 0}
for bit in range(int(sys.argv[3]), 8 * (len(whole) - 8 - footer), 7):
    data = bytearray(whole)
    data[footer + bit // 8] ^= 1 << bit % 8
    (folder / "a.parquet").write_bytes(data)
    try:
        source = Parquet(folder, tokens="ids", open_shards=1)
        source.prepare()
        lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
        for block, _ in lane.read(None, Skips("skip")):
            len(block)
        ended["read"] += 1
    except StreampackError:
        ended["refused"] += 1
print(ended["read"], ended["refused"])
"""


@pytest.mark.parametrize("first", [0, 3])
def test_no_flipped_bit_of_a_footer_ends_the_process(
    whole: Path, tmp_path: Path, first: int
) -> None:
    command = [sys.executable, "-c", _FLIP, str(whole), str(tmp_path), str(first)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    read, refused = map(int, run.stdout.split())
    assert read > 100
    assert refused > 10
