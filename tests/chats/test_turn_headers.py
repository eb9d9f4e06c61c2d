"""A turn's mask has all of the turn, its end included, and never another turn's header."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken

from streampack.chats.conversations import TurnRules
from streampack.chats.records import conversation_of
from streampack.chats.templates.script import RenderError
from streampack.chats.templates.template import ChatTemplate
from streampack.chats.templates.turns import Rendered
from streampack.tokenization import load_tokenizer
from tests.support import chats
from tests.support.chat_masks import KINDS, asked, said
from tests.support.chat_templates import SPECIAL, TEMPLATES

#: As Command-A's: every text ends with the header of an answer, asked for or not.
TRAILING = """{{ bos_token }}<|TURN|><|SYSTEM|>Be brief.<|END|>{% for m in messages %}
{%- if m.role == 'user' %}<|TURN|><|USER|>{{ m.content }}<|END|>
{%- elif m.role == 'system' %}<|TURN|><|SYSTEM|>{{ m.content }}<|END|>
{%- else %}<|TURN|><|BOT|><|ANSWER|>{{ m.content }}<|ANSWERED|><|END|>
{%- endif %}{% endfor %}<|TURN|><|BOT|>PROMPT
"""
#: As GigaChat 3's: no generation prompt after an answer.
UNASKED = """{{ bos_token }}{% for m in messages %}{{ m.role + '<|role|>\\n' + m.content + '<|sep|>\\n\\n' }}
{%- if loop.last and add_generation_prompt and m.role != 'assistant' %}{{ 'assistant<|role|>\\n' }}
{%- endif %}{% endfor %}"""  # noqa: E501
ASKING = "{%- if add_generation_prompt %}<|ANSWER|>{% endif %}\n"

ALL = {
    **TEMPLATES,
    "trailing": TRAILING.replace("PROMPT", ""),
    "trailing, asked": TRAILING.replace("PROMPT", ASKING),
    "unasked": UNASKED,
    "chatml": chats.CHATML,
    "chatml, marked": chats.CHATML_MARKED,
    "llama 3": chats.LLAMA3,
    "mistral": chats.MISTRAL,
    "headers": chats.HEADERS,
    "next closes": chats.OPEN_ENDED,
    "thinking": chats.THINKING,
}
RECORDS = {
    **KINDS,
    "answers in a row": [asked("Q1"), said("A1"), said("A2"), asked("Q2"), said("A3")],
    "an empty answer": [asked("Q1"), said(""), asked("Q2"), said("A2")],
    "three answers": [asked("Q1"), said("A1"), asked("Q2"), said("A2"), asked("Q3"), said("A3")],
    "a question last": [asked("Q1"), said("A1"), asked("Q2")],
}
#: Beginnings of messages in these templates.
HEADER = re.compile(
    r"<\|im_start\|>|<\|start\|>|\[INST\]|\[SYS\]|<\|head\|>|<\|start_header_id\|>|### "
    r"|<\|(user|assistant|tool|system|observation)\|>|<\|TURN\|>|<\|BOT\|>|<\|role\|>"
)
TOKENS = sorted(
    {*SPECIAL, *chats.SPECIAL, *re.findall(r"<\|\w+\|>", "".join(ALL.values())), "</s>"}
)


@cache
def template_of(name: str, turns: str, eos: str) -> ChatTemplate:
    variables = {"bos_token": "<s>", "eos_token": eos, "strftime_now": "2025-07-26"}
    return ChatTemplate(ALL[name], variables, TOKENS, TurnRules(turns))


def rendered(name: str, chat: list[Any], turns: str, eos: str = "</s>") -> list[Rendered]:
    return template_of(name, turns, eos).render(
        conversation_of({"messages": json.loads(json.dumps(chat))})
    )


def spans(made: list[Rendered]) -> list[str]:
    return [one.text[start:stop] for one in made for start, stop in one.spans]


@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("name", ALL)
def test_learnt_tokens_of_a_turn_exclude_its_header(name: str, record: str, turns: str) -> None:
    chat = RECORDS[record]
    try:
        found = spans(rendered(name, chat, turns))
    except RenderError:
        return
    for learnt in found:
        if "next closes" in name or name == "open-ended":  # with the token of the next turn
            learnt = re.sub(r"<\|(user|tool|observation)\|>\Z", "", learnt)
        if name == "channels":  # the model itself writes a message of thoughts and another
            learnt = re.sub(r"(T\d<\|end\|>)<\|start\|>assistant", r"\1", learnt)
        assert not HEADER.search(learnt)
        assert not re.search("Q[123]", learnt)
    answers = "".join(message["content"] or "" for message in chat)
    assert re.findall(r"A\d", "".join(found)) == re.findall(r"A\d", answers)


@pytest.mark.parametrize("eos", ["</s>", "<|END|>"])
@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("name", ["trailing", "trailing, asked"])
def test_a_header_after_the_last_turn_belongs_to_none(name: str, turns: str, eos: str) -> None:
    made = rendered(name, RECORDS["answers in a row"], turns, eos)
    assert spans(made) == [f"{text}<|ANSWERED|><|END|>" for text in ("A1", "A2", "A3")]


@pytest.mark.parametrize("turns", ["whole", "each"])
def test_an_answer_after_an_answer_begins_after_its_header(turns: str) -> None:
    made = rendered("unasked", RECORDS["answers in a row"], turns)
    assert spans(made) == ["A1<|sep|>", "A2<|sep|>", "A3<|sep|>"]


@pytest.mark.parametrize("name", ["chatml", "chatml, marked", "llama 3", "unasked"])
def test_the_end_of_an_empty_answer_is_learnt_turn_by_turn_too(name: str) -> None:
    whole = spans(rendered(name, RECORDS["an empty answer"], "whole"))
    assert len(whole) == 2
    assert spans(rendered(name, RECORDS["an empty answer"], "each")) == whole


def test_a_tokenizer_declared_without_bos_writes_none(tmp_path: Any) -> None:
    engine = chats.bpe_tokenizer()
    engine.add_special_tokens([AddedToken("<s>", special=True)])
    engine.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "eos_token": "</s>"}')
    assert load_tokenizer(tmp_path / "tokenizer.json").bos_id is None
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    assert load_tokenizer(tmp_path / "tokenizer.json").bos_id == engine.token_to_id("<s>")
