"""Columns in every form: which are read as documents, and which as their masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, Topology, sources
from streampack.documents.blocks import Documents, offsets_of
from streampack.errors import ConfigError, ContentError
from streampack.sources.fields import kept_tokens, masks_of_rows, without_padding
from tests.support.columns import KINDS, Columns, rows_of, write_arrow, write_lines, write_parquet
from tests.support.labelled import ALL, EXPECTED, IDS, LABELS, MASKS, learnt
from tests.support.source_contract import read_all

TEXTS = ["a", "größer", "漢字"]
TUPLES = [tuple(ids) for ids in IDS]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------------- documents

FOUND: dict[str, tuple[Columns, Any]] = {
    "input_ids": ({"n": [1, 2, 3], "input_ids": IDS}, TUPLES),
    "tokens": ({"tokens": IDS, "url": TEXTS}, TUPLES),
    "content": ({"content": TEXTS}, TEXTS),
    "a text beside counts": ({"tokens": [1, 2, 3], "text": TEXTS}, TEXTS),
    "a text beside words": ({"tokens": [["one", "text"], ["two"], []], "text": TEXTS}, TEXTS),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", FOUND)
def test_the_usual_field_is_found_by_its_name_and_type(kind: str, case: str) -> None:
    columns, expected = FOUND[case]
    assert sorted(read_all(sources.open(KINDS[kind](columns)))) == sorted(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_ids_are_read_by_the_names_that_are_passed(kind: str) -> None:
    data = KINDS[kind]({"body": TEXTS, "ids": IDS})
    assert sorted(read_all(sources.open(data, text="body"))) == sorted(TEXTS)
    assert sorted(read_all(sources.open(data, tokens="ids"))) == TUPLES


@pytest.mark.parametrize("kind", KINDS)
def test_where_texts_and_ids_may_be_the_documents_both_are_named(kind: str) -> None:
    data = KINDS[kind]({"text": TEXTS, "input_ids": IDS, "labels": LABELS})
    with pytest.raises(ConfigError) as caught:
        sources.open(data).prepare()
    assert "text" in str(caught.value)
    assert "input_ids" in str(caught.value)
    assert learnt(sources.open(data, tokens="input_ids")) == EXPECTED
    assert sorted(read_all(sources.open(data, text="text"))) == sorted(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrong", [{"text": "txt"}, {"tokens": "ids", "loss_mask": "mask"}], ids=str
)
def test_a_missing_column_is_named_with_the_present_ones(kind: str, wrong: dict[str, str]) -> None:
    with pytest.raises((ConfigError, ContentError)) as raised:
        read_all(sources.open(KINDS[kind]({"body": TEXTS, "ids": IDS}), **wrong))
    assert {*wrong.values()} & {*str(raised.value).replace('"', " ").replace("'", " ").split()}
    assert "ids" in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [{"tokens": "body"}, {"text": "ids"}], ids=str)
def test_a_column_of_another_type_is_refused(kind: str, wrong: dict[str, str]) -> None:
    with pytest.raises((ConfigError, ContentError)):
        read_all(sources.open(KINDS[kind]({"body": TEXTS, "ids": IDS}), **wrong))


# ---------------------------------------------------------------------- masks

ONES = [[1] * len(ids) for ids in IDS]
MASKED: dict[str, Columns] = {
    "labels": {"input_ids": IDS, "labels": LABELS, "attention_mask": ONES},
    "a mask": {"input_ids": IDS, "loss_mask": MASKS, "url": TEXTS},
    "all of several": {
        "input_ids": IDS,
        "labels": [[-100, 12, 13, 14], [-100, 22], [31, 32, 33]],
        "completion_mask": [[0, 0, 1, 1], [1, 1], [0, 1, 1]],
        "assistant_masks": [[1, 1, 1, 1], [0, 1], [1, 1, 0]],
    },
    "padding": {
        "input_ids": [[11, 12, 13, 14], [0, 0, 21, 22], [31, 32, 33, 0], [0, 0, 0, 0]],
        "labels": [[-100, -100, 13, 14], [0, 0, -100, 22], [-100, 32, -100, -100], [0, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]],
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", MASKED)
def test_masks_beside_ids_are_read_unless_none_is_wanted(kind: str, case: str) -> None:
    data = KINDS[kind](MASKED[case])
    assert learnt(data) == EXPECTED
    assert learnt(sources.open(data, tokens="input_ids")) == EXPECTED
    assert learnt(sources.open(data, loss_mask=[])) == ALL


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_another_name_is_read_if_it_is_named(kind: str) -> None:
    columns = {"input_ids": IDS, "labels": LABELS, "response_mask": ONES}
    data = KINDS[kind](columns)
    assert learnt(data) == EXPECTED
    assert learnt(sources.open(data, loss_mask="response_mask")) == ALL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "labels",
    [[[*row[1:], -100] for row in LABELS], [0, 1, 2], [row[:1] for row in LABELS]],
    ids=["shifted", "a class per document", "too short"],
)
def test_labels_that_do_not_fit_their_ids_are_refused(kind: str, labels: Any) -> None:
    with pytest.raises((ConfigError, ContentError)):
        learnt(KINDS[kind]({"input_ids": IDS, "labels": labels}))


def test_fields_that_nobody_reads_are_named_in_one_log_line_except_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    columns = {"input_ids": IDS, "labels": LABELS, "response_mask": MASKS, "reward": IDS}
    columns["url"] = ["https://a.example"] * len(IDS)
    data = rows_of(columns)
    PackedDataset(data, seq_len=8, topology=Topology(), token_fields={"reward": "int64"})
    (line,) = [record.message for record in caplog.records if "not read" in record.message]
    assert "'input_ids' these fields are not read: response_mask." in line


def test_labels_are_known_by_their_name_alone() -> None:
    data = rows_of({"input_ids": IDS, "target_labels": LABELS, "target": LABELS})
    assert learnt(sources.open(data, loss_mask="target_labels")) == EXPECTED
    with pytest.raises(ContentError):
        learnt(sources.open(data, loss_mask="target"))


@pytest.mark.parametrize("write", [write_lines, write_parquet, write_arrow])
@pytest.mark.parametrize("first", [0, 1])
def test_shards_of_which_some_have_labels_are_refused(
    write: Callable[[Columns, str], str], first: int
) -> None:
    Path("shards").mkdir()
    of_each: list[Columns] = [{"input_ids": IDS}, {"input_ids": IDS, "labels": LABELS}]
    ending = Path(write(of_each[0])).suffix  # type: ignore[call-arg]
    for number in (0, 1):
        write(of_each[number ^ first], f"shards/{number}{ending}")
    with pytest.raises((ConfigError, ContentError), match='"labels"'):
        learnt("shards")
    assert learnt(sources.open("shards", loss_mask=[])) == ALL
    files = sorted(map(str, Path("shards").iterdir()))
    assert learnt(sources.Mixture(dict(zip("ab", files, strict=True)))) == ALL | EXPECTED


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
