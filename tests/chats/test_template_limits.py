"""Chat templates that would take long or make much text are refused after a number of steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streampack.chats.conversations import Conversation
from streampack.chats.templates.jinja import compile_template
from streampack.chats.templates.script import RenderError
from streampack.chats.templates.template import ChatTemplate
from streampack.errors import ConfigError
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


def rendered_text(template: str) -> str:
    """The text of a template that needs no conversation."""
    return "".join(compile_template(template)[0].pieces({}))


SLOW = ("long ranges in filters", "lists of themselves", "calls of a macro", "nested ranges")


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ENDLESS],
)
def test_a_template_without_end_is_refused_by_its_steps(name: str) -> None:
    with pytest.raises(RenderError):
        rendered(ENDLESS[name], messages("a", "b"))


LONG = "{% set a = 'a' * 1000000 %}"
#: Values of few objects with endless text.
LISTS, PAIRS, OBJECTS, SPACES = (
    f"{{% set n = namespace(l={start}) %}}{{% for i in range(60) %}}"
    f"{{% set n.l = {twice} %}}{{% endfor %}}"
    for start, twice in (
        ("[1]", "[n.l, n.l]"),
        ("(1,)", "(n.l, n.l)"),
        ("{}", "{'a': n.l, 'b': n.l}"),
        ("1", "namespace(a=n.l, b=n.l)"),
    )
)
TWO = LISTS + LISTS.replace("n.l", "m.l").replace("set n ", "set m ")
#: Expressions that would take gigabytes or hours, by the template before them.
EXPLODING: dict[str, list[str]] = {
    LONG: [
        "a|replace('a', a)", "a.replace('', a)", "a|replace(old='a', new=a)",
        "[a] * 1000000", "([a] * 100000)|join", "range(99999)|join(a)", "''.join([a] * 100000)",
        "a.join(range(99999)|map('string'))", "range(99999)|join(d=a)",
        "('{0}' * 1000000).format(a)", "('{x}' * 1000000).format_map({'x': a})",
        "('%(x)s' * 1000000) % {'x': a}", "('%(x)s' * 99999)|format(x=a)",
        "(('{0}' * 1000000)|safe).format(a)", "('\\n' * 1000000)|indent(a)",
        "('a ' * 1000)|wordwrap(1, wrapstring=a)", "a|wordwrap(1)",
        "([a] * 100000)|sort|length", "([a] * 100000)|map('upper')|list|length",
        "(a ~ 'b') in [a ~ 'c'] * 100000", "([a ~ 'c'] * 100000).count(a ~ 'b')",
        "range(99999)|list|tojson(indent=a)", "range(99999)|list|tojson(separators=(a, a))",
        "a.rfind('b' ~ a[:500000])", "a.strip('b' * 1000000 ~ 'a')", "a|trim('b' * 1000000 ~ 'a')",
        "a.translate({97: a})", "a.encode('punycode')",
    ],
    "": [
        "('\\t' * 1000000).expandtabs(10000)", "('\\n' * 1000000)|indent(10000, true, true)",
        "('%9999d' * 1000000) % 1", "'%(a)10000000000d' % {'a': 1}", "'%*d' % (10000000000, 1)",
        "'{:{}}'.format(1, '10000000000')", "'{:{}000000000}'.format(1, 9)",
        "'{:>1000000000}'.format('a')", "('{0:>9999}' * 1000000).format(1)",
        "('<!---->' * 200000)|striptags", "('a ' * 16000000).split()|length",
        "('a' * 33000000)|list|length", "([[1] * 1000] * 10000)|sum(start=[])|length",
        "(1).to_bytes(10000000000, 'big')", "('9' * 1000000)|int", "1.5|round(1000000000)",
    ],
    LISTS: [
        "n.l", "n.l|tojson", "n.l|string", "n.l|pprint", "n.l ~ ''", "'%s' % (n.l,)",
        "'{0.l}'.format(n)", "{}[n.l].x", "raise_exception(n.l)", "n.l|e", "1|attr(n.l)",
        "[n.l]|map('join')|list", "n.l|center(10)",
    ],
    TWO: [
        "n.l == m.l", "n.l < m.l", "n.l in [m.l]", "n.l not in m.l", "1 < n.l == m.l",
        "n.l is eq m.l", "[n.l]|select('equalto', m.l)|list", "[n.l, m.l]|sort", "[n.l, m.l]|min",
        "[n.l].index(m.l)", "[{'a': n.l}, {'a': m.l}]|groupby('a')|list",
    ],
    PAIRS: ["n.l", "{n.l: 1}", "{}[n.l]", "n.l in {}", "[n.l, n.l]|unique|list"],
    OBJECTS: ["n.l", "n.l.values()", "n.l.items()", "{'a': n.l}|dictsort(by='value')"],
    SPACES: ["n.l", "'{}'.format(n.l)"],
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", EXPLODING, ids=["long", "short", *"abcde"])
def test_a_value_without_end_is_refused_before_it_is_made(before: str) -> None:
    for expression in EXPLODING[before]:
        with pytest.raises(RenderError):
            rendered(f"{before}{{{{ {expression} }}}}", messages("a", "b"))


def test_text_that_a_block_captures_is_bounded() -> None:
    for block in ("set x", "filter upper"):
        loop = f"{{% for i in range(900) %}}{{{{ a }}}}{END}"
        template = f"{LONG}{{% {block} %}}{loop}{{% end{block.split()[0]} %}}"
        with pytest.raises(RenderError):
            rendered(template, messages("a", "b"))


#: Expressions of each kind that is bounded, in the sizes of chat templates.
USUAL = [
    "'a,b'.split(',')", "'a b'.split()", "'a b c'.rsplit(' ', 1)", "' x '.strip()",
    "'aXbX'.replace('X', '--')", "'aXbX'.replace('X', '--', 1)", "'aXb'|replace('X', 'y')",
    "', '.join(['a', 'b'])", "['a', 'b']|join(', ')", "[1, 2]|join", "[{'a': 1}]|join(',', 'a')",
    "'%s and %05.2f %%' % ('a', 1.5)", "'%(a)s' % {'a': 1}", "'%s-%s'|format(1, 2)",
    "'{} {x!r:>5} {0[0]}'.format('ab', x='c') if false else '{0} {x!r:>5}'.format('ab', x='c')",
    "'{a}'.format_map({'a': 2})", "('<{}>'|safe).format('<')", "'a\\tb'.expandtabs(2)",
    "'a\\nb'|indent(2, true)", "'a\\nb'.splitlines()", "'abc'|center(9)", "'7'.zfill(3)",
    "'a b c'|wordwrap(3)", "'abcdef'|truncate(4, true)", "'<b>x</b>'|striptags", "'a b'|title",
    "'x http://a.b'|urlize", "'a b'|wordcount", "[3, 1, 2]|sort", "['b', 'A']|sort(reverse=true)",
    "{'b': 1, 'a': 2}|dictsort", "[1, 1, 2]|unique|list", "[1, 2]|sum", "[2, 1]|min", "'3'|int",
    "[{'a': 1}, {'a': 2}]|groupby('a')|list", "[[1], [2]]|sum(start=[])", "1.55|round(1)",
    "{'a': [1, {'b': none}]}|pprint", "{'a': 1}|xmlattr", "'a b'|urlencode", "'<'|e",
    "'xax'.strip('x')", "[1, 2]|batch(1)|list", "2 in (1, 2)", "[1, 2]|select('gt', 1)|list",
    "1 < 2 < 3", "1 < 3 > 2 != 4", "'a' in 'abc'", "'a' not in ['b']", "'a' in {'a': 1}",
    "[1] == [1]", "[1] in [[1]]", "1 in [1, 2]|map('abs')", "'x' is in 'xy'",
    "[1, 2].index(2)", "[1, 1].count(1)", "'abcb'.rfind('b')", "{(1, 2): 3}[(1, 2)]", "[1, 2][-1]",
    "'ab' * 2 + 'c'", "[0] * 3", "2 ** 10", "'a' ~ 1 ~ [2]", "{'a': 1}.items()|list", "dict(a=1)",
    "range(3)|list", "namespace(a=1)", "[1, 2]|tojson",
]  # fmt: skip


def test_bounded_expressions_are_as_in_jinja() -> None:
    plain = ImmutableSandboxedEnvironment()
    plain.filters["tojson"] = json.dumps
    for expression in USUAL:
        template = f"{{{{ {expression} }}}}"
        assert rendered_text(template) == plain.from_string(template).render(), expression


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


def test_templates_treat_texts_as_jinja_does() -> None:
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
