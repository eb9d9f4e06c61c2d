"""Marks that exclude turns from the loss, in messages and beside them, by other trainers' names."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.chats.reader import plain_record
from streampack.chats.records import conversation_of
from streampack.errors import ContentError, StateError
from streampack.images import Images
from streampack.sources.records import BrokenDocumentError
from streampack.tokenization import load_tokenizer
from tests.support.chats import CHATML, bpe_tokenizer, messages, write_lines

BPE = bpe_tokenizer()


def marked(**marks: Any) -> list[dict[str, Any]]:
    """Two questions and answers, the first answer marked."""
    chat = messages("a", "not this", "b", "but this")
    chat[1].update(marks)
    return chat


def learnt_in(record: dict[str, Any]) -> list[str]:
    conversation = conversation_of(plain_record(record))
    said = conversation.messages
    assert not any({"train", "masked", "loss_mask"} & m.keys() for m in said)  # no template's
    return [said[i]["content"] for i in range(len(said)) if conversation.learns(i)]


#: A mark of the first answer, by the trainer that reads it.
EXCLUDING: list[dict[str, Any]] = [
    {"weight": 0},  # OpenAI
    {"train": False},  # axolotl
    {"training": False, "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": True}]},
    {"training_detail": []},
    {"loss": False},  # ms-swift
    {"loss_scale": 0.0},  # ms-swift
    {"loss_weight": 0.0},  # LLaMA-Factory
    {"loss_mask": 0},  # verl
    {"loss_mask": np.array(0)},
    {"step_loss_mask": np.float32(0)},  # slime
    {"trainable": np.False_},  # Tinker
    {"masked": True},  # torchtune
    {"masked": np.int64(1), "weight": None},
    {"loss_weight": Decimal(0)},
    {"weight": 1, "train": False},
]


@pytest.mark.parametrize("marks", EXCLUDING, ids=str)
def test_a_turn_that_its_mark_excludes_is_not_learnt(marks: dict[str, Any]) -> None:
    assert learnt_in({"messages": marked(**marks)}) == ["but this"]


INCLUDING: list[dict[str, Any]] = [
    {"masked": False},
    {"loss_mask": 1, "weight": np.float64(1)},
    {"trainable": True},
    {"train_detail": [], "train": True},
    {"mask": None, "masked": None, "loss": None},
]


@pytest.mark.parametrize("marks", INCLUDING, ids=str)
def test_a_turn_that_its_mark_includes_is_learnt(marks: dict[str, Any]) -> None:
    chat = marked(**marks)
    chat[0].update(masked=True, loss_weight=0.0, loss_mask=False, step_loss_mask=1)
    assert learnt_in({"messages": chat}) == ["not this", "but this"]


REFUSED: list[dict[str, Any]] = [
    {"loss_weight": 0.3},
    {"loss_scale": 2},
    {"loss_scale": [0.0, 1.0]},
    {"weight": "0"},
    {"masked": "false"},
    {"masked": 0.5},
    {"trainable": float("nan")},
    {"mask": 0},  # not learnt in some data, and learnt in other
    {"mask": True},
    {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": True}]},
    {"content": [{"type": "text", "text": "not"}, {"type": "text", "text": " this", "train": 0}]},
]


@pytest.mark.parametrize("marks", REFUSED, ids=str)
def test_a_mark_without_a_clear_meaning_is_refused(marks: dict[str, Any]) -> None:
    with pytest.raises(BrokenDocumentError):
        learnt_in({"messages": marked(**marks)})


@pytest.mark.parametrize(
    "marks",
    [{"loss_mask": 1}, {"masked": False}, {"trainable": True}, {"train_detail": [{}]}],
    ids=str,
)
def test_a_mark_that_would_teach_the_words_of_another_role_is_refused(
    marks: dict[str, Any],
) -> None:
    chat = messages("a", "b")
    chat[0].update(marks)
    with pytest.raises(BrokenDocumentError):
        learnt_in({"messages": chat})


def loader(data: Any, *, turns: str = "whole", **settings: Any) -> PackedLoader:
    source = data
    if not isinstance(data, sources.Chat):
        source = sources.Chat(data, template=CHATML, turns=turns)
    chosen: dict[str, Any] = {"seq_len": 128, "batch_size": 1, "lanes": 1}
    chosen |= {"tokenizer": load_tokenizer(BPE, eos_id=0), "topology": Topology(), **settings}
    return PackedLoader(PackedDataset(source, **chosen))


def in_source(kind: str, records: list[dict[str, Any]], folder: Path) -> Any:
    if kind == "lines":
        return write_lines(folder / "a.jsonl", records)
    table = pa.Table.from_pylist(records)
    if kind == "arrow":
        with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as file:
            file.write_table(table)
        return folder / "a.arrow"
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"
    if kind == "stream":
        datasets = pytest.importorskip("datasets")
        return datasets.Dataset.from_list(records).to_iterable_dataset()
    return table if kind == "table" else records


@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("kind", ["lines", "parquet", "arrow", "table", "list", "stream"])
def test_every_source_leaves_out_the_turns_that_are_marked(
    kind: str, turns: str, tmp_path: Path
) -> None:
    records = [{"messages": marked(loss_weight=0.0)}, {"messages": marked(masked=True)}]
    batches = list(loader(in_source(kind, records, tmp_path), turns=turns))
    ids = np.concatenate([b.input_ids[b.labels != -100].numpy() for b in batches])
    assert BPE.decode(ids.tolist(), skip_special_tokens=False) == "but this<|im_end|>" * 2


BESIDE: list[dict[str, Any]] = [
    {"weight": 0},
    {"train": False},
    {"loss": 0.0},
    {"masked": True},
    {"label": 0},
    {"label": -1},
    {"label": False},
    {"label": "False"},
    {"kto_tag": False},
]


@pytest.mark.parametrize("beside", BESIDE, ids=str)
@pytest.mark.parametrize("kind", ["lines", "parquet", "list"])
def test_a_record_that_is_not_to_be_learnt_is_refused_unless_its_field_is_declared(
    beside: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    data = in_source(kind, [{"prompt": "a", "completion": "b", **beside}] * 2, tmp_path)
    with pytest.raises(ContentError) as raised:
        list(loader(data))
    (name,) = beside
    advice = str(raised.value)
    fields = json.loads(advice[advice.index("{") : advice.index("}") + 1])
    (batch,) = loader(data, document_fields=fields)
    assert (batch.num_documents, [*batch.document_fields]) == (2, [name])


def test_lists_beside_messages_are_refused_if_they_exclude_turns(tmp_path: Path) -> None:
    talk = messages("a", "b", "c", "d")
    for beside in ({"loss_mask": [0, 1, 0, 0]}, {"label": [1, 0, 1, 1]}):
        with pytest.raises(ContentError):
            list(loader([{"messages": talk, **beside}]))
    of_tokens = {"messages": talk, "input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}
    assert len(list(loader([of_tokens, {"messages": talk, "loss_mask": [1, 1, 1, 1]}]))) == 1


UNREAD: list[tuple[dict[str, Any], str]] = [
    ({"learn": False}, '"learn"'),
    ({"quality": 0.2}, '"quality"'),
    ({"verdict": "bad"}, '"verdict"'),
    ({"meta": {"train": False}}, '"meta.train"'),
    (
        {"tool_calls": [{"function": {"name": "f", "arguments": {}}, "train": False}]},
        '"tool_calls.train"',
    ),
    ({"content": [{"type": "text", "text": "not this", "keep": 0}]}, '"content.keep"'),
]


@pytest.mark.parametrize(("fields", "named"), UNREAD)
def test_a_field_that_may_be_a_mark_is_named_once(
    fields: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "streampack"):
        list(loader([{"messages": marked(**fields)}] * 5))
    assert [named in record.getMessage() for record in caplog.records].count(True) == 1


def test_fields_that_mark_nothing_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    talk = messages("a", "b", "c", "d")
    talk[0].update(score=1, toxic=True)  # of the user
    talk[1].update(id="1", name="x", timestamp=1.5, refusal=None)
    talk[3].update(id="2", name="x", timestamp=2.5, reasoning_content=None)
    records = [{"messages": talk, "id": 3, "score": 0.1, "weight": 1, "label": True}] * 3
    with caplog.at_level(logging.WARNING, "streampack"):
        list(loader(records))
    assert not caplog.records


def test_a_weight_beside_messages_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streampack"):
        list(loader([{"messages": messages("a", "b"), "weight": 0.5}] * 3))
    assert ['"weight"' in record.getMessage() for record in caplog.records] == [True]


def test_images_with_an_unwanted_answer_are_refused() -> None:
    record = {"messages": messages("a", "b"), "label": 0}
    source = Images([record], template=CHATML)
    from streampack.sources.error_policy import ErrorPolicy

    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    with pytest.raises(ContentError):
        list(lane.read(None, ErrorPolicy()))


def of_before(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a version wrote it that read fewer marks."""
    from streampack.run.state import checksum

    del state["fingerprint"]["source"]["records"]
    return {**state, "checksum": checksum(state)}


@pytest.mark.parametrize("harm", [{"loss_weight": 0.0}, {"masked": True}, {"mask": 1}], ids=str)
def test_a_state_of_before_is_refused_at_a_record_that_was_read_otherwise(
    harm: dict[str, Any],
) -> None:
    talk = [{"messages": marked(loss_weight=1.0)} for _ in range(60)]
    first = loader(talk, shuffle=False)
    next(iter(first))
    state = of_before(first.state_dict())
    expected = [batch.input_ids.tolist() for batch in loader(talk, shuffle=False)][1:]
    again = loader(talk, shuffle=False)
    again.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in again] == expected
    talk[50] = {"messages": marked(**harm)}
    again = loader(talk, shuffle=False)
    again.load_state_dict(state)
    with pytest.raises(StateError):
        list(again)
