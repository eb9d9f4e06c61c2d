"""Chat templates that would take long or make much text are refused after a number of steps."""

from __future__ import annotations

from typing import Any

import pytest

from streampack.documents.conversations import Conversation
from streampack.errors import ConfigError
from streampack.tokenization.script import RenderError
from streampack.tokenization.template import ChatTemplate
from tests.support.chats import CHATML, messages

LOOP = "{% for i in range(99999) %}"
END = "{% endfor %}"
DOUBLED = "{% set ns = namespace(s='ab') %}" + LOOP + "{% set ns.s = @ %}" + END

ENDLESS = {
    "nested ranges": LOOP * 3 + END * 3,
    "a loop with a condition": LOOP + "{% for j in range(99999) if j < 0 %}x{% endfor %}" + END,
    "output": LOOP * 2 + "x" * 1000 + END * 2,
    "captured output": "{% set x %}" + LOOP * 2 + "x" * 1000 + END * 2 + "{% endset %}{{ x }}",
    "calls of a macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "recursion": "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "joined texts": DOUBLED.replace("@", "ns.s ~ ns.s"),
    "added texts": DOUBLED.replace("@", "ns.s + ns.s"),
    "replaced texts": DOUBLED.replace("@", "ns.s|replace('a', 'aaa')"),
    "multiplied texts": "{{ 'a' * 10000000000 }}",
    "multiplied lists": "{{ ([0] * 10000000000)|length }}",
    "powers": LOOP + "{% set x = 10 ** (9 ** 9) %}" + END,
    "lists of themselves": DOUBLED.replace("@", "[ns.s, ns.s]") + "{{ ns.s|tojson }}",
    "wide padding": "{{ 'a'.ljust(10000000000) }}",
    "a wide filter": "{{ 'a'|center(10000000000) }}",
    "many slices": "{{ [1]|slice(10000000000)|list }}",
    "a wide format": "{{ '%10000000000d' % 1 }}",
    "a format as wide as told": "{{ '{:{}}'.format(1, 10000000000) }}",
    "a search in a long text": "{% set b = 'a' * 9000000 %}" + LOOP + "{{ 'c' in b }}" + END,
    "long texts compared": "{% set b = 'a' * 9000000 %}" + LOOP + "{{ b[1:] == b }}" + END,
    "long ranges in filters": LOOP + "{{ range(99999)|map('string')|list|length }}" + END,
    "sums": LOOP + "{{ range(99999)|sum }}" + END,
}


def rendered(template: str, conversation: list[Any]) -> str:
    made = ChatTemplate(template, {}, ["<|im_end|>"]).render(Conversation(conversation))
    return made[0].text


SLOW = ("long ranges in filters", "lists of themselves", "calls of a macro")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ENDLESS],
)
def test_a_template_without_end_is_refused_by_its_steps(name: str) -> None:
    with pytest.raises(RenderError):
        rendered(ENDLESS[name], messages("a", "b"))


NESTED = {
    "conditions": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "loops": "{% for a in b %}" * 30 + END * 30,
    "many loops": "{% for a in b %}" * 3000 + END * 3000,
    "brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
}


@pytest.mark.parametrize("name", NESTED)
def test_blocks_nested_too_deep_are_an_error_of_the_template(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ChatTemplate(NESTED[name], {}, [])
    assert raised.value.setting == "template"


def test_a_conversation_of_many_messages_is_within_the_limits() -> None:
    talk = messages(*(f"message {i} " * 50 for i in range(400)))
    assert rendered(CHATML, talk).count("<|im_end|>") == 400


def test_what_templates_do_with_texts_is_as_in_jinja() -> None:
    template = (
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{% endfor %}"
        "{{ 'a' ~ 1 ~ [2] }}{{ '%5d|%s' % (1753500000, 'x') }}{{ '{:>4}'.format(7) }}"
        "{{ 2 ** 10 }}{{ 'x' * 3 }}{{ {'a': 'é'}|tojson }}{{ messages[0].content[1:] }}"
        "{{ 'b'|center(3) }}{{ 'q' in messages[0].content }}"
        "{% for m in messages %}<{{ m.content }}<|im_end|>{% endfor %}"
    )
    text = rendered(template, messages("ask", "answer"))
    assert (
        text == '1a1[2]1753500000|x   71024xxx{"a": "é"}sk b False<ask<|im_end|><answer<|im_end|>'
    )
