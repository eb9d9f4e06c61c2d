"""Token ids with labels, as trainers store them, are read as ids with a loss mask."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import ConfigError, ContentError, PackedDataset, Topology
from streampack.documents import offsets_of
from streampack.reading.loss_masks import mask_of, masks_of_rows
from streampack.reading.records import BrokenDocumentError

datasets = pytest.importorskip("datasets")

IDS = [[11, 12, 13, 14], [21, 22], [31, 32, 33]]
LABELS = [[-100, -100, 13, 14], [-100, 22], [-100, 32, -100]]
MASKS = [[0, 0, 1, 1], [0, 1], [0, 1, 0]]
Columns = dict[str, Any]


def lines(columns: Columns) -> str:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "a.jsonl"


def parquet(columns: Columns) -> str:
    pq.write_table(pa.table(columns), "a.parquet")
    return "a.parquet"


def arrow(columns: Columns) -> str:
    feather.write_feather(pa.table(columns), "a.feather")
    return "a.feather"


def saved(columns: Columns) -> str:
    datasets.Dataset.from_dict(columns).save_to_disk("prepared")
    return "prepared"


def records(columns: Columns) -> Any:
    return pa.table(columns).to_pylist()


KINDS: dict[str, Callable[[Columns], Any]] = {
    "JSON lines": lines,
    "Parquet": parquet,
    "Arrow": arrow,
    "save_to_disk": saved,
    "Dataset": datasets.Dataset.from_dict,
    "streaming": lambda columns: datasets.Dataset.from_dict(columns).to_iterable_dataset(),
    "a table": pa.table,
    "records": records,
    "a generator": lambda columns: lambda: iter(records(columns)),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def learnt(source: Any) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The documents with their labels; of a document's first token nothing is learnt anyway."""
    found = set()
    for batch in PackedDataset(source, seq_len=8, batch_rows=1, topology=Topology()):
        for number in range(batch.num_documents):
            own = batch.document_ids == number
            found.add((tuple(batch.input_ids[own].tolist()), tuple(batch.labels[own].tolist())))
    return found


EXPECTED = {(tuple(ids), tuple(labels)) for ids, labels in zip(IDS, LABELS, strict=True)}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_beside_ids_are_found(kind: str) -> None:
    columns = {"input_ids": IDS, "labels": LABELS, "attention_mask": [[1] * len(i) for i in IDS]}
    assert learnt(KINDS[kind](columns)) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_mask_beside_ids_is_found(kind: str) -> None:
    assert learnt(KINDS[kind]({"input_ids": IDS, "loss_mask": MASKS})) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_that_is_not_the_id_is_named(kind: str) -> None:
    shifted = [[*row[1:], -100] for row in LABELS]
    with pytest.raises(ContentError, match=r"has the label .* the model that shifts"):
        learnt(KINDS[kind]({"input_ids": IDS, "labels": shifted}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_per_document_is_no_loss_mask(kind: str) -> None:
    with pytest.raises((ConfigError, ContentError), match=r"loss mask|labels"):
        learnt(KINDS[kind]({"input_ids": IDS, "labels": [0, 1, 2]}))


def test_zeros_and_ones_are_labels_in_a_field_of_that_name() -> None:
    ids, values = np.array([0, 1]), np.array([0, 1])
    assert mask_of(values, ids, "loss_mask").tolist() == [False, True]
    assert mask_of(values, ids, "labels").tolist() == [True, True]
    assert mask_of(np.array([-100, 0]), np.array([5, 0]), "any").tolist() == [False, True]


def alone(values: Any, ids: Any, name: str) -> tuple[list[bool] | None, str | None]:
    try:
        return mask_of(values, ids, name).tolist(), None
    except BrokenDocumentError as reason:
        return None, str(reason)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-100, 0, 1, 2, 3])))),
    st.sampled_from(["labels", "loss_mask"]),
)
def test_rows_together_are_read_as_rows_alone(rows: list[list[tuple[int, int]]], name: str) -> None:
    ids = [np.array([i for i, _ in row], dtype=np.uint32) for row in rows]
    values = [np.array([v for _, v in row], dtype=np.int64) for row in rows]
    offsets = offsets_of(np.array([len(row) for row in rows], dtype=np.int64))
    none = [np.zeros(0, dtype=np.int64)]
    reasons: dict[int, str] = {}
    joined = np.concatenate([*none, *values])
    together = masks_of_rows(
        joined, np.concatenate([*none, *ids]).astype(np.uint32), offsets, name, reasons
    )
    for i, (own, own_ids) in enumerate(zip(values, ids, strict=True)):
        part = together[offsets[i] : offsets[i + 1]].tolist()
        found = (part, None) if i not in reasons else (None, reasons[i])
        assert found == alone(own, own_ids, name)
