"""Lists of ids in whatever way a writer encodes them, read from any row to any other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources import Parquet

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def _write(path: Path, rows: Any, kind: str = "int32", **options: Any) -> None:
    lists = pa.large_list if options.pop("large", False) else pa.list_
    element = pa.field("element", getattr(pa, kind)(), nullable=options.pop("element_null", True))
    field = pa.field("ids", lists(element), nullable=options.pop("list_null", True))
    table = pa.Table.from_arrays([pa.array(rows, field.type)], schema=pa.schema([field]))
    pq.write_table(table, path, **options)


def _read(
    source: Parquet, low: int = 0, high: int | None = None, row: int | None = None
) -> tuple[list[list[int]], list[int]]:
    """The documents of [low, high) of the file's weight, from a row on; and where blocks end."""
    documents, ends = [], []
    for block, end, _ in source.read_shard(0, low, high or source.weight, row, Skips()):
        assert isinstance(block, Documents)
        documents += [block.document(i).tolist() for i in range(len(block))]
        ends.append(end)
    return documents, ends


@st.composite
def _corpora(draw: Any) -> tuple[list[list[int]], dict[str, Any]]:
    kind = draw(st.sampled_from(DTYPES))
    most = min(int(np.iinfo(kind).max), draw(st.sampled_from([1, 100, 60_000, 2**32 - 1])))
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 7, 8, 9, 30, 300]), min_size=1, max_size=60))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    rows = [rng.integers(0, most, n, endpoint=True, dtype=np.uint64).tolist() for n in lengths]
    return rows, {
        "kind": kind,
        "large": draw(st.booleans()),
        "list_null": draw(st.booleans()),
        "element_null": draw(st.booleans()),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli", "lz4"])),
        "use_dictionary": draw(st.booleans()),
        "dictionary_pagesize_limit": draw(st.sampled_from([64, 1 << 20])),
        "data_page_size": draw(st.sampled_from([8, 100, 1 << 20])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_batch_size": draw(st.sampled_from([1, 10, 1024])),
        "row_group_size": draw(st.sampled_from([5, 1000])),
    }


@given(_corpora(), st.integers(1, 70), st.data())
@settings(max_examples=150, deadline=None)
def test_any_parts_of_a_file_hold_what_was_written(
    tmp_path_factory: Any,
    corpus: tuple[list[list[int]], dict[str, Any]],
    block_documents: int,
    data: Any,
) -> None:
    rows, options = corpus
    path = tmp_path_factory.mktemp("spans") / "a.parquet"
    _write(path, rows, **options)
    source = Parquet(path, tokens="ids", reading=Reading(block_documents=block_documents))
    cuts = data.draw(st.lists(st.integers(1, source.weight), max_size=3))
    found = []
    for low, high in pairwise(sorted({0, *cuts, source.weight})):
        documents, ends = _read(source, low, high)
        if ends:
            row = data.draw(st.sampled_from(ends))
            assert _read(source, low, high, row)[0] == rows[row : len(found) + len(documents)]
        found += documents
    assert found == rows


@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_rarer_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path, rows = tmp_path / "a.parquet", [[5, 6, 7], [], [8] * 100]
    column = {"ids.list.element": encoding}
    _write(path, rows, use_dictionary=False, column_encoding=column)
    assert _read(Parquet(path, tokens="ids"))[0] == rows


def test_many_pages_and_dictionaries_of_every_width(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for entries in (1, 2, 9, 300, 5000, 70_000, 300_000):
        ids = rng.integers(0, entries, 400_000)
        cuts = np.sort(rng.choice(400_000, 700, replace=False))
        rows = [part.tolist() for part in np.split(ids, cuts)]
        _write(tmp_path / "a.parquet", rows, dictionary_pagesize_limit=4 << 20)
        reading = Reading(block_documents=100)
        source = Parquet(tmp_path / "a.parquet", tokens="ids", reading=reading)
        assert _read(source, row=17)[0] == rows[17:]
        third = source.weight // 3
        parts = [_read(source, n * third, (n + 1) * third)[0] for n in range(2)]
        assert 0.3 < len(parts[0]) / len(rows) < 0.37
        assert [*parts[0], *parts[1]] == rows[: len(parts[0]) + len(parts[1])]


def test_blocks_are_the_same_from_wherever_a_lane_begins(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    rows = [rng.integers(0, 900, n).tolist() for n in rng.integers(0, 900, 3000)]
    _write(path, rows, row_group_size=1700, data_page_size=4000)
    reading = Reading(block_documents=30, block_bytes=20_000)
    source = Parquet(path, tokens="ids", reading=reading)
    documents, ends = _read(source)
    assert documents == rows
    for k in range(0, len(ends), 40):
        start = ends[k - 1] if k else 0
        assert _read(source, row=start) == (rows[start:], ends[k:])
