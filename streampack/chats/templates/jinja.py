"""Sandboxed, bounded Jinja for chat templates, with the extensions of transformers.

Text is rendered piece by piece, to know the exact positions at which ``{% generation %}`` blocks
begin and end: a block writes an empty piece of a special type there, which content cannot forge.

Rendering is bounded by counting steps. `StepLimit` counts every loop item, macro call, function
call and filter of a conversation, and the sizes of values before they are made, compared or
written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from markupsafe import Markup

from streampack.chats.templates.bounds import (
    COMPARING,
    FILTERS,
    LISTING,
    METHODS,
    SHALLOW,
    UNSAFE,
    check_width,
    percent,
)
from streampack.chats.templates.counting import (
    COUNTED,
    IN,
    JOIN,
    SIZED,
    STEP,
    WEIGHED,
    Counting,
)
from streampack.chats.templates.work import BITS, CHARACTERS, LARGEST, StepLimit, TooMuchError
from streampack.errors import ConfigError

#: Arguments that Jinja adds to calls.
_OF_JINJA = ("_loop_vars", "_block_vars")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed environment that counts the steps of its templates.

    Attributes:
        work: remaining steps of the conversation being rendered.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.work = StepLimit()
        self.finalize = self._finalize
        self.concat = self._concat  # type: ignore[method-assign]
        del self.globals["lipsum"], self.filters["random"]  # other text in every run
        self.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        for name, function in self.filters.items():
            self.filters[name] = self._filter(name, function)
        tests: dict[str, Any] = self.tests
        tests.update({name: self._test(tests[name]) for name in COMPARING})
        self.globals["raise_exception"] = self._raise
        ours = {STEP: self._step, COUNTED: self._counted, SIZED: self._sized, JOIN: self._join}
        self.filters |= {**ours, WEIGHED: self._weighed, IN: self._in}

    def bounded(self, tree: nodes.Template) -> BoundedTemplate:
        """Compile a template that counts its steps."""
        counting = Counting().visit(tree)
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
    def _weighed(self, context: Context, value: Any) -> Any:
        self.work.written(value)
        return value

    @pass_context
    def _in(self, context: Context, item: Any, container: Any) -> bool:
        container = self.work.listed(container)
        size = self.work.written(item)
        if isinstance(container, list | tuple):
            self.work.take(len(container) * (1 + size // CHARACTERS))
        self.work.value(container)
        return item in container

    @pass_context
    def _join(self, context: Context, parts: Any) -> str:
        self.work.written(parts)
        return "".join(map(str, parts))

    def _concat(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self.work.made(sum(map(len, pieces)))
        return "".join(pieces)

    def _finalize(self, value: Any) -> Any:
        self.work.written(value)
        return value

    def _raise(self, message: Any) -> NoReturn:
        self.work.written(message)
        raise TemplateError(message)

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        work, bound = self.work, FILTERS.get(name)
        # Jinja passes a context, an environment or neither before the value.
        at = int(hasattr(function, "jinja_pass_arg"))

        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in LISTING:
                args = (*args[:at], work.listed(args[at]), *args[at + 1 :])
            for value in (*args[at + 1 :], *kwargs.values()):
                work.written(value)
            if bound is not None:
                work.made(bound(work, *args[at:], **kwargs))
            else:
                (work.value if name in SHALLOW else work.written)(args[at])
            return work.value(function(*args, **kwargs))

        return update_wrapper(bounded, function)

    def _test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def bounded(*args: Any) -> Any:
            for value in args:
                self.work.written(value)
            return function(*args)

        return update_wrapper(bounded, function)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in UNSAFE and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        form = getattr(value, "__self__", None)
        if not isinstance(form, str) or value.__name__ not in ("format", "format_map"):
            return None
        mapped = value.__name__ == "format_map"
        if isinstance(form, Markup):
            formatter: Any = _EscapeFormatter(self, escape=form.escape)
        else:
            formatter = _Formatter(self)
        formatter.work = self.work

        def bounded(*args: Any, **kwargs: Any) -> str:
            values = ((), *args) if mapped else (args, kwargs)
            return type(form)(formatter.vformat(form, *values))

        return update_wrapper(bounded, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        work = __self.work
        work.take(4)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is not None:
            name = __obj.__name__
            if name == "join" and args:
                args = (work.listed(args[0]), *args[1:])
            work.value(owner)
            named = {key: value for key, value in kwargs.items() if key not in _OF_JINJA}
            for value in (*args, *named.values()):
                work.written(value)
            if (bound := METHODS.get(name)) is not None:
                work.made(bound(work, owner, *args, **named))
        return work.value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(some, str):
                    self.work.made(len(some) * max(times, 0))
                elif isinstance(times, int) and hasattr(some, "__len__"):
                    self.work.items(len(some) * max(times, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > BITS:
                raise TooMuchError
        elif operator == "%" and isinstance(left, str):
            self.work.written(right)
            self.work.made(percent(self.work, left, right))
        return self.work.value(super().call_binop(context, operator, left, right))


class _BoundedFields:
    """Formatter that counts the fields of ``str.format`` before they are made, and the whole."""

    work: StepLimit
    characters = 0

    def vformat(self, form: str, args: Sequence[Any], values: Mapping[str, Any]) -> str:
        self.characters = len(form)
        text: str = super().vformat(form, args, values)  # type: ignore[misc]
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self.work.written(value)
        return super().convert_field(value, conversion)  # type: ignore[misc]

    def format_field(self, value: Any, form: str) -> Any:
        check_width(*(int(width[:6]) for width in re.findall(r"\d+", form)))
        self.work.written(value)
        text = super().format_field(value, form)  # type: ignore[misc]
        self.characters += len(text)
        self.work.made(self.characters)
        return text


class _Formatter(_BoundedFields, SandboxedFormatter):
    pass


class _EscapeFormatter(_BoundedFields, SandboxedEscapeFormatter):
    pass


@dataclass(frozen=True, slots=True)
class BoundedTemplate:
    """A compiled template and its step limit, shared by all renderings of a conversation."""

    template: Template
    work: StepLimit

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
