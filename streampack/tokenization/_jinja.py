"""The language of chat templates: Jinja, sandboxed, with what transformers adds to it.

Text is rendered piece by piece, so that the places where a ``{% generation %}`` block begins and
ends are known exactly: it writes an empty piece of a special type there, which no content can
forge.
"""

from __future__ import annotations

import json
from functools import partial
from typing import NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streampack.errors import ConfigError


class _Mark(str):
    """An empty piece of text that keeps its type when it is converted to `str`."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it
    mark = _Mark()

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([self.attr("mark")]).set_lineno(line) for _ in range(2)]
        return nodes.Scope([marks[0], *body, marks[1]]).set_lineno(line)


def compile_template(source: str) -> tuple[Template, bool, bool]:
    """A template, whether it has generation blocks, and whether it has a generation prompt.

    Raises:
        ConfigError: it is not a template, or has generation blocks whose place cannot be found.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    try:
        tree = environment.parse(source)
        names = meta.find_undeclared_variables(tree)
        template = environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template is broken at line {error.lineno}: {error.message}.",
            "Conversations cannot be rendered.",
            "Pass a Jinja template as transformers' `chat_template` is one.",
        ) from error
    marked = _marks(tree) > 0
    buffered = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)
    hidden = any(_marks(node) for node in tree.find_all(buffered))
    if hidden or any(loop.recursive and _marks(loop) for loop in tree.find_all(nodes.For)):
        raise ConfigError(
            "The chat template has a {% generation %} block inside a macro, a set, call or filter "
            "block, or a recursive loop.",
            "The place of such a block in the text cannot be found.",
            "Move it to where the text is written.",
        )
    return template, marked, "add_generation_prompt" in names


def _marks(tree: nodes.Node) -> int:
    return sum(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
