"""Chats are written as `apply_chat_template` of transformers writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack.chats.conversations import Conversations
from streampack.chats.records import conversation_of
from streampack.documents.blocks import make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import ChatTokenizer, load_tokenizer
from tests.support.chat_templates import SPECIAL, TEMPLATES
from tests.support.chats import CHATML, bpe_tokenizer

transformers = pytest.importorskip("transformers")

BPE = bpe_tokenizer()
BPE.add_special_tokens([*SPECIAL])
DATE = {"strftime_now": "2025-07-26"}
_DATES = re.compile(r"\d{4}-\d\d-\d\d|\d\d \w+ \d{4}")


def theirs(**settings: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=BPE, eos_token="</s>", bos_token="<s>", **settings
    )


def by_transformers(record: dict[str, Any], tokenizer: Any, template: str | None = None) -> str:
    text = tokenizer.apply_chat_template(
        record["messages"], tools=record.get("tools"), chat_template=template, tokenize=False
    )
    return _DATES.sub("DATE", text)


def ours(record: dict[str, Any], tokenizer: Any, template: str | None = None) -> str:
    made = load_tokenizer(tokenizer, eos="as-is", bos=False)
    chat = ChatTokenizer(made, template, str, template_kwargs=DATE)
    block = Conversations([conversation_of(record)], make_origin(0, np.arange(1)))
    documents = chat.encode(block, ErrorPolicy())
    return _DATES.sub("DATE", BPE.decode(documents.tokens.tolist(), skip_special_tokens=False))


def calling(arguments: Any, **message: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": [call], **message},
        {"role": "tool", "content": "R"},
        {"role": "assistant", "content": "done"},
    ]
    return {"messages": messages}


_AS_JSON = "(call.function.arguments | tojson)"
_IF_TEXT = (
    "(call.function.arguments if call.function.arguments is string"
    " else call.function.arguments | tojson)"
)
_WITH_CALLS = {
    name: text for name, text in {**TEMPLATES, "chatml": CHATML}.items() if _AS_JSON in text
}
#: Templates that require objects, that print any value, and that test its type.
WAYS = {
    "as JSON": _WITH_CALLS,
    "as it is": {
        name: text.replace(_AS_JSON, "(call.function.arguments | string)")
        for name, text in _WITH_CALLS.items()
    },
    "as JSON or text": {
        name: text.replace(_AS_JSON, _IF_TEXT) for name, text in _WITH_CALLS.items()
    },
}
TEXTS = (
    *('{"city": "Oslo"}', '{"city":"Oslo","n":null}', '{ "a" : [1, true, {"b": null}] }', "{}"),
    *('{"text": "a \\"quoted\\" one"}', '{"text": "caf\\u00e9"}', '{"text": "café"}', "ls -l"),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_arguments_of_calls_that_are_text_are_written_as_they_are(way: str) -> None:
    assert len(WAYS[way]) > 3
    for template in WAYS[way].values():
        for text in TEXTS:
            given: Any = text
            if way == "as JSON" and text != "ls -l":  # it would be a string inside the JSON
                given = json.loads(text)
            want = by_transformers(calling(given), theirs(), template)
            assert ours(calling(text), BPE, template) == want


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_arguments_of_calls_that_are_objects_are_written_as_they_are(way: str) -> None:
    for template in WAYS[way].values():
        for arguments in ({"a": None, "b": [None, {"c": None}]}, {}, {"x": "é"}):
            record = calling(arguments)
            assert ours(record, BPE, template) == by_transformers(record, theirs(), template)


def test_a_template_that_prints_calls_leaves_words_in_their_place() -> None:
    template = WAYS["as it is"]["chatml"]
    record = calling('{"a": 1}', content='I call add with {"a": 1}.')
    assert ours(record, BPE, template) == by_transformers(record, theirs(), template)
    quoted = ours(record, BPE, CHATML)
    assert quoted == by_transformers(
        calling({"a": 1}, content='I call add with {"a": 1}.'), theirs(), CHATML
    )


def test_nulls_in_the_schemas_of_tools_are_written() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    record = {**calling({"x": None}), "tools": [tool]}
    template = "{{ tools | tojson }}" + CHATML
    assert ours(record, BPE, template) == by_transformers(record, theirs(), template)
    text = {**record, "tools": json.dumps([tool])}
    assert ours(text, BPE, template) == by_transformers(record, theirs(), template)


NAMED = {"default": CHATML, "tool_use": "TOOLS {{ tools | tojson }}" + CHATML, "rag": "{{ no }}"}


def _in_configuration(folder: Path) -> Any:
    file = folder / "tokenizer_config.json"
    listed = [{"name": name, "template": text} for name, text in NAMED.items()]
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": listed}))
    return folder


def _in_files(folder: Path) -> Any:
    (folder / "chat_template.jinja").write_text(NAMED["default"])
    more = folder / "additional_chat_templates"
    more.mkdir()
    for name in ("tool_use", "rag"):
        (more / f"{name}.jinja").write_text(NAMED[name])
    return folder


PLACES: dict[str, Callable[[Path], Any]] = {
    "an object": lambda _: theirs(chat_template=NAMED),
    "the configuration": _in_configuration,
    "files": _in_files,
}


@pytest.mark.parametrize("place", PLACES)
def test_the_template_named_tool_use_writes_records_with_tools(place: str, tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    given = PLACES[place](tmp_path)
    tokenizer = given
    if isinstance(given, Path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(given)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for record in (calling({}), {**calling({}), "tools": [tool]}):
        text = ours(record, given)
        assert text == by_transformers(record, tokenizer)
        assert text.startswith("TOOLS") == ("tools" in record)


def test_a_template_that_is_passed_writes_records_with_tools_too() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    record = {**calling({}), "tools": [tool]}
    assert not ours(record, theirs(chat_template=NAMED), CHATML).startswith("TOOLS")


@pytest.mark.parametrize("role", ["ipython", "environment", "tool", "function"])
def test_results_of_calls_have_any_role_that_templates_know(role: str) -> None:
    record = calling({"a": 1})
    record["messages"][2]["role"] = role
    assert ours(record, BPE, CHATML) == by_transformers(record, theirs(), CHATML)


@pytest.mark.parametrize("name", ["stripped", "opened"])
def test_thoughts_without_an_answer_are_a_turn(name: str) -> None:
    def record(content: str | None) -> dict[str, Any]:
        thought = {"role": "assistant", "content": content, "reasoning_content": "T"}
        return {"messages": [{"role": "user", "content": "Q"}, thought]}

    want = by_transformers(record(""), theirs(), TEMPLATES[name])
    assert ours(record(None), BPE, TEMPLATES[name]) == want
    without = {"messages": [{k: v for k, v in m.items() if v} for m in record(None)["messages"]]}
    assert ours(without, BPE, TEMPLATES[name]) == want
