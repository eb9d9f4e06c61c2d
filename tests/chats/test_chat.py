"""The Chat source on files, and in a PackedDataset."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import (
    Concat,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    Topology,
    sources,
)
from streampack.errors import ConfigError, ContentError
from streampack.packing import BestFitDecreasing
from streampack.tokenization import load_tokenizer
from tests.support.chats import (
    CHATML,
    CHATML_MARKED,
    bpe_tokenizer,
    messages,
    with_template,
    write_lines,
)
from tests.support.source_contract import assert_source_contract

BPE = bpe_tokenizer()
CHATS = [
    messages(*(f"what is {i} + {k}?" if k % 2 == 0 else f"it is {i * k}." for k in range(turns)))
    for i, turns in enumerate(np.random.default_rng(0).choice([2, 4, 6], 60).tolist())
]
RECORDS = [{"id": i, "messages": chat} for i, chat in enumerate(CHATS)]
EXPECTED = [json.dumps(chat, sort_keys=True) for chat in CHATS]
SMALL = {"reading": sources.ReadOptions(block_documents=7)}


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "arrow"])
def test_files_of_chats_keep_the_contract_of_sources(form: str, tmp_path: Path) -> None:
    path, table = tmp_path / f"a.{form}", pa.Table.from_pylist(RECORDS)
    if form == "parquet":
        pq.write_table(table, path, row_group_size=25)
    elif form == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=25)
    else:
        lines = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
        path.write_bytes(gzip.compress(lines) if form == "jsonl.gz" else lines)
    assert_source_contract(sources.Chat(path, **SMALL), EXPECTED, lane_counts=(1, 3))


def test_a_folder_of_chats_is_read_by_file_ending(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    assert_source_contract(sources.Chat(tmp_path, **SMALL), EXPECTED, lane_counts=(1, 3))


def test_tables_of_conversations_and_of_ids_are_not_one_source(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    ids = pa.Table.from_pylist([{"input_ids": [1, 2], "labels": [-100, 2]}])
    pq.write_table(ids, tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match=r"b\.parquet"):
        sources.Chat(tmp_path / "*.parquet").prepare()


def test_a_record_may_have_another_mask_than_the_one_before(tmp_path: Path) -> None:
    records = [
        {"input_ids": [11, 12, 13], "labels": [-100, 12, 13]},
        {"input_ids": [21, 22, 23], "loss_mask": [True, False, True]},
        {"input_ids": [31, 32, 33], "labels": [31, 32, -100], "completion_mask": [0, 1, 1]},
        {
            "input_ids": [0, 41, 42, 0],
            "assistant_masks": [0, 0, 1, 1],
            "attention_mask": [0, 1, 1, 0],
        },
    ]
    source = sources.Chat(write_lines(tmp_path / "a.jsonl", records))
    (batch,) = PackedDataset(source, seq_len=32, batch_size=1, topology=Topology())
    learnt = batch.labels[batch.labels != -100].tolist()
    assert sorted(learnt) == [12, 13, 23, 32, 42]  # a first token is never predicted
    assert 0 not in batch.input_ids[0, : batch.num_tokens].tolist()


def test_fields_that_other_messages_have_do_not_appear_in_tables(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "ok"},
    ]
    pq.write_table(pa.Table.from_pylist([{"messages": chat}]), tmp_path / "a.parquet")
    assert_source_contract(
        sources.Chat(tmp_path / "a.parquet"),
        [
            json.dumps(
                [{**{k: v for k, v in m.items() if v}, "content": m["content"]} for m in chat],
                sort_keys=True,
            )
        ],
        lane_counts=(1,),
    )


def marked(**marks: Any) -> list[dict[str, Any]]:
    """Two questions and answers, the first answer marked."""
    chat = messages("a", "not this", "b", "but this")
    chat[1].update(marks)
    return chat


BROKEN: list[Any] = [
    {"messages": marked(weight=0.5)},
    {"messages": marked(weight="0")},
    {"messages": marked(train=2)},
    {"messages": [{**messages("a")[0], "train": True}, *messages("a", "b")]},
    {"messages": [messages("a")[0], {**marked(weight=0)[1]}]},
    [],
    {"messages": []},
    {"messages": "hi"},
    {"messages": ["hi"]},
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": messages("a", "")},
    {"messages": [{"role": "asistant", "content": "a"}]},
    {"messages": [{"from": "human", "value": "a"}]},
    {"messages": [{"from": "alien", "value": "a"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [*messages("a"), {"role": "assistant"}]},
    {"messages": [{"role": "user", "content": 3}]},
    {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    {"messages": [{"role": "user", "content": [{"image": "a.png"}]}, *messages("a", "b")]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}, *messages("a", "b")]},
    {"messages": [{"role": "user", "content": ["a"]}, *messages("a", "b")]},
    {"messages": [*messages("a"), {"role": "assistant", "reasoning_content": " "}]},
    {"messages": messages("a", "b"), "functions": ["f"]},
    {"messages": messages("a", "b"), "tools": "{"},
    {"messages": messages("a", "b"), "tools": {}},
    {"messages": messages("a", "b"), "tools": ["f"]},
    {"messages": [*messages("a"), {"role": "assistant", "tool_calls": "f()"}]},
    {"prompt": "a"},
    {"prompt": "a", "completion": []},
    {"prompt": "a", "completion": ""},
    {"prompt": messages("a"), "completion": messages("b")},
]


@pytest.mark.parametrize("record", BROKEN, ids=lambda value: str(value)[:60])
def test_records_that_make_no_sense_are_named(record: Any, tmp_path: Path) -> None:
    good = json.dumps(RECORDS[0])
    (tmp_path / "a.jsonl").write_text(f"{good}\n{json.dumps(record)}\n{good}\n")
    source = sources.Chat(tmp_path / "a.jsonl", template=CHATML)
    with pytest.raises(ContentError) as caught:
        list(packed(source))
    assert caught.value.index == len(good) + 1
    assert f"{tmp_path}/a.jsonl" in str(caught.value)
    loader = PackedLoader(dataset(source, on_error="skip"))
    assert sum(batch.num_documents for batch in loader) == 2
    assert loader.metrics().skipped == 1


@pytest.mark.parametrize(
    "marks", [{"weight": 0}, {"train": False}, {"weight": 0.0}, {"loss": False}]
)
@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
@pytest.mark.parametrize("form", ["lines", "table", "completion"])
def test_a_message_with_weight_0_or_train_or_loss_false_carries_no_loss(
    marks: dict[str, Any], template: str, form: str, tmp_path: Path
) -> None:
    chat = marked(**marks)
    chat[0].update(marks)  # redundant on a user's message
    record: Any = {"messages": chat}
    if form == "completion":
        record = {"prompt": messages("z", "y"), "completion": chat}
    if form == "table":
        pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
    else:
        write_lines(tmp_path / "a.jsonl", [record])
    (batch, *_) = packed(sources.Chat(next(tmp_path.iterdir()), template=template))
    ids = batch.input_ids[batch.labels != -100].tolist()
    assert BPE.decode(ids, skip_special_tokens=False) == "but this<|im_end|>"


def test_a_template_that_marks_turns_otherwise_is_refused_where_one_is_not_learnt(
    tmp_path: Path,
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": marked(train=False)}])
    once = """{% for m in messages %}{{ m.content }}{% endfor %}
{%- generation %}{{ messages[-1].content }}{% endgeneration %}"""
    with pytest.raises(ContentError):
        list(packed(sources.Chat(tmp_path / "a.jsonl", template=once)))


IDS_BROKEN: list[Any] = [
    {"input_ids": [1, 2]},
    {"input_ids": [1, 2], "labels": [-100]},
    {"input_ids": [1, 2], "labels": [2, -100]},
    {"input_ids": [1, 2], "labels": [-100, -100]},
    {"input_ids": [1, 2], "labels": [1.5, 2]},
    {"input_ids": [1, -2], "labels": [1, 2]},
    {"input_ids": [1, 2], "loss_mask": [1]},
    {"input_ids": [1, 2], "labels": [1, 7]},
    {"messages": messages("a", "b")},
]


@pytest.mark.parametrize("record", IDS_BROKEN, ids=lambda value: str(value)[:60])
def test_labels_that_do_not_fit_are_named(record: Any, tmp_path: Path) -> None:
    good = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_mask": None}
    path = write_lines(tmp_path / "a.jsonl", [good] * 300 + [record])
    with pytest.raises(ContentError):
        list(PackedDataset(sources.Chat(path), seq_len=32, topology=Topology()))


def test_files_of_something_else_are_refused_at_once(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "a.jsonl", [{"text": "hi"}])
    with pytest.raises(ConfigError, match=r"a\.jsonl"):
        sources.Chat(texts).prepare()
    pq.write_table(pa.table({"text": ["hi"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a\.parquet"):
        sources.Chat(tmp_path / "a.parquet").prepare()
    with pytest.raises(ConfigError) as raised:
        sources.Chat(texts, template="chatml")
    assert raised.value.setting == "template"


def dataset(source: Any, **settings: Any) -> PackedDataset:
    chosen: dict[str, Any] = {"seq_len": 128} if "packer" not in settings else {}
    chosen |= {"batch_size": 1, "tokenizer": load_tokenizer(BPE), "lanes": 1}
    chosen |= {"topology": Topology(), **settings}
    return PackedDataset(source, **chosen)


def packed(source: Any, **settings: Any) -> Any:
    return iter(PackedLoader(dataset(source, **settings)))


def pieces(batch: Any) -> list[tuple[int, int]]:
    """(start, stop) of every piece of a document in a batch of one row."""
    ids = batch.document_ids[0].tolist()
    cuts = [0, *(i for i in range(1, len(ids)) if ids[i] != ids[i - 1]), len(ids)]
    return [(start, stop) for start, stop in itertools.pairwise(cuts) if ids[start] >= 0]


def learnt(labels: list[int]) -> str:
    return BPE.decode([label for label in labels if label != -100], skip_special_tokens=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_conversation_comes_out_once_with_its_mask(workers: int, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", RECORDS)
    source = sources.Chat(path, template=CHATML, **SMALL)
    loader = PackedLoader(dataset(source, lanes=2), num_workers=workers)
    found = []
    loss_tokens = 0
    for batch in loader:
        loss_tokens += batch.num_loss_tokens
        for start, stop in pieces(batch):
            text = BPE.decode(batch.input_ids[0, start:stop].tolist(), skip_special_tokens=False)
            found.append((text, learnt(batch.labels[0, start:stop].tolist())))
        assert batch.num_loss_tokens == int((batch.labels != -100).sum())
    ends = "<|im_end|>"
    expected = [
        (
            "".join(f"<|im_start|>{m['role']}\n{m['content']}{ends}\n" for m in chat),
            "".join(m["content"] + ends for m in chat if m["role"] == "assistant"),
        )
        for chat in CHATS
    ]
    assert sorted(found) == sorted(expected)
    assert loss_tokens > 0


def test_the_template_of_a_transformers_tokenizer_is_taken(tmp_path: Path) -> None:
    source = sources.Chat(write_lines(tmp_path / "a.jsonl", RECORDS[:5]))
    fast = with_template(BPE, CHATML)
    ours = [b.input_ids.tolist() for b in packed(source, tokenizer=fast)]
    given = sources.Chat(tmp_path / "a.jsonl", template=CHATML)
    assert ours == [b.input_ids.tolist() for b in packed(given)]
    fast.save_pretrained(tmp_path / "saved")
    assert ours == [b.input_ids.tolist() for b in packed(source, tokenizer=tmp_path / "saved")]
    (tmp_path / "chatml.jinja").write_text(CHATML)
    named = sources.Chat(tmp_path / "a.jsonl", template=tmp_path / "chatml.jinja")
    assert named.describe() == given.describe()


def test_conversations_are_truncated_and_packed_as_by_trl() -> None:
    seq_len = 64
    records = [{"messages": messages(f"count to {n}", "word " * n)} for n in range(1, 90, 3)]
    source = sources.Chat(records, template=CHATML)
    (whole,) = packed(source, packer=BestFitDecreasing(seq_len=1 << 16), batch_size=1)
    # TRL's SFTTrainer(packing=True): ids and labels cut to max_length, longest first, best fit.
    examples = sorted(
        (
            (whole.input_ids[0, i:j].tolist()[:seq_len], whole.labels[0, i:j].tolist()[:seq_len])
            for i, j in pieces(whole)
        ),
        key=lambda example: -len(example[0]),
    )
    room: list[int] = []
    for ids, _ in examples:
        fits = [row for row, left in enumerate(room) if left >= len(ids)]
        if not fits:
            room.append(seq_len)
        row = min(fits, key=room.__getitem__) if fits else len(room) - 1
        room[row] -= len(ids)
    loader = PackedLoader(dataset(source, seq_len=seq_len, packer=None, batch_size=1, lanes=1))
    batches = list(loader)
    ours = [
        (b.input_ids[0, i:j].tolist(), b.labels[0, i:j].tolist())
        for b in batches
        for i, j in pieces(b)
    ]
    assert sorted(ours) == sorted(examples)
    assert len(batches) == len(room)
    metrics = loader.metrics()
    assert metrics.composition.placed == sum(len(ids) for ids, _ in examples)
    lost = whole.num_tokens - metrics.composition.placed
    assert metrics.as_dict()["tokens_dropped"] == lost > 0
    assert metrics.as_dict()["dropped_ratio"] == lost / whole.num_tokens


def test_a_conversation_too_long_is_dropped_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"messages": messages("tell me all", "word " * 300)}
    path = write_lines(tmp_path / "a.jsonl", [*RECORDS[:3], long, *RECORDS[3:6]])
    packer = BestFitDecreasing(seq_len=128, overflow="drop")
    loader = PackedLoader(dataset(sources.Chat(path, template=CHATML), packer=packer))
    with caplog.at_level(logging.WARNING, "streampack"):
        assert sum(batch.num_documents for batch in loader) == 6
    composition = loader.metrics().composition
    assert (composition.documents, composition.documents_lost) == (6, 1)
    assert loader.metrics().as_dict()["documents_lost"] == 1
    place = sum(len(json.dumps(record)) + 1 for record in RECORDS[:3])
    (line,) = [record.message for record in caplog.records if "dropped:" in record.message]
    assert f"the line at byte {place} of {path}" in line


@pytest.mark.parametrize("form", ["jsonl", "parquet", "memory"])
def test_an_unwanted_answer_is_not_learnt_unless_its_label_is_declared(
    form: str, tmp_path: Path
) -> None:
    records = [{"prompt": "a", "completion": f"{i}", "label": i != 1} for i in range(3)]
    write_lines(tmp_path / "a.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    source = sources.Chat(records if form == "memory" else str(tmp_path / f"a.{form}"))
    with pytest.raises(ContentError):
        list(packed(source))
    (batch,) = packed(source, document_fields={"label": "bool"})
    assert sorted(batch.document_fields["label"].tolist()) == [False, True, True]


def test_conversations_are_cut_only_by_a_packer_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"messages": messages("tell me all", "word " * 300)}
    source = sources.Chat(write_lines(tmp_path / "a.jsonl", [long]), template=CHATML)
    with caplog.at_level(logging.WARNING, "streampack"):
        batches = list(packed(source, packer=BestFitDecreasing(seq_len=128)))
    assert "cuts conversations" in caplog.text
    labels = [learnt(b.labels[0, i:j].tolist()) for b in batches for i, j in pieces(b)]
    assert sum(text.count("word") for text in labels) >= 300 - len(batches)
    assert not any("tell" in text for text in labels)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "streampack"):
        dataset(source, packer=BestFitDecreasing(seq_len=128, overflow="truncate"))
    assert "cuts conversations" not in caplog.text
    with pytest.raises(ConfigError) as raised:
        dataset(source, order=SimilarityOrder(), attention="row")
    assert raised.value.setting == "order"
    dataset(
        source, order=SimilarityOrder(), attention="row", seq_len=None, packer=Concat(seq_len=128)
    )


def test_a_state_of_another_template_is_refused(tmp_path: Path) -> None:
    from streampack.errors import StateError

    path = write_lines(tmp_path / "a.jsonl", RECORDS)
    loader = PackedLoader(dataset(sources.Chat(path), tokenizer=with_template(BPE, CHATML)))
    next(iter(loader))
    other = with_template(BPE, CHATML.replace("assistant", "model"))
    with pytest.raises(StateError, match="tokenizer"):
        PackedLoader(dataset(sources.Chat(path), tokenizer=other)).load_state_dict(
            loader.state_dict()
        )
