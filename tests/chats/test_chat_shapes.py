"""The shapes of chat records: the same conversation, however it is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.chats.conversations import Conversation
from streampack.chats.records import conversation_of
from streampack.errors import ConfigError, ContentError
from streampack.sources.records import BrokenDocumentError
from streampack.tokenization import load_tokenizer
from tests.support.chats import CHATML, bpe_tokenizer, messages, write_lines

BPE = bpe_tokenizer()
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def human(value: str) -> dict[str, Any]:
    return {"from": "human", "value": value}


def gpt(value: str, **more: Any) -> dict[str, Any]:
    return {"from": "gpt", "value": value, **more}


#: A record, the messages that it means, and the contents that are learnt.
SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[str]]] = {
    "messages": ({"messages": messages("a", "b")}, messages("a", "b"), ["b"]),
    "messages with a system of their own": (
        {"system": "s", "messages": messages("a", "b")},
        messages("a", "b", system="s"),
        ["b"],
    ),
    "parts of text": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, gpt("b")]},
        messages("a", "b"),
        ["b"],
    ),
    "parts without a type, or of Responses": (
        {
            "messages": [
                {"role": "user", "content": [{"text": "a"}, {"type": None, "text": "c"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "d"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            ]
        },
        [
            {"role": "user", "content": "ac"},
            {"role": "user", "content": "d"},
            {"role": "assistant", "content": "b"},
        ],
        ["b"],
    ),
    "thoughts alone": (
        {"messages": [messages("a")[0], {"role": "assistant", "reasoning_content": "t"}]},
        [messages("a")[0], {"role": "assistant", "content": None, "reasoning_content": "t"}],
        [""],
    ),
    "sharegpt": (
        {"conversations": [{"from": "system", "value": "s"}, human("a"), gpt("b")]},
        messages("a", "b", system="s"),
        ["b"],
    ),
    "sharegpt with a system and marks": (
        {"system": "s", "conversations": [human("a"), gpt("b", weight=0), human("c"), gpt("d")]},
        messages("a", "b", "c", "d", system="s"),
        ["d"],
    ),
    "sharegpt with calls": (
        {
            "conversations": [
                human("a"),
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
                {"from": "observation", "value": "2"},
                gpt("b"),
            ]
        },
        [
            messages("a")[0],
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "b"},
        ],
        ["", "b"],
    ),
    "conversations with roles": ({"conversations": messages("a", "b")}, messages("a", "b"), ["b"]),
    "alpaca": (
        {"instruction": "a", "input": "", "output": "b"},
        messages("a", "b"),
        ["b"],
    ),
    "alpaca with an input": (
        {"instruction": "a", "input": "x", "output": "b"},
        messages("a\nx", "b"),
        ["b"],
    ),
    "alpaca with a history": (
        {"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "s"},
        messages("a", "b", "c", "d", system="s"),
        ["b", "d"],
    ),
    "completion of messages": (
        {"prompt": messages("a", "b", "c"), "completion": [gpt("d")]},
        messages("a", "b", "c", "d"),
        ["d"],
    ),
    "from with content, and role with value": (
        {"conversations": [{"from": "human", "content": "a"}, {"role": "assistant", "value": "b"}]},
        messages("a", "b"),
        ["b"],
    ),
    "parts of LLaMA-Factory": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "value": "a"}], "loss_weight": 0.0},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "value": "t"},
                        {"type": "text", "value": "b"},
                        {"type": "tool_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
                    ],
                    "loss_weight": 1.0,
                },
            ]
        },
        [
            messages("a")[0],
            {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [CALL]},
        ],
        ["b"],
    ),
    "parts of torchtune": (
        {"messages": [{"role": "user", "content": [{"type": "text", "content": "a"}]}, gpt("b")]},
        messages("a", "b"),
        ["b"],
    ),
    "completion of text": ({"prompt": "a", "completion": "b"}, messages("a", "b"), ["b"]),
}
PAIRS: dict[str, dict[str, Any]] = {
    "messages": {"prompt": messages("a"), "chosen": [gpt("b")], "rejected": [gpt("c")]},
    "no prompt": {"chosen": messages("a", "b"), "rejected": messages("a", "c")},
    "a prompt of text": {
        "prompt": "a",
        "chosen": messages("a", "b"),
        "rejected": messages("a", "c"),
    },
    "text": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "ranked messages": {"messages": messages("a"), "chosen": gpt("b"), "rejected": gpt("c")},
    "ranked answers": {"conversations": [human("a")], "chosen": gpt("b"), "rejected": gpt("c")},
    "ranked after a text": {"prompt": "a", "chosen": gpt("b"), "rejected": gpt("c")},
    "ranked outputs": {"instruction": "a", "input": "", "chosen": "b", "rejected": "c"},
    "names of LLaMA-Factory": {
        "chosen_messages": messages("a", "b"),
        "rejected_messages": messages("a", "c"),
    },
}


def learnt(conversation: Conversation) -> list[str]:
    turns = conversation.messages
    return [turns[i]["content"] or "" for i in range(len(turns)) if conversation.learns(i)]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_the_conversation_that_it_means(name: str) -> None:
    record, expected, turns = SHAPES[name]
    conversation = conversation_of(record)
    assert conversation.messages == expected
    assert learnt(conversation) == turns


@pytest.mark.parametrize("name", SHAPES)
def test_tables_hold_every_shape(name: str, tmp_path: Path) -> None:
    record, expected, turns = SHAPES[name]
    other = {"messages": messages("x", "y"), "tools": None}  # gives every column, mostly null
    try:
        pq.write_table(
            pa.Table.from_pylist([{**dict.fromkeys(other), **record}]), tmp_path / "a.parquet"
        )
    except pa.ArrowInvalid:
        pytest.skip("a table has messages of one form")
    source = sources.Chat(tmp_path / "a.parquet", template=CHATML)
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    from streampack.sources.error_policy import ErrorPolicy

    ((block, _),) = lane.read(None, ErrorPolicy())
    (conversation,) = block.conversations  # type: ignore[union-attr]
    assert [dict(m, tool_calls=None) for m in conversation.messages] == [
        dict(m, tool_calls=None) for m in expected
    ]
    assert learnt(conversation) == turns


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_two_conversations_with_one_prompt(name: str) -> None:
    chosen = conversation_of(PAIRS[name])
    assert chosen.rejected is not None
    assert chosen.messages == messages("a", "b")
    assert chosen.rejected.messages == messages("a", "c")
    assert (learnt(chosen), learnt(chosen.rejected)) == (["b"], ["c"])


FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}


@pytest.mark.parametrize("form", [list, json.dumps, lambda tools: [*map(json.dumps, tools)]])
def test_functions_beside_a_function_call_are_tools(form: Any) -> None:
    called = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    chat = [messages("a")[0], called, {"role": "function", "name": "add", "content": "2"}]
    found = conversation_of({"messages": chat, "functions": form([FUNCTION])})
    assert found.tools == [{"type": "function", "function": FUNCTION}]
    assert found.messages[1]["tool_calls"] == [CALL]
    with pytest.raises(BrokenDocumentError):
        conversation_of({"messages": chat, "functions": [FUNCTION], "tools": found.tools})


def test_texts_without_a_prompt_share_a_dialogue_up_to_the_last_answer() -> None:
    start = "\n\nHuman: why? \n\nAssistant: who? \n\nHuman: I. \n\nAssistant:"
    chosen = conversation_of({"chosen": f"{start} because", "rejected": f"{start} before"})
    assert chosen.rejected is not None
    assert [m["content"] for m in chosen.messages] == [start, " because"]
    assert [m["content"] for m in chosen.rejected.messages] == [start, " before"]


REFUSED: list[dict[str, Any]] = [
    {"text": "a"},
    {"conversations": [{"from": "alien", "value": "a"}]},
    {"conversations": [{"from": "human"}]},
    {"conversations": [{"from": "function_call", "value": "{"}]},
    {"conversations": [{"from": "function_call", "value": "{}"}]},
    {"instruction": "a", "output": ["b"]},
    {"instruction": "a", "output": "b", "history": [["x"]]},
    {"instruction": "a", "output": ""},
    {"system": "s", "messages": messages("a", "b", system="t")},
    {"chosen": messages("a", "b"), "rejected": messages("x", "c")},
    {"chosen": messages("a", "b"), "rejected": messages("a", "b")},
    {"chosen": "It is one", "rejected": "It is two", "question": "?"},
    {"prompt": "a", "completion": "b", "system": "s"},
    {"prompt": "a", "chosen": "b", "rejected": messages("a", "c")},
    {"prompt": "z", "chosen": messages("a", "b"), "rejected": messages("a", "c")},
    {"prompt": "a", "chosen": "b", "rejected": ""},
    {"prompt": "a", "chosen": "b", "rejected": "b"},
    {"chosen": "Assistant: b", "rejected": "Assistant: b"},
    {"messages": messages("a", "b"), "chosen": [], "rejected": []},
    {"messages": messages("a", "b"), "rejected_response": "c"},
    {"messages": messages("a", "b"), "tools": ["{"]},
    {"conversations": [{"from": "human", "value": "a", "content": "x"}, gpt("b")]},
    {"chosen": gpt("b"), "rejected": gpt("c")},
]


@pytest.mark.parametrize("record", REFUSED, ids=lambda value: str(value)[:60])
def test_unknown_shapes_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(BrokenDocumentError):
        conversation_of(record)


def test_records_with_two_meanings_are_read_by_the_given_shape(tmp_path: Path) -> None:
    record = {"messages": messages("a", "b"), **PAIRS["messages"]}
    path = write_lines(tmp_path / "a.jsonl", [record])
    with pytest.raises(ConfigError):
        sources.Chat(path, template=CHATML).prepare()
    for shape, count in (("messages", 1), ("preference", 2)):
        source = sources.Chat(path, template=CHATML, shape=shape)
        named = {"document_fields": {"chosen": "bool"}} if count == 2 else {}
        batches = list(PackedLoader(dataset(source, **named)))
        assert sum(batch.num_documents for batch in batches) == count
    with pytest.raises(ConfigError):
        sources.Chat(path, shape="dpo")


def test_a_record_without_the_shape_that_is_named_is_broken(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"messages": messages("a", "b")}])
    with pytest.raises(ContentError):
        list(PackedLoader(dataset(sources.Chat(path, template=CHATML, shape="alpaca"))))


def test_files_of_chats_are_not_read_as_text_and_the_error_names_the_source(tmp_path: Path) -> None:
    for i, (record, _, _) in enumerate(SHAPES.values()):
        path = write_lines(tmp_path / f"{i}.jsonl", [record])
        with pytest.raises(ConfigError):
            dataset(path).plan  # noqa: B018  lists the files
        assert sources.Chat(path).estimate_tokens() > 0


def dataset(source: Any, **settings: Any) -> PackedDataset:
    chosen: dict[str, Any] = {"seq_len": 128, "batch_size": 1, "lanes": 1}
    chosen |= {"tokenizer": load_tokenizer(BPE, eos_id=0), "topology": Topology(), **settings}
    return PackedDataset(source, **chosen)


def test_parsing_of_a_record_leaves_it_as_it_is() -> None:
    for record, _, _ in SHAPES.values():
        before = json.dumps(record)
        conversation_of(record)
        assert json.dumps(record) == before
