"""Parts of long conversations, checked against a rendering that is not the package's."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Engine

from streampack.chats.conversations import Conversations, TurnRules
from streampack.chats.long_chats import LongChats
from streampack.chats.records import conversation_of
from streampack.documents.blocks import Documents, make_origin
from streampack.errors import ContentError
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import ChatTokenizer, load_tokenizer

DATE = "2025-07-26"
WORD = re.compile(r"\bm(\d+)w\d+z")
CALL = re.compile(r"\bm(\d+)call\d")


class Template(NamedTuple):
    """A template, the texts of its special tokens, its variables, and if contents are lists."""

    source: str
    special: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    lists: bool = False


def _refuse(words: str) -> None:
    raise ValueError(words)


@functools.cache
def _compiled(source: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = datetime.fromisoformat(DATE).strftime
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    return environment.from_string(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", source))


def rendered(template: Template, messages: Sequence[Any], prompt: bool = False) -> str:
    """A conversation as transformers renders it: plain Jinja with its names."""
    written = [{**m, "content": m["content"] or ""} for m in messages]
    if template.lists:
        written = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in written]
    return str(
        _compiled(template.source).render(
            messages=written,
            add_generation_prompt=prompt,
            **dict(template.variables),
        )
    )


def words(number: int, count: int) -> str:
    return " ".join(f"m{number}w{k}z" for k in range(count))


@st.composite
def chats(draw: Any, *, tools: bool = True, odd: bool = True) -> list[dict[str, Any]]:
    """Conversations; each message has words of its own. With `odd`, roles need not alternate."""
    made: list[dict[str, Any]] = []

    def add(role: str, most: int = 24, **more: Any) -> None:
        count = draw(st.integers(1, most))
        made.append({"role": role, "content": words(len(made), count), **more})

    if draw(st.booleans()):
        add("system", 6)
    if odd and draw(st.integers(0, 5)) == 0:
        add("assistant")
    for _ in range(draw(st.integers(1, 7))):
        for _ in range(2 if odd and draw(st.integers(0, 7)) == 0 else 1):
            add("user")
        for _ in range(draw(st.integers(1, 6)) if tools and draw(st.integers(0, 2)) == 0 else 0):
            turn = len(made)
            calls = [
                {
                    "type": "function",
                    "id": f"call{turn:03}{k:02}",
                    "function": {"name": f"m{turn}call{k}", "arguments": {"a": 1}},
                }
                for k in range(draw(st.integers(1, 2)))
            ]
            made.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                name = call["function"]["name"]
                add("tool", 12, tool_call_id=call["id"], name=name)
        for _ in range(2 if odd and draw(st.integers(0, 7)) == 0 else 1):
            marks = {"train": False} if draw(st.integers(0, 6)) == 0 else {}
            add("assistant", draw(st.sampled_from([6, 24, 60])), **marks)
    made[-1].pop("train", None)  # something is learnt
    return made


@functools.cache
def encoder(engine: Engine, template: Template, turns: str) -> ChatTokenizer:
    kwargs = {**dict(template.variables), "strftime_now": DATE}
    made = load_tokenizer(engine, eos="as-is", bos=False)
    return ChatTokenizer(made, template.source, str, TurnRules(turns), kwargs)


def assert_parts(
    engine: Engine, template: Template, chat: list[dict[str, Any]], row: int, turns: str = "whole"
) -> int:
    """Check the parts of a conversation; return their number, 0 if it fits or is refused."""
    whole = encoder(engine, template, turns)
    block = Conversations(
        [conversation_of({"messages": json.loads(json.dumps(chat))})], make_origin(0, np.arange(1))
    )
    try:
        expected = whole.encode(block, ErrorPolicy())
    except ContentError:
        return 0
    skips = ErrorPolicy()
    long = Cutting(whole, TurnRules(turns), row)
    parts = long.encode(block, skips)
    if expected.lengths.max() <= row:
        assert parts.tokens.tolist() == expected.tokens.tolist()
        return 0
    assert learnt_words(engine, parts) == learnt_words(engine, expected)
    assert any(long.cut) == bool(skips.counts.context_dropped)
    for i, cut in enumerate(long.cut):
        part = parts[i : i + 1]
        _check_part(engine, template, chat, row, part, cut or part.num_tokens > row, turns)
    return len(parts)


class Cutting(LongChats):
    """Remembers which documents it cuts, of one conversation."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cut: list[bool] = []

    def _last_rows(self, document: Documents, skips: ErrorPolicy) -> Documents:
        made = super()._last_rows(document, skips)
        self.cut.append(made.num_tokens < document.num_tokens)
        return made


def learnt_words(engine: Engine, documents: Documents) -> Counter[str]:
    """The words with loss, and how often; one must be learnt from its first to its last token."""
    found: Counter[str] = Counter()
    for i in range(len(documents)):
        ids, mask = _ids(documents[i : i + 1])
        runs = "".join(
            engine.decode([token], skip_special_tokens=False) if on else "\0"
            for token, on in zip(ids, mask, strict=True)
        )
        found.update(match.group() for match in WORD.finditer(runs))
        found.update(match.group() for match in CALL.finditer(runs))
    return found


def _ids(document: Documents) -> tuple[list[int], list[bool]]:
    start, stop = document.offsets.tolist()
    return document.tokens[start:stop].tolist(), document.loss_mask_or_ones[start:stop].tolist()


def _check_part(
    engine: Engine,
    template: Template,
    chat: list[dict[str, Any]],
    row: int,
    document: Documents,
    cut: bool,
    turns: str,
) -> None:
    """Check one part, which was `cut` or will be, as a text is."""
    ids, mask = _ids(document)
    text = engine.decode(ids, skip_special_tokens=False)
    has = sorted({int(n) for n in [*WORD.findall(text), *CALL.findall(text)]})
    learnt = [int(n) for n in WORD.findall(_learnt(engine, ids, mask))]
    learnt += [int(n) for n in CALL.findall(_learnt(engine, ids, mask))]
    first, last = min(learnt), max(learnt)
    assert last == max(has)
    instructions = [i for i, m in enumerate(chat) if m["role"] == "system"]
    starts = [
        i
        for i, m in enumerate(chat)
        if m["role"] == "user" and (i == 0 or chat[i - 1]["role"] != "user")
    ]
    own = _of(template, chat, has)
    exchange = max([i for i in starts if i <= first], default=0)
    if cut:  # the question does not fit with it
        needed = _of(template, chat, [*instructions, *range(exchange, last + 1)])
        assert needed is None or _size(engine, needed) > row - 2
        return
    if turns == "whole":
        assert own is not None
        assert text.startswith(own.rstrip())
        assert len(text) - len(own.rstrip()) <= 24  # the end of the turn
    assert set(instructions) <= {*has, *range(last, len(chat))}
    for i in has:
        if chat[i]["role"] == "tool":
            calls = [
                k for k, m in enumerate(chat)
                if any(c["id"] == chat[i]["tool_call_id"] for c in m.get("tool_calls") or ())
            ]  # fmt: skip
            assert {*calls} <= {*has}
    begin = min(i for i in has if i not in instructions)
    if [*range(begin, last + 1)] == [i for i in has if i not in instructions or i >= begin]:
        before = max([i for i in starts if i < begin], default=None)
        if before is None and begin > len(instructions[:1]):
            before = len(instructions[:1])
        if before is not None:
            longer = _of(template, chat, [*instructions[:1], *range(before, last + 1)])
            assert longer is None or _size(engine, longer) > row - 2
    else:  # inside an exchange, after the question
        assert begin == exchange
        longer = _of(template, chat, [*instructions[:1], *range(exchange, last + 1)])
        assert longer is None or _size(engine, longer) > row - 2


def _learnt(engine: Engine, ids: list[int], mask: list[bool]) -> str:
    return "".join(
        engine.decode([token], skip_special_tokens=False) if on else "\0"
        for token, on in zip(ids, mask, strict=True)
    )


def _of(template: Template, chat: list[Any], numbers: Sequence[int]) -> str | None:
    try:
        return rendered(template, [chat[i] for i in sorted({*numbers})])
    except Exception:  # in whatever words the template refuses it
        return None


def _size(engine: Engine, text: str) -> int:
    return len(engine.encode(text, add_special_tokens=False))
