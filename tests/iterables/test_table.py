"""Tables in memory are read by columns, in any number of lanes, each row once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack.sources import Chat, Items, Table
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import as_source
from tests.support.source_contract import assert_source_contract, read_all

SMALL = ReadOptions(block_documents=7, block_bytes=200)
rng = np.random.default_rng(0)
IDS = [rng.integers(0, 60_000, n).tolist() for n in rng.integers(0, 30, 90)]
TEXTS = [f"document {n}" for n in range(90)]


def chunked(columns: dict[str, Any], rows: int = 13) -> pa.Table:
    """A table with columns in chunks of `rows` rows."""
    return pa.Table.from_batches(pa.table(columns).to_batches(max_chunksize=rows))


def test_texts_and_ids_come_once_in_any_number_of_lanes() -> None:
    table = chunked({"n": range(90), "text": TEXTS, "ids": IDS})
    assert_source_contract(Table(table, reading=SMALL), TEXTS, restarts=3)
    assert_source_contract(Table(table, tokens="ids", reading=SMALL), IDS, restarts=3)


def test_a_table_of_several_shards_comes_once() -> None:
    ids = [[n % 60_000] for n in range(20_000)]
    table = chunked({"ids": pa.array(ids, type=pa.list_(pa.uint16()))}, 1777)
    source = Table(table, tokens="ids")
    assert_source_contract(source, ids, lane_counts=(1, 5), restarts=2)
    assert len(source.manifest) == 3
    assert source.estimate_tokens() == 20_000


def test_datasets_are_read_by_columns_as_they_were_shuffled_and_selected() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(90))})
    for made in (dataset, dataset.shuffle(seed=1), dataset.select(range(3, 80, 2))):
        source = as_source(made)
        assert isinstance(source, Table)
        assert_source_contract(source, made["text"][:], lane_counts=(1, 4), restarts=2)
    ids = datasets.Dataset.from_dict({"input_ids": IDS}).with_format("torch")
    assert read_all(as_source(ids)) == [tuple(one) for one in IDS]  # type: ignore[arg-type]


def test_a_dataset_with_a_transform_is_read_row_by_row_so_that_it_applies() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    upper = dataset.with_transform(lambda rows: {"text": [t.upper() for t in rows["text"]]})
    source: Any = as_source(upper)
    assert isinstance(source, Items)
    assert read_all(source) == [text.upper() for text in TEXTS]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_tables(library: str) -> None:
    frame = pytest.importorskip(library).DataFrame({"text": TEXTS, "n": range(90)})
    source: Any = as_source(frame)
    assert isinstance(source, Table)
    assert read_all(source) == TEXTS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "ids", "chats"])
def test_no_row_is_lost_where_a_thousand_hold_more_than_two_gibibytes(kind: str) -> None:
    count, size = 1200, 2 << 20
    given: dict[str, Any] = {}
    if kind == "ids":
        one, given = pa.array([np.zeros(size, np.uint8)]), {"tokens": "column"}
    elif kind == "text":
        one, given = pa.array(["x" * size]), {"text": "column"}
    else:
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * size}]
        one = pa.array([turns])
    table = pa.table({"messages" if kind == "chats" else "column": pa.chunked_array([one] * count)})
    source: Source = Chat(table) if kind == "chats" else Table(table, **given)
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    assert sum(len(block) for block, _ in lane.read(None, ErrorPolicy())) == count


def test_long_rows_come_once_from_any_beginning_of_a_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streampack.iterables.table._BATCH_BYTES", 5_000)
    table = chunked({"ids": IDS * 8}, 701)
    assert_source_contract(Table(table, tokens="ids", reading=SMALL), IDS * 8, restarts=5)
