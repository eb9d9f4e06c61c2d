"""Chats as prompts: the ids of `apply_chat_template`, with the generation prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streampack import rollouts, sources
from streampack.errors import ConfigError, ContentError
from tests.support.chat_templates import SPECIAL, TEMPLATES
from tests.support.chats import CHATML, LLAMA3, MISTRAL, bpe_tokenizer

transformers = pytest.importorskip("transformers")

BPE = bpe_tokenizer()
BPE.add_special_tokens([*SPECIAL])
ASKED = {"role": "user", "content": "What is 2 + 2?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [ASKED],
    "a system": [{"role": "system", "content": "Be brief. "}, ASKED],
    "turns": [ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}],
    "thoughts": [ASKED, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"}, ASKED],
    "a result": [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "4"},
    ],
}


def source_of(records: list[dict[str, Any]], template: str) -> Any:
    date = {"strftime_now": "2025-07-26"} if "strftime_now" in template else None
    return sources.Chat(records, turns="prompt", template=template, template_kwargs=date)


def prompts_of(records: list[dict[str, Any]], template: str, **settings: Any) -> rollouts.Prompts:
    settings = {"tokenizer": BPE, "epochs": 1, "shuffle": False, **settings}
    return rollouts.Prompts(source_of(records, template), **settings)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("field", ["prompt", "messages"])
@pytest.mark.parametrize("name", ["CHATML", "LLAMA3", "MISTRAL", *TEMPLATES])
def test_ids_are_those_of_apply_chat_template(name: str, field: str) -> None:
    template = {"CHATML": CHATML, "LLAMA3": LLAMA3, "MISTRAL": MISTRAL, **TEMPLATES}[name]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=BPE, eos_token="</s>", bos_token="<s>", chat_template=template
    )
    compared = 0
    for messages in CHATS.values():
        if "strftime_now" in template:
            continue  # theirs is the date of today
        try:
            wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)
        except Exception:  # the template refuses the conversation
            continue
        prompts = prompts_of([{field: messages}], template, tokenizer=theirs)
        assert prompts.read(0).ids.tolist() == getattr(wanted, "input_ids", wanted)
        compared += 1
    assert compared or "strftime_now" in template


def test_tools_and_a_system_beside_the_messages_are_rendered() -> None:
    template = "{{ tools | tojson if tools }}" + CHATML
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=BPE, chat_template=template)
    messages = CHATS["a system"]
    wanted = theirs.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True)
    record = {"prompt": messages[1:], "system": messages[0]["content"], "tools": [TOOL]}
    ids = prompts_of([record], template).read(0).ids.tolist()
    assert ids == getattr(wanted, "input_ids", wanted)


def test_other_fields_of_the_records_are_in_the_ticket_and_a_state_resumes(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [
        {"prompt": [{**ASKED, "content": f"What is {n} + {n}?"}], "right": str(2 * n), "level": n}
        for n in range(9)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def queue() -> rollouts.Queue:
        chats = sources.Chat(str(file), turns="prompt", template=CHATML)
        mixed = sources.Mixture(
            {"a": chats, "b": source_of(rows, CHATML)}, weights={"a": 1, "b": 1}
        )
        fields = {"right": "text", "level": "int32"}
        prompts = rollouts.Prompts(mixed, tokenizer=BPE, document_fields=fields)
        return rollouts.Queue(prompts, answers=1, groups=4)

    first = queue()
    tickets = [first.get() for _ in range(8)]
    resumed = queue()
    resumed.load_state(json.loads(json.dumps(first.state())))
    for ticket in tickets:
        again = resumed.get()
        assert ticket is not None
        assert again is not None
        assert (again.fields, again.prompt.tolist()) == (ticket.fields, ticket.prompt.tolist())
        text = BPE.decode(ticket.prompt.tolist(), skip_special_tokens=False)
        assert f"What is {ticket.fields['level']} +" in text
        assert text.endswith("<|im_start|>assistant\n")
        assert ticket.fields["right"] == str(2 * ticket.fields["level"])


def test_a_chat_that_ends_with_an_answer_is_broken() -> None:
    answered = [ASKED, {"role": "assistant", "content": "4"}]
    with pytest.raises(ContentError):
        prompts_of([{"prompt": answered}], CHATML).read(0)
    skipping = prompts_of([{"prompt": answered}, {"prompt": [ASKED]}], CHATML, on_error="skip")
    assert skipping.has(0)
    assert not skipping.has(1)


def test_chats_for_training_are_refused() -> None:
    answered = [ASKED, {"role": "assistant", "content": "4"}]
    with pytest.raises(ConfigError) as error:
        rollouts.Prompts(sources.Chat([{"messages": answered}], template=CHATML), tokenizer=BPE)
    assert error.value.setting == "source"
    with pytest.raises(ConfigError):
        sources.Chat([{"prompt": [ASKED]}], turns="prompt", overflow="turns")
