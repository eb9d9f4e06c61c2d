"""Columns of dictionaries, also with chunks that do not fit together, and arrays of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader
from streampack.sources import Table
from streampack.sources.base import Source
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import as_source
from tests.support.source_contract import assert_source_contract

SMALL = ReadOptions(block_documents=7)
TEXTS = [f"{n}{name}" for n in range(100) for name in "ab"]


def narrow(kind: pa.DataType) -> pa.Table:
    """A hundred chunks of two texts; together they have too many for their type of index."""
    index = pa.array([0, 1], pa.int8())
    values = [pa.array(TEXTS[2 * n : 2 * n + 2], kind) for n in range(100)]
    chunks = [pa.DictionaryArray.from_arrays(index, two) for two in values]
    return pa.table({"text": pa.chunked_array(chunks)})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_table_of_chunks_with_too_many_values_together_is_read(kind: pa.DataType) -> None:
    assert_source_contract(Table(narrow(kind), reading=SMALL), TEXTS, restarts=3)


@pytest.mark.parametrize("rows", [7, 1000])
def test_parquet_written_from_such_chunks_is_read(rows: int, tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(narrow(pa.string()), path, row_group_size=rows)
    assert_source_contract(as_source(path, reading=SMALL), TEXTS, restarts=3)


@pytest.mark.parametrize("deltas", [False, True])
def test_a_stream_that_replaces_or_extends_its_dictionary_is_read(
    deltas: bool, tmp_path: Path
) -> None:
    batches = [pa.array(TEXTS[:n]).dictionary_encode() for n in (2, 5, 9)]
    others = [] if deltas else [pa.array(TEXTS[9:12]).dictionary_encode()]
    table = pa.Table.from_batches(
        [pa.record_batch({"text": column}) for column in [*batches, *others]]
    )
    path = str(tmp_path / "a.arrow")
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(path, table.schema, options=options) as out:
        for batch in table.to_batches():
            out.write_batch(batch)
    assert_source_contract(
        as_source(path, reading=SMALL), table["text"].to_pylist(), lane_counts=(1, 3)
    )


def first_batch(source: Source | str, **options: Any) -> Any:
    return next(
        iter(PackedLoader(PackedDataset(source, seq_len=8, batch_size=1, lanes=1, **options)))
    )


def test_numbers_and_texts_in_dictionaries_are_document_fields(tmp_path: Path) -> None:
    langs = pa.chunked_array([pa.array(["en", "de"], pa.string_view()).dictionary_encode()] * 2)
    years = pa.array([1, 2, 3, 1]).dictionary_encode()
    table = pa.table({"tokens": [[1], [2], [3], [4]], "year": years, "lang": langs})
    feather.write_feather(table.unify_dictionaries(), str(tmp_path / "a.feather"))
    for source in (Table(table), str(tmp_path / "a.feather")):
        batch = first_batch(source, document_fields={"year": "int16", "lang": "text"})
        by_id = dict(
            zip(batch.input_ids[0].tolist(), batch.document_fields["year"].tolist(), strict=False)
        )
        assert by_id == {1: 1, 2: 2, 3: 3, 4: 1}
        assert len({*batch.document_fields["lang"].tolist()}) == 2


@pytest.mark.parametrize("form", ["dataset", "stream", "saved", "parquet"])
@pytest.mark.parametrize("rows", [None, 2])
def test_arrays_of_datasets_are_token_fields(form: str, rows: int | None, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    values = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    features = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int32")),
            "scores": datasets.Array2D((rows, 2), "float32"),
        }
    )
    columns = {"input_ids": [[1, 2], [3, 4]], "scores": values.tolist()}
    dataset = datasets.Dataset.from_dict(columns, features=features)
    source: Any = dataset
    if form == "stream":
        source = dataset.to_iterable_dataset()
    elif form == "saved":
        dataset.save_to_disk(source := str(tmp_path / "saved"))
    elif form == "parquet":
        dataset.to_parquet(source := str(tmp_path / "a.parquet"))
    batch = first_batch(source, token_fields={"scores": ("float32", 2)})
    found = dict(zip(batch.input_ids[0].tolist(), batch.fields["scores"][0].tolist(), strict=True))
    wanted = dict(zip([1, 2, 3, 4], values.reshape(4, 2).tolist(), strict=True))
    assert {i: found[i] for i in wanted} == wanted
