"""The language of chat templates: Jinja, sandboxed, with what transformers adds to it.

Text is rendered piece by piece, so that the places where a ``{% generation %}`` block begins and
ends are known exactly: it writes an empty piece of a special type there, which no content can
forge.
"""

from __future__ import annotations

from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from streampack.errors import ConfigError
from streampack.tokenization._bounded import BoundedEnvironment, BoundedTemplate


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


def compile_template(source: str) -> tuple[BoundedTemplate, bool, bool]:
    """A template, whether it has generation blocks, and whether it has a generation prompt.

    Raises:
        ConfigError: it is not a template, or has generation blocks whose place cannot be found.
    """
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    try:
        tree = environment.parse(source)
        names = meta.find_undeclared_variables(tree)
        marked = _marks(tree) > 0
        buffered = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)
        hidden = any(_marks(node) for node in tree.find_all(buffered))
        hidden |= any(loop.recursive and _marks(loop) for loop in tree.find_all(nodes.For))
        template = environment.bounded(tree)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template is broken at line {error.lineno}: {error.message}.",
            "Conversations cannot be rendered.",
            "Pass a Jinja template as transformers' `chat_template` is one.",
        ) from error
    except (RecursionError, SyntaxError, MemoryError) as error:  # of Python, which compiles it
        raise ConfigError(
            "The blocks or expressions of the chat template are nested too deep.",
            "Conversations cannot be rendered.",
            "Write it with fewer blocks inside each other; Python has room for 20 loops.",
            setting="template",
        ) from error
    if hidden:
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
