"""The chat templates that TRL carries, as models ship them: right, or refused with a reason."""

from __future__ import annotations

import functools
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from streampack.chats.conversations import TurnRules
from streampack.chats.records import conversation_of
from streampack.chats.templates.script import RenderError
from streampack.chats.templates.template import ChatTemplate
from streampack.chats.templates.turns import Rendered

FOUND = find_spec("trl")
FOLDER = Path(((FOUND and FOUND.submodule_search_locations) or ["nowhere"])[0]) / "chat_templates"
ALL = sorted(path.stem for path in FOLDER.glob("*.jinja"))
SHIPPED = [name for name in ALL if not name.endswith("_training")]
pytestmark = pytest.mark.skipif(not SHIPPED, reason="TRL's templates are not installed")

#: Marks less than a turn, and its header.
OTHERWISE = ("diffusion_gemma",)

#: Accepted reasons of refusals: the template leaves out text to learn or writes it elsewhere,
#: prompts for something else, or refuses the conversation itself, in its own words.
REASONS = (
    "the template leaves out$",
    "of the assistant that the template leaves out in part or rewrites",
    "the template rewrites or leaves out earlier turns",
    "does not begin with the template's generation prompt",
    "Conversation roles must alternate",
    "System role not supported",
    "Only user and assistant roles are supported",
)

#: Pattern of special tokens in a template.
SPECIAL = re.compile(r"<[|｜][^<>'\"{}\s]{1,30}[|｜]>|<\|?[a-z_]+\|?>|\[/?[A-Z_]+\]|</s>")
NOT_SPECIAL = ("<think>", "</think>", "<tool_call>", "<tools>", "<function>", "<tool_response>")

FUNCTION = {"name": "NAMEA", "arguments": {"x": 1}}
CALL = {"type": "function", "id": "abcdefghi", "function": FUNCTION}
TOOL = {
    "type": "function",
    "function": {
        "name": "NAMEA",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer", "description": "a number"}},
            "required": ["x"],
        },
    },
}
RESULT = {"role": "tool", "content": "RESULTU", "name": "NAMEA", "tool_call_id": "abcdefghi"}


def asked(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str | None, thought: str | None = None, call: bool = False) -> dict[str, Any]:
    names = ("reasoning_content", "reasoning", "thinking")
    thoughts = {} if thought is None else dict.fromkeys(names, thought)
    calls = {"tool_calls": [CALL]} if call else {}
    return {"role": "assistant", "content": content, **thoughts, **calls}


#: Contents of the assistant end in A, all other contents in U.
KINDS: dict[str, list[dict[str, Any]]] = {
    "one answer": [asked("ONEU"), said("ONEA")],
    "two answers": [asked("ONEU"), said("ONEA"), asked("TWOU"), said("TWOA")],
    "system": [{"role": "system", "content": "SYSU"}, asked("ONEU"), said("ONEA")],
    "thoughts": [asked("ONEU"), said("ONEA", "HMA"), asked("TWOU"), said("TWOA", "HUMA")],
    "thoughts in content": [
        asked("ONEU"),
        said("<think>\nHMA\n</think>\n\nONEA"),
        asked("TWOU"),
        said("<think>\nHUMA\n</think>\n\nTWOA"),
    ],
    "a call": [asked("ONEU"), said(None, call=True), RESULT, said("ONEA")],
    "thoughts and a call": [
        asked("ONEU"), said(None, "HMA", call=True), RESULT, said("ONEA", "HUMA"),
    ],
    "words and a call": [asked("ONEU"), said("WORDA", call=True), RESULT, said("ONEA")],
}  # fmt: skip


@functools.cache
def template(name: str, turns: str) -> ChatTemplate:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    special = {text for text in SPECIAL.findall(source) if text not in NOT_SPECIAL}
    variables = {"bos_token": "<BOS>", "eos_token": "<EOS>", "strftime_now": "2025-07-26"}
    return ChatTemplate(source, variables, {*special, "<EOS>"}, TurnRules(turns))


def render(name: str, kind: str, turns: str = "whole") -> list[Rendered]:
    tools = [TOOL] if "call" in kind else None
    record = {"messages": json.loads(json.dumps(KINDS[kind])), "tools": tools}
    return template(name, turns).render(conversation_of(record))


def words(kind: str) -> set[str]:
    """Return the assistant's contents, thoughts and names of calls."""
    spoken = [m for m in KINDS[kind] if m["role"] == "assistant"]
    return set(re.findall(r"[A-Z]+A\b", json.dumps(spoken)))


@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHIPPED)
def test_exactly_the_assistants_words_are_learnt_or_the_chat_is_refused(
    name: str, kind: str, turns: str
) -> None:
    try:
        texts = render(name, kind, turns=turns)
    except RenderError as error:
        texts, refused = [], error
    if texts:
        assert_learnt_whole(texts, kind, turns)
    else:
        assert re.search("|".join(REASONS), refused.reason)
        assert refused.remedy


def assert_learnt_whole(texts: list[Rendered], kind: str, turns: str) -> None:
    learnt = "\n".join(text.text[a:b] for text in texts for a, b in text.spans)
    assert set(re.findall(r"[A-Z]+A\b", learnt)) == words(kind)
    assert not re.findall(r"[A-Z]+U\b", learnt)
    answers = sum(message["role"] == "assistant" for message in KINDS[kind])
    assert len(texts) == (answers if turns == "each" else 1)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("kind", ["one answer", "two answers"])
def test_plain_conversations_are_refused_by_no_template(name: str, kind: str) -> None:
    assert len(render(name, kind)) == 1


@pytest.mark.parametrize("kind", ["thoughts", "thoughts and a call"])
@pytest.mark.parametrize(
    "name", [n for n in SHIPPED if re.match("gptoss|qwen3$|qwen3_[568]|nemotron|lfm2_2_5$|glm4", n)]
)
def test_models_that_think_learn_every_thought_turn_by_turn(name: str, kind: str) -> None:
    if name == "qwen3_5_nothink":
        return
    assert len(render(name, kind, turns="each")) == 2


def test_learnt_tokens_lie_within_the_marks_of_trl() -> None:
    compared = 0
    for name in SHIPPED:
        if f"{name}_training" not in ALL or name in OTHERWISE:
            continue
        for kind in KINDS:
            try:
                (ours,), (theirs,) = render(name, kind), render(f"{name}_training", kind)
            except RenderError:
                continue
            if ours.text != theirs.text:
                continue
            compared += 1
            for start, stop in ours.spans:
                inside = ours.text[start:stop].rstrip()
                assert any(
                    a <= start and start + len(inside) <= b + 1 for a, b in theirs.spans
                ) or (
                    "<EOS>" in inside  # marked apart from the turn that it follows
                )
    assert compared >= 20
