"""Sandboxed, bounded Jinja for chat templates, with the extensions of transformers.

Text is rendered piece by piece, to know the exact positions at which ``{% generation %}`` blocks
begin and end: a block writes an empty piece of a special type there, which content cannot forge.

Rendering is bounded by counting steps. `Work` counts every loop item, macro call, function call and
filter of a conversation, and the size of their results. Steps do not depend on the machine, so a
record that is refused is refused everywhere.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import GeneratorType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from streampack.errors import ConfigError

STEPS = 4_000_000  # per conversation; they take a few seconds at most
STEPS_BETWEEN = 100  # per pair of messages, because every message is compared with the others
CHARACTERS = 256  # characters written or copied per step
ITEMS = 4  # items examined per step
LARGEST = 1 << 25  # maximum characters or items of a value
WIDEST = 10_000  # largest padding width, or other number that determines an amount of output
_BITS = 1 << 14  # maximum bits of an integer

_MANY = {list, tuple, dict, range}
_FORMATS = {"format", "format_map", "%"}
_MAKE_MUCH = {"center", "expandtabs", "ljust", "rjust", "zfill", *_FORMATS}
_MAKE_MUCH |= {"batch", "indent", "round", "slice", "truncate", "wordwrap"}
_WRITE = {"e", "escape", "join", "pprint", "string", "tojson", "trim", "urlencode"}
_WIDE = re.compile(r"%[^a-zA-Z%]*\d{5}|\{[^{}]*\d{5}")
_WIDTH_IS_AN_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*\{")


class TooMuchError(Exception):
    """A template exceeds a limit."""

    def __str__(self) -> str:
        return f"takes millions of steps or makes more than {LARGEST:,} characters"


class Work(threading.local):
    """Remaining steps of a template in this thread."""

    left = STEPS

    def begin(self, messages: int, characters: int) -> None:
        """Reset the limit for a conversation with this number of messages and characters."""
        per_message = STEPS_BETWEEN * messages + characters // CHARACTERS * 16
        self.left = STEPS + messages * per_message

    def take(self, steps: int) -> None:
        """Spend steps; raise `TooMuchError` if none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchError

    def made(self, size: int) -> None:
        """Spend the steps for a value of `size` characters or items."""
        if size > LARGEST:
            raise TooMuchError
        self.take(2 + size // CHARACTERS)

    def value(self, value: Any) -> Any:
        """Count a value's size and return it; a generator counts its items as they are read."""
        kind = type(value)
        if kind is str:
            self.made(len(value))
        elif kind in _MANY:
            self.made(len(value))
            self.take(len(value) // ITEMS)
        elif kind is int and value.bit_length() > _BITS:
            raise TooMuchError
        elif kind is GeneratorType:
            return self.counted(value)
        return value

    def written(self, value: Any) -> None:
        """Count a value that becomes text, with everything nested in it."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            self.value(value)
            if isinstance(value, dict):
                waiting += [*value, *value.values()]
            elif isinstance(value, list | tuple):
                waiting += value

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop, one step each."""
        for item in items:
            self.take(1)
            yield item


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed environment that counts the steps of its templates.

    Attributes:
        work: remaining steps of the conversation being rendered.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.work = Work()
        self.finalize = self._finalize
        del self.globals["lipsum"]  # generates random text of any length
        self.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        for name, function in self.filters.items():
            self.filters[name] = self._filter(name, function)
        ours = {_STEP: self._step, _COUNTED: self._counted, _SIZED: self._sized, _JOIN: self._join}
        self.filters |= ours

    def bounded(self, tree: nodes.Template) -> BoundedTemplate:
        """Compile a template that counts its steps."""
        counting = _Counting().visit(tree)
        counting.set_environment(self)
        return BoundedTemplate(self.from_string(counting), self.work)

    @pass_context
    def _step(self, context: Context, steps: Any) -> None:
        self.work.take(max(1, steps))

    @pass_context
    def _counted(self, context: Context, items: Any) -> Iterator[Any]:
        return self.work.counted(items)

    @pass_context
    def _sized(self, context: Context, value: Any) -> Any:
        return self.work.value(value)

    @pass_context
    def _join(self, context: Context, parts: Any) -> str:
        self.work.written(parts)
        return str(self.work.value("".join(map(str, parts))))

    def _finalize(self, value: Any) -> Any:
        self.work.written(value)
        return value

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def bounded(*args: Any, **kwargs: Any) -> Any:
            for value in args:
                (self.work.written if name in _WRITE else self.work.value)(value)
            if name in _MAKE_MUCH:
                _check_widths(name, args[0], [*args[1:], *kwargs.values()])
            return self.work.value(function(*args, **kwargs))

        return update_wrapper(bounded, function)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        __self.work.take(4)
        __self.work.value(owner)
        if (name := getattr(__obj, "__name__", "")) in _MAKE_MUCH:
            _check_widths(name, owner, [*args, *kwargs.values()])
        return __self.work.value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(some, "__len__"):
                    self.work.made(len(some) * max(times, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _BITS:
                raise TooMuchError
        elif operator == "%" and isinstance(left, str):
            self.work.written(right)
            _check_widths(operator, left, right if isinstance(right, tuple) else (right,))
        return self.work.value(super().call_binop(context, operator, left, right))


@dataclass(frozen=True, slots=True)
class BoundedTemplate:
    """A compiled template and its step limit, shared by all renderings of a conversation."""

    template: Template
    work: Work

    def pieces(self, variables: dict[str, Any]) -> Iterator[str]:
        """Yield the text in pieces.

        Raises:
            TooMuchError: rendering takes too many steps, or the text is too long.
        """
        written = 0
        for piece in self.template.root_render_func(self.template.new_context(variables)):
            written += len(piece)
            if written > LARGEST:
                raise TooMuchError
            yield piece


def _check_widths(name: str, form: Any, numbers: Iterable[Any]) -> None:
    """Raise `TooMuchError` for wide fields and padding, which turn a short value into long text."""
    if name in _FORMATS:
        if _WIDE.search(str(form)):
            raise TooMuchError
        if not _WIDTH_IS_AN_ARGUMENT.search(str(form)):
            return
    if any(isinstance(number, int) and abs(number) > WIDEST for number in numbers):
        raise TooMuchError


_STEP, _COUNTED, _SIZED, _JOIN = (
    f"streampack_{name}" for name in ("step", "counted", "sized", "join")
)


class _Counting(NodeTransformer):
    """Transformer that adds step counters to a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        if node.test is not None:  # the body, which counts, is not run for filtered items
            node.iter = _filtered(node.iter, _COUNTED)
        return self._stepping(node)

    def visit_Macro(self, node: nodes.Macro) -> Any:  # noqa: N802
        return self._stepping(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> Any:  # noqa: N802
        return self._stepping(node)

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        return _filtered(nodes.List(visited.nodes, lineno=node.lineno), _JOIN)

    def visit_Getitem(self, node: nodes.Getitem) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        return _filtered(visited, _SIZED) if isinstance(node.arg, nodes.Slice) else visited

    def visit_Compare(self, node: nodes.Compare) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        visited.expr = _filtered(visited.expr, _SIZED)
        return visited

    def visit_Operand(self, node: nodes.Operand) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        if node.op in ("in", "notin"):
            visited.expr = _filtered(visited.expr, _SIZED)
        return visited

    def _stepping(self, node: Any) -> Any:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        steps = nodes.Const(1 + written // CHARACTERS, lineno=node.lineno)
        visited: Any = self.generic_visit(node)
        count = nodes.ExprStmt(_filtered(steps, _STEP), lineno=node.lineno)
        visited.body = [count, *visited.body]
        return visited


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


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
    """Compile a template.

    Returns:
        The template, True if it has generation blocks, and True if it has a generation prompt.

    Raises:
        ConfigError: the source is not a template, or has generation blocks at positions that cannot
            be determined.
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
            "Pass a Jinja template in the form of transformers' `chat_template`.",
            setting="template",
        ) from error
    except (RecursionError, SyntaxError, MemoryError) as error:  # raised by Python's compiler
        raise ConfigError(
            "The blocks or expressions of the chat template are nested too deep.",
            "Nest fewer blocks; Python allows 20 loops.",
            setting="template",
        ) from error
    if hidden:
        raise ConfigError(
            "The chat template has a {% generation %} block inside a macro, a set, call or filter "
            "block, or a recursive loop.",
            "Move the block to the place at which its text is written.",
            setting="template",
        )
    return template, marked, "add_generation_prompt" in names


def _marks(tree: nodes.Node) -> int:
    return sum(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
