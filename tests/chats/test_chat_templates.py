"""Templates as they ship, without generation marks: learnt text, written out by hand."""

# ruff: noqa: E501  each learnt text is on one line

from __future__ import annotations

import datetime
import json
import pickle
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine

from streampack.chats.conversations import Conversations
from streampack.chats.records import conversation_of
from streampack.documents.blocks import Documents, make_origin
from streampack.errors import ConfigError, ContentError
from streampack.sources import Chat
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.records import BrokenDocumentError
from streampack.tokenization import ChatTokenizer, load_tokenizer
from tests.support.chat_masks import EACH, KINDS, WHOLE, Refused, asked, said
from tests.support.chat_templates import SPECIAL, TEMPLATES
from tests.support.chats import bpe_tokenizer
from tests.support.drawn import drawn

BPE = bpe_tokenizer()
BPE.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
DATE = {"strftime_now": "2025-07-26"}


def chat_tokenizer(template: str, rule: str = "as-is", **options: Any) -> ChatTokenizer:
    """With a template by name or text, and the rules and arguments of `Chat`."""
    ids = {"eos_id": BPE.token_to_id("</s>"), "bos_id": BPE.token_to_id("<s>")}
    source = Chat("unread.jsonl", template_kwargs={**DATE, **options.pop("kwargs", {})}, **options)
    return ChatTokenizer(
        load_tokenizer(BPE, eos=rule, bos=False, **ids),
        TEMPLATES.get(template, template),
        str,
        source.rules,
        source.template_kwargs,
    )


@cache
def shipped(name: str, turns: str) -> ChatTokenizer:
    """With a template as it ships."""
    return chat_tokenizer(name, turns=turns)


def encode(
    tokenizer: ChatTokenizer, chat: list[Any], skips: ErrorPolicy | None = None
) -> Documents:
    import numpy as np

    conversations = [conversation_of({"messages": chat})]
    block = Conversations(conversations, make_origin(0, np.arange(1, dtype=np.int64)))
    return tokenizer.encode(block, skips or ErrorPolicy())


def by_hand(engine: Engine, written: str) -> tuple[list[int], list[bool]]:
    """Ids and mask of a text with « and » around its learnt parts."""
    parts = re.split("[«»]", written)
    encoding = engine.encode("".join(parts), add_special_tokens=False)
    flags = [bool(i % 2) for i, part in enumerate(parts) for _ in part]
    return encoding.ids, [any(flags[start:stop]) for start, stop in encoding.offsets]


def ids_and_masks(documents: Documents) -> list[tuple[list[int], list[bool]]]:
    assert documents.loss_mask is not None
    cuts = list(zip(documents.offsets[:-1].tolist(), documents.offsets[1:].tolist(), strict=True))
    mask = documents.loss_mask
    return [(documents.tokens[a:b].tolist(), mask[a:b].tolist()) for a, b in cuts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_one_document_of_a_conversation(name: str, kind: str) -> None:
    expected = WHOLE[name][list(KINDS).index(kind)]
    if isinstance(expected, Refused):
        with pytest.raises(ContentError, match=re.escape(expected)):
            encode(shipped(name, "whole"), KINDS[kind])
    else:
        assert ids_and_masks(encode(shipped(name, "whole"), KINDS[kind])) == [
            by_hand(BPE, str(expected))
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_one_document_of_every_turn_begins_with_the_models_prompt(name: str, kind: str) -> None:
    tokenizer, chat = shipped(name, "each"), KINDS[kind]
    expected = EACH[name][list(KINDS).index(kind)]
    if isinstance(expected, Refused):
        with pytest.raises(ContentError, match=re.escape(expected)):
            encode(tokenizer, chat)
        return
    documents = encode(tokenizer, chat)
    assert learnt(documents) == expected
    turns = [i for i, message in enumerate(chat) if message["role"] == "assistant"]
    for i, (ids, mask) in zip(turns, ids_and_masks(documents), strict=True):
        context = BPE.decode(ids[: mask.index(True)], skip_special_tokens=False)
        assert context.removesuffix(" ") == prompt(TEMPLATES[name], chat[:i])


def prompt(template: str, chat: list[Any]) -> str:
    """Return the model's input as transformers renders it, with the date set."""
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value)
    as_text = "call.function.arguments }}" in template
    said_before = []
    for message in chat:
        calls = message.get("tool_calls")
        if calls and as_text:
            calls = [{"function": {"name": "add", "arguments": '{"a": 1}'}}]
        said_before.append(
            {
                **message,
                "content": message["content"] or "",
                **({"tool_calls": calls} if calls else {}),
            }
        )
    return environment.from_string(template).render(
        messages=said_before, add_generation_prompt=True, bos_token="<s>", eos_token="</s>",
        strftime_now=datetime.date(2025, 7, 26).strftime,
    )  # fmt: skip


MASKED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("stripped", {"thoughts": "mask"}, "thoughts", ["A1<|im_end|>", "A2<|im_end|>"]),
    ("opened", {"thoughts": "mask"}, "thoughts", ["A1<|im_end|>", "A2<|im_end|>"]),
    ("channels", {"thoughts": "mask"}, "thoughts", ["A1<|return|>", "A2<|return|>"]),
    ("open-ended", {"thoughts": "mask"}, "thoughts", ["A1", "A2"]),
    ("stripped", {"thoughts": "mask"}, "thoughts in content", ["A1<|im_end|>", "A2<|im_end|>"]),
    (
        "stripped",
        {"thoughts": "mask"},
        "thoughts and a call",
        ['<call>add{"a": 1}</call><|im_end|>', "A1<|im_end|>"],
    ),
    ("stripped", {"learn": ("thinking",)}, "thoughts", ["<think>\nT1\n</think>\n\n", "<think>\nT2\n</think>\n\n"]),
    ("stripped", {"learn": ("content",)}, "words and a call", ["W", "<think>\n\n</think>\n\nA1<|im_end|>", "<think>\n\n</think>\n\nA2<|im_end|>"]),
    ("stripped", {"learn": ("tool_calls",)}, "words and a call", ['<call>add{"a": 1}</call><|im_end|>']),
    ("call-or-content", {"learn": ("tool_calls",)}, "a call", ['{"name": "add", "parameters": {"a": 1}}<|eot_id|>']),
    ("dropped", {"turns": "whole", "learn": ("content",)}, "thoughts in content", ["A1</s>", "A2</s>"]),
    ("stripped", {"turns": "whole", "learn": ("content", "tool_calls")}, "thoughts", ["A1<|im_end|>", "A2<|im_end|>"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rules", "kind", "expected"), MASKED)
def test_only_the_parts_that_are_named_carry_loss(
    name: str, rules: dict[str, Any], kind: str, expected: list[str]
) -> None:
    documents = encode(chat_tokenizer(name, **{"turns": "each", **rules}), KINDS[kind])
    assert learnt(documents) == expected


def learnt(documents: Documents) -> list[str]:
    """The texts of the runs of tokens that carry loss."""
    runs: list[str] = []
    for ids, mask in ids_and_masks(documents):
        marks = "".join("x" if flag else " " for flag in mask)
        runs += [
            BPE.decode(ids[run.start() : run.end()], skip_special_tokens=False)
            for run in re.finditer("x+", marks)
        ]
    return runs


KEEPING = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize("kind", ["thoughts", "thoughts in content"])
def test_earlier_thoughts_are_stripped_for_templates_that_keep_them(kind: str) -> None:
    for thoughts, kept in (("keep", True), ("strip-history", False)):
        documents = encode(chat_tokenizer(KEEPING, turns="each", thoughts=thoughts), KINDS[kind])
        texts = [BPE.decode(ids, skip_special_tokens=False) for ids, _ in ids_and_masks(documents)]
        assert ["T1" in text for text in texts] == [True, kept]
        assert "T2" in learnt(documents)[1]


def test_a_turn_that_is_not_learnt_makes_no_document() -> None:
    chat = [asked("Q1"), {**said("A1"), "train": False}, asked("Q2"), said("A2")]
    assert learnt(encode(chat_tokenizer("merged-system", turns="each"), chat)) == ["A2<|end|>"]


def test_parts_that_the_template_mixes_are_refused_where_one_is_not_learnt() -> None:
    backwards = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- for call in m.tool_calls or [] %}{{- '<call>' + call.function.name + '</call>' }}{% endfor %}
{{- m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
    chat = KINDS["words and a call"]
    tokenizer = chat_tokenizer(backwards, turns="each", learn=("content",))
    with pytest.raises(ContentError, match=r"cannot be told apart.*Learn them all"):
        encode(tokenizer, chat)
    everything = encode(chat_tokenizer(backwards, turns="each"), chat)
    assert learnt(everything)[0] == "<call>add</call>W<|im_end|>"


#: Refused conversations, and the arguments that the error names.
REMEDIES: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    ("stripped", {}, "thoughts", {"turns": "each"}, 'turns="each"'),
    ("channels", {}, "thoughts and a call", {"turns": "each"}, 'turns="each"'),
    ("moving-system", {}, "two answers", {"turns": "each"}, 'turns="each"'),
    ("merged-system", {}, "thoughts", {"learn": ("content", "tool_calls")}, "learn=('content', 'tool_calls')"),
    ("separated", {}, "a call", {"learn": ("thinking", "content")}, "learn=('thinking', 'content')"),
    ("opened", {"turns": "each"}, "two answers", {"turns": "each", "kwargs": {"enable_thinking": False}}, '{"enable_thinking": False}'),
    ("opened", {"turns": "each", "kwargs": {"enable_thinking": False}}, "thoughts and a call", {"turns": "each", "kwargs": {"enable_thinking": True}}, '{"enable_thinking": True}'),
    ("dropped", {"turns": "each"}, "two answers", {"turns": "whole"}, 'turns="whole"'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rules", "kind", "remedy", "words"), REMEDIES)
def test_the_advice_of_the_error_works(
    name: str, rules: dict[str, Any], kind: str, remedy: dict[str, Any], words: str
) -> None:
    with pytest.raises(ContentError) as caught:
        encode(chat_tokenizer(name, **rules), KINDS[kind])
    assert words in str(caught.value)
    assert len(encode(chat_tokenizer(name, **remedy), KINDS[kind])) >= 1


@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("text", ["part.text", "message.content[0]['text']"])
def test_a_template_that_takes_content_in_parts_gets_it_so(text: str, turns: str) -> None:
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% for part in message.content if part.type == 'text' %}{{ TEXT }}{% endfor %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ).replace("TEXT", text)
    made = encode(chat_tokenizer(template, turns=turns), KINDS["two answers"])
    assert [words.count("A") for words in learnt(made)] == [1, 1]


def test_a_date_is_fixed_and_part_of_the_fingerprint() -> None:
    tokenizer = chat_tokenizer("dated", kwargs={"strftime_now": "2024-02-29T12:00"})
    (text,) = [BPE.decode(ids) for ids, _ in ids_and_masks(encode(tokenizer, KINDS["one answer"]))]
    assert "It is 29 February 2024." in text
    prints = {chat_tokenizer("dated", **options).fingerprint for options in VARIANTS}
    assert len(prints) == len(VARIANTS)
    sources = [
        Chat("x.jsonl", **{"template_kwargs": o.pop("kwargs", None), **o})
        for o in map(dict, VARIANTS)
    ]
    assert len({repr((s.rules, s.template_kwargs)) for s in sources}) == len(VARIANTS)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"kwargs": {"strftime_now": "2024-02-29"}},
    {"turns": "each"},
    {"thoughts": "mask"},
    {"turns": "each", "thoughts": "strip-history"},
    {"learn": ("content",)},
]

WRONG: list[dict[str, Any]] = [
    {"turns": "all"},
    {"thoughts": "drop"},
    {"thoughts": "strip-history"},
    {"learn": ()},
    {"learn": ("answers",)},
    {"thoughts": "mask", "learn": ("thinking",)},
    {"template_kwargs": {"messages": []}},
    {"template_kwargs": {"strftime_now": "today"}},
    {"template_kwargs": {"f": len}},
]


@pytest.mark.parametrize("options", WRONG, ids=repr)
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Chat("unread.jsonl", **options)
    name = next(iter(options))
    assert caught.value.setting == name


MARKED = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}
{%- if m.reasoning_content and (loop.last or keep) %}
{{- '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- m.content + '<|im_end|>' }}{% endif %}
{{- '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def test_marked_turns_follow_the_same_rules() -> None:
    chat = KINDS["thoughts"]
    with pytest.raises(ContentError, match=r'thoughts in message 1.*turns="each"'):
        encode(chat_tokenizer(MARKED), chat)
    assert learnt(encode(chat_tokenizer(MARKED, kwargs={"keep": True}), chat)) == [
        "<think>T1</think>A1<|im_end|>",
        "<think>T2</think>A2<|im_end|>",
    ]
    each = encode(chat_tokenizer(MARKED, turns="each"), chat)
    assert [len(ids) for ids, _ in ids_and_masks(each)] == sorted(
        len(ids) for ids, _ in ids_and_masks(each)
    )
    assert learnt(each) == ["<think>T1</think>A1<|im_end|>", "<think>T2</think>A2<|im_end|>"]
    masked = encode(chat_tokenizer(MARKED, turns="each", thoughts="mask"), chat)
    assert learnt(masked) == ["A1<|im_end|>", "A2<|im_end|>"]
    only = [asked("Q1"), {**said("A1"), "train": False}, asked("Q2"), said("A2")]
    assert learnt(encode(chat_tokenizer(MARKED, turns="each"), only)) == ["A2<|im_end|>"]


def test_pickled_with_a_date_and_rules_it_does_the_same() -> None:
    tokenizer = chat_tokenizer("channels", turns="each", thoughts="mask")
    again = pickle.loads(pickle.dumps(tokenizer))
    chat = KINDS["thoughts"]
    assert ids_and_masks(encode(again, chat)) == ids_and_masks(encode(tokenizer, chat))


@pytest.mark.parametrize("form", [dict, json.dumps])
@pytest.mark.parametrize("name", ["stripped", "dropped"])  # takes objects, takes text
def test_arguments_may_be_text_or_objects(name: str, form: Any) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": form({"a": 1})}}
    chat = [asked("Q1"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = '<call>add{"a": 1}' if name == "stripped" else '<|call|>add\n{"a": 1}'
    assert text in learnt(encode(chat_tokenizer(name), chat))[0]


@pytest.mark.sampled(4)
@given(
    contents=st.lists(st.text("ab <>/think\n{}|", min_size=1, max_size=14), min_size=2, max_size=6)
)
@drawn(12)
@pytest.mark.parametrize("name", [n for n in TEMPLATES if n not in ("dropped", "stripped")])
def test_every_turn_is_learnt_whole_or_refused(name: str, contents: list[str]) -> None:
    chat = [asked(text) if i % 2 == 0 else said(text) for i, text in enumerate(contents)]
    answers = [text.strip() for text in contents[1::2]]
    marks = re.compile("</?think>")
    assume(all(marks.sub("", answer).strip() for answer in answers))  # every answer has text
    for turns in ("whole", "each"):
        try:
            documents = encode(chat_tokenizer(name, turns=turns), chat)
        except (ContentError, BrokenDocumentError):
            continue
        runs = learnt(documents)
        for answer in answers:
            assert any(answer in run for run in runs)


#: Gemma 4: answers in a row are one turn of the model.
MERGED = """{%- for m in messages %}
{%- set begins = not loop.index0 or messages[loop.index0 - 1].role != m.role %}
{%- set ends = loop.last or messages[loop.index].role != m.role %}
{%- if begins %}{{- '<|im_start|>' + m.role + '\\n' }}{% endif %}
{{- m.content }}
{%- if ends %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def test_an_answer_without_loss_is_not_learnt_with_the_answer_that_continues_its_turn() -> None:
    chat = [asked("Q"), {**said("FIRST"), "train": False}, said("SECOND")]
    tokenizer = chat_tokenizer(MERGED, turns="each")
    with pytest.raises(ContentError):
        encode(tokenizer, chat)
    (alone,) = ids_and_masks(encode(tokenizer, [asked("Q"), said("SECOND")]))
    learnt = [token for token, on in zip(*alone, strict=True) if on]
    assert BPE.decode(learnt, skip_special_tokens=False) == "SECOND<|im_end|>"
