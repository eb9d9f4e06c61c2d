"""Lists of ids in whatever way a writer encodes them, read from any row to any other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.sources import Parquet
from streampack.sources.base import Reading
from streampack.sources.skips import Skips

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
