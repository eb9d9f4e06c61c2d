"""Lists of ids decoded by ourselves, held against Arrow decoding the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.errors import ContentError
from streampack.reading.skips import Skips
from streampack.sources import Parquet
from streampack.sources.parquet.column_chunks import column_chunks
from streampack.sources.parquet.footer import footer_bytes
from streampack.sources.parquet.lent_memory import lent
from streampack.sources.parquet.token_pages import TokenPages, _OtherwiseError, _page

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def _write(path: Path, rows: Any, kind: str = "int32", **options: Any) -> None:
    lists = pa.large_list if options.pop("large", False) else pa.list_
    element = pa.field("element", getattr(pa, kind)(), nullable=options.pop("element_null", True))
    field = pa.field("ids", lists(element), nullable=options.pop("list_null", True))
    table = pa.Table.from_arrays([pa.array(rows, field.type)], schema=pa.schema([field]))
    pq.write_table(table, path, **options)


def _decoded(
    path: Path, dtype: str, size: int, start: int, stop: int, group: int = 0
) -> list[list[int]]:
    """Rows as `TokenPages` gives them; pages begin where they should."""
    rows: list[list[int]] = []
    with pq.ParquetFile(path, memory_map=True) as file:
        ((chunk,),) = column_chunks(file.metadata, footer_bytes(str(path)), ["ids"])[group:][:1]
        count = file.metadata.row_group(group).num_rows
        pages = TokenPages(file, str(path), chunk, count, "ids", np.dtype(dtype))
        for batch, first in pages.batches(size, start, stop):
            assert first == start + len(rows)
            assert first == start or first % size == 0
            assert batch.column(0).type.value_type == getattr(pa, dtype)()
            batch.validate(full=True)
            rows += batch.column(0).to_pylist()
    return rows


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
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli"])),
        "use_dictionary": draw(st.booleans()),
        "dictionary_pagesize_limit": draw(st.sampled_from([64, 1 << 20])),
        "data_page_size": draw(st.sampled_from([1, 100, 1 << 20])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_batch_size": draw(st.sampled_from([1, 10, 1024])),
        "row_group_size": draw(st.sampled_from([5, 1000])),
    }


@given(_corpora(), st.integers(1, 70), st.data())
@settings(max_examples=150, deadline=None)
def test_any_span_of_rows_is_what_arrow_reads(
    tmp_path_factory: Any, corpus: tuple[list[list[int]], dict[str, Any]], size: int, data: Any
) -> None:
    rows, options = corpus
    path = tmp_path_factory.mktemp("spans") / "a.parquet"
    group_rows = options["row_group_size"]
    _write(path, rows, **options)
    for group, low in enumerate(range(0, len(rows), group_rows)):
        held = rows[low : low + group_rows]
        start = data.draw(st.integers(0, len(held)))
        stop = data.draw(st.integers(start, len(held)))
        assert _decoded(path, "uint32", size, start, stop, group) == held[start:stop]


def test_many_pages_and_every_width_of_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for entries in (1, 2, 3, 9, 200, 300, 5000, 70_000, 300_000):
        ids = rng.integers(0, entries, 400_000)
        cuts = np.sort(rng.choice(400_000, 700, replace=False))
        rows = [part.tolist() for part in np.split(ids, cuts)]
        _write(tmp_path / "a.parquet", rows, dictionary_pagesize_limit=4 << 20)
        assert _decoded(tmp_path / "a.parquet", "uint32", 100, 17, 690) == rows[17:690]


def test_narrow_ids_stay_narrow_and_wrong_ones_are_left_to_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    good = [[1, 2], [], [65_535]]
    _write(path, good, "uint16")
    assert _decoded(path, "uint16", 2, 0, 3) == good
    for wrong in ([[1], [-1]], [[1], [2**32]], [[1], None], [[1], [None]]):
        _write(path, wrong, "int64")
        assert _decoded(path, "uint32", 9, 0, 2) == []
        skips = Skips("skip", 5)
        source = Parquet(path, tokens="ids")
        source.prepare()
        (block,) = [block for block, _ in source.read_shard(0, 0, 2, skips)]
        assert block.document(0).tolist() == [1]  # type: ignore[union-attr]
        assert (len(block), skips.count) == (1, 1)


@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_other_encodings_are_left_to_arrow(tmp_path: Path, encoding: str) -> None:
    path, rows = tmp_path / "a.parquet", [[5, 6, 7], [], [8] * 100]
    column = {"ids.list.element": encoding}
    _write(path, rows, use_dictionary=False, column_encoding=column)
    assert _decoded(path, "uint32", 9, 0, 3) == []
    source = Parquet(path, tokens="ids")
    source.prepare()
    blocks = [block for block, _ in source.read_shard(0, 0, 3, Skips("raise", 0))]
    documents = [block.document(i).tolist() for block in blocks for i in range(len(block))]  # type: ignore[union-attr]
    assert documents == rows


@given(st.integers(0, 10_000), st.sampled_from(["1.0", "2.0"]), st.sampled_from(["none", "snappy"]))
@settings(max_examples=150, deadline=None)
def test_damage_is_met_without_reading_outside(
    tmp_path_factory: Any, seed: int, version: str, compression: str
) -> None:
    path = tmp_path_factory.mktemp("damage") / "a.parquet"
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 900, n).tolist() for n in rng.integers(0, 60, 40)]
    _write(path, rows, compression=compression, data_page_version=version, data_page_size=500)
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in rng.integers(4, end, int(rng.integers(1, 5))).tolist():
        data[at] = int(rng.integers(0, 256))
    path.write_bytes(data)
    assert len(_decoded(path, "uint32", 7, 3, 40)) <= 37
    source = Parquet(path, tokens="ids")
    source.prepare()
    try:
        read = sum(len(block) for block, _ in source.read_shard(0, 0, 40, Skips("skip", 99)))
    except ContentError:
        return
    assert read <= 40


def test_blocks_are_the_same_from_wherever_a_lane_begins(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    rows = [rng.integers(0, 900, n).tolist() for n in rng.integers(0, 900, 500)]
    _write(path, rows, row_group_size=170, data_page_size=4000)
    source = Parquet(path, tokens="ids", block_documents=30, block_bytes=20_000)
    source.prepare()
    skips = Skips("raise", 0)
    whole = list(source.read_shard(0, 0, 500, skips))
    for k in range(0, len(whole), 3):
        start = whole[k - 1][1] if k else 0
        ends = [end for _, end in source.read_shard(0, start, 500, skips)]
        assert ends == [end for _, end in whole[k:]]
    read = [block.document(i).tolist() for block, _ in whole for i in range(len(block))]  # type: ignore[union-attr]
    assert read == rows


def test_memory_is_lent_again_only_when_nobody_holds_it() -> None:
    first = lent(1000, np.dtype(np.uint32))
    view = first[10:20]
    view[:] = 7
    address = first.ctypes.data
    del first
    for _ in range(8):
        lent(1000, np.dtype(np.uint32))[:] = 0
    assert view.tolist() == [7] * 10
    del view
    assert address in {lent(1000, np.dtype(np.uint32)).ctypes.data for _ in range(8)}


@pytest.mark.parametrize("level", [0, 1], ids=["begins-a-row", "empty-list"])
def test_a_page_that_claims_more_rows_than_its_group_takes_no_memory_for_them(level: int) -> None:
    one_run = np.frombuffer(b"\xfe\xff\xff\xff\x7f", dtype=np.uint8)  # of 2**34 - 1 levels
    repetition = np.append(one_run, np.uint8(0))
    definition = np.append(one_run, np.uint8(2 - level))
    body = np.zeros(0, dtype=np.uint8)
    with pytest.raises(_OtherwiseError):
        _page(2**34 - 1, 0, repetition, definition, body, (2, 1), (2**40, 10))
