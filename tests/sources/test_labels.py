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

from streampack import ConfigError, ContentError, PackedDataset, Topology, sources
from streampack.documents.blocks import Documents, offsets_of
from streampack.sources.fields import kept_tokens, masks_of_rows, without_padding
from streampack.sources.skips import Skips
from tests.support.labelled import ALL, EXPECTED, IDS, LABELS, MASKS, learnt
from tests.support.mosaic import streaming_module
from tests.support.source_contract import read_all

datasets = pytest.importorskip("datasets")

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


FILES: dict[str, Any] = {
    "JSON lines": sources.JSONL,
    "Parquet": sources.Parquet,
    "Arrow": sources.Arrow,
    "save_to_disk": sources.Arrow,
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_beside_ids_are_found(kind: str) -> None:
    columns = {"input_ids": IDS, "labels": LABELS, "attention_mask": [[1] * len(i) for i in IDS]}
    assert learnt(KINDS[kind](columns)) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_mask_beside_ids_is_found(kind: str) -> None:
    assert learnt(KINDS[kind]({"input_ids": IDS, "loss_mask": MASKS})) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["labels", "loss_mask"])
def test_naming_the_ids_reads_the_masks_beside_them(kind: str, name: str) -> None:
    columns = {"input_ids": IDS, name: LABELS if name == "labels" else MASKS, "url": ["a"] * 3}
    assert learnt(sources.open(KINDS[kind](columns), tokens="input_ids")) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_list_of_masks_reads_none(kind: str) -> None:
    data = KINDS[kind]({"input_ids": IDS, "labels": LABELS})
    for named in ({}, {"tokens": "input_ids"}):
        assert learnt(sources.open(data, loss_mask=[], **named)) == ALL


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_another_name_is_read_if_it_is_named_and_a_known_one_counts(kind: str) -> None:
    data = KINDS[kind]({"input_ids": IDS, "response_mask": MASKS})
    assert learnt(data) == ALL
    assert learnt(sources.open(data, loss_mask="response_mask")) == EXPECTED
    both = KINDS[kind](
        {"input_ids": IDS, "labels": LABELS, "response_mask": [[1] * 4, [1] * 2, [1] * 3]}
    )
    assert learnt(both) == EXPECTED
    assert learnt(sources.open(both, loss_mask="response_mask")) == ALL


def test_fields_that_nobody_reads_are_named_in_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = records({"input_ids": IDS, "labels": LABELS, "response_mask": MASKS, "reward": IDS})
    PackedDataset(data, seq_len=8, topology=Topology(), token_fields={"reward": "int64"})
    (line,) = [record.message for record in caplog.records if "not read" in record.message]
    assert "'input_ids' these fields are not read: response_mask." in line


@pytest.mark.parametrize("name", ["labels", "target_labels"])
def test_labels_are_known_by_their_name_alone(name: str) -> None:
    data = records({"input_ids": IDS, name: LABELS})
    assert learnt(sources.open(data, loss_mask=name)) == EXPECTED
    with pytest.raises(ContentError, match='in "target", so it is no mask'):
        learnt(sources.open(records({"input_ids": IDS, "target": LABELS}), loss_mask="target"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_that_is_not_the_id_is_named(kind: str) -> None:
    shifted = [[*row[1:], -100] for row in LABELS]
    with pytest.raises(ContentError, match=r"has the label .* the model that shifts"):
        learnt(KINDS[kind]({"input_ids": IDS, "labels": shifted}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_per_document_is_no_loss_mask(kind: str) -> None:
    with pytest.raises((ConfigError, ContentError), match=r"loss mask|labels"):
        learnt(KINDS[kind]({"input_ids": IDS, "labels": [0, 1, 2]}))


def alone(values: Any, ids: Any, name: str) -> tuple[list[bool] | None, str | None]:
    reasons: dict[int, str] = {}
    mask = masks_of_rows(values, ids, np.array([0, len(ids)]), name, reasons)
    return (None, reasons[0]) if reasons else (mask.tolist(), None)


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


PADDED: Columns = {
    "input_ids": [[11, 12, 13, 14], [0, 0, 21, 22], [31, 32, 33, 0], [0, 0, 0, 0]],
    "labels": [[-100, -100, 13, 14], [0, 0, -100, 22], [-100, 32, -100, -100], [0, 0, 0, 0]],
    "attention_mask": [[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out_with_its_labels(kind: str) -> None:
    assert learnt(KINDS[kind](PADDED)) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_masks_all_must_say_so(kind: str) -> None:
    columns = {
        "input_ids": IDS,
        "labels": [[-100, 12, 13, 14], [-100, 22], [31, 32, 33]],
        "completion_mask": [[0, 0, 1, 1], [1, 1], [0, 1, 1]],
        "assistant_masks": [[1, 1, 1, 1], [0, 1], [1, 1, 0]],
    }
    assert learnt(KINDS[kind](columns)) == EXPECTED


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), max_size=6))
def test_padding_at_either_end_changes_nothing_else(shapes: list[tuple[int, int, int]]) -> None:
    ids = [np.arange(count, dtype=np.uint32) + 7 for _, count, _ in shapes]
    padded = [np.pad(own, (a, b)) for own, (a, _, b) in zip(ids, shapes, strict=True)]
    mask = [np.pad(np.ones(n, dtype=np.int8), (a, b)) for a, n, b in shapes]
    field = {"f": np.concatenate([np.zeros(0, np.uint32), *padded])}
    block = Documents.from_arrays(
        padded, loss_masks=[own > 8 for own in padded], token_fields=field
    )
    reasons: dict[int, str] = {}
    values = np.concatenate([np.zeros(0, np.int8), *mask])
    found = without_padding(block, kept_tokens(values, block.offsets, reasons))
    assert not reasons
    for i, own in enumerate(ids):
        part = slice(found.offsets[i], found.offsets[i + 1])
        assert found.tokens[part].tolist() == found.token_fields["f"][part].tolist() == own.tolist()
        assert found.loss_mask is not None
        assert found.loss_mask[part].tolist() == (own > 8).tolist()


def mds(encodings: dict[str, str], columns: Columns) -> str:
    """A corpus of MDS; each column in its encoding, `bytes` being those of uint8."""
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out="mds", columns=encodings) as writer,
    ):
        for row in zip(*columns.values(), strict=True):
            sample = dict(zip(columns, row, strict=True))
            for name, value in sample.items():
                dtype = encodings[name].partition(":")[2] or "uint8"
                if encodings[name] == "bytes":
                    sample[name] = np.array(value, dtype=np.uint8).tobytes()
                elif encodings[name].startswith("ndarray"):
                    sample[name] = np.array(value, dtype=dtype if ":" in encodings[name] else None)
            writer.write(sample)
    return "mds"


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("labels", "ndarray:int64"),
        ("labels", "ndarray:int32"),
        ("labels", "ndarray"),
        ("loss_mask", "ndarray:uint8"),
        ("loss_mask", "bytes"),
        ("completion_mask", "ndarray:int32"),
    ],
)
def test_masks_beside_ids_in_mds_are_found(name: str, encoding: str) -> None:
    values = LABELS if name == "labels" else MASKS
    columns = {"input_ids": IDS, name: values, "url": ["a", "b", "c"]}
    path = mds({"input_ids": "ndarray:uint16", name: encoding, "url": "str"}, columns)
    for source in (path, sources.open(path, tokens="input_ids"), sources.MDS(path)):
        assert learnt(source) == EXPECTED
    assert learnt(sources.MDS(path, tokens="input_ids", loss_mask=name)) == EXPECTED
    for none in (sources.open(path, loss_mask=[]), sources.MDS(path, loss_mask=[])):
        assert learnt(none) == ALL


def test_wrong_labels_in_mds_are_named_and_may_be_left_out() -> None:
    shifted = [LABELS[0], [22, -100], LABELS[2]]
    encodings = {"input_ids": "ndarray:int32", "labels": "ndarray:int32"}
    path = mds(encodings, {"input_ids": IDS, "labels": shifted})
    with pytest.raises(ContentError, match=r"Document 1 .*label 22 at token 0, whose id is 21"):
        learnt(path)
    skips = Skips("skip")
    assert read_all(sources.MDS(path), skips) == [tuple(IDS[0]), tuple(IDS[2])]
    assert [record[1] for record in skips.records] == [1]


def test_padding_beside_ids_in_mds_is_left_out_with_its_labels() -> None:
    encodings = {
        "attention_mask": "ndarray:uint8",
        "input_ids": "ndarray:uint16",
        "labels": "ndarray:int64",
    }
    path = mds(encodings, {name: PADDED[name] for name in encodings})
    assert learnt(path) == EXPECTED
    assert learnt(sources.MDS(path, tokens="input_ids", loss_mask=[])) == ALL


def shards(write: Callable[[Columns], str], of_each: list[Columns]) -> str:
    Path("shards").mkdir()
    for number, columns in enumerate(of_each):
        made = Path(write(columns))
        made.rename(f"shards/{number}{made.suffix}")
    return "shards"


PLAIN = {"input_ids": IDS}
LABELLED = {"input_ids": IDS, "labels": LABELS}


@pytest.mark.parametrize("write", [lines, parquet, arrow])
@pytest.mark.parametrize("of_each", [[PLAIN, LABELLED], [LABELLED, PLAIN]])
def test_shards_of_which_some_have_labels_are_refused(
    write: Callable[[Columns], str], of_each: list[Columns]
) -> None:
    path = shards(write, of_each)
    with pytest.raises((ConfigError, ContentError), match='"labels"'):
        learnt(path)
    assert learnt(sources.open(path, loss_mask=[])) == ALL
    files = sorted(map(str, Path(path).iterdir()))
    assert learnt(sources.Mixture(dict(zip("ab", files, strict=True)))) == ALL | EXPECTED
