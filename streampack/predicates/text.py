"""The text of a condition as a tree: comparisons joined by and, or and not.

The syntax is Python's, so the texts of many pyarrow expressions are read as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
#: Operators with their sides exchanged.
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NAMED = {"true": True, "false": False}
_CALLS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}


class SyntaxNotReadError(ValueError):
    """Raised for a text that is not a condition."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of a column with a value; `operator` is "==", "!=", "<", "<=", ">" or ">="."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Null:
    """True where a column is null."""

    column: str


@dataclass(frozen=True, slots=True)
class Flag:
    """A column of booleans."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """True where a condition is false."""

    part: Tree


@dataclass(frozen=True, slots=True)
class Joined:
    """Conditions joined by "and" or "or"."""

    operator: str
    parts: tuple[Tree, ...]


Tree = Compared | Null | Flag | Not | Joined


def parse(text: str) -> Tree:
    """Parse the text of a condition.

    Raises:
        SyntaxNotReadError: it is not one, or has calculations or functions that are not known.
    """
    try:
        return _tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SyntaxNotReadError(str(error).partition(" (<")[0]) from error


def columns_of(tree: Tree) -> Iterator[str]:
    """Yield the columns of a condition."""
    if isinstance(tree, Joined):
        for part in tree.parts:
            yield from columns_of(part)
    elif isinstance(tree, Not):
        yield from columns_of(tree.part)
    else:
        yield tree.column


def kinds_of(tree: Tree) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield the columns that are compared with texts, dates and times, and how texts become so."""
    if isinstance(tree, Joined):
        for part in tree.parts:
            yield from kinds_of(part)
    elif isinstance(tree, Not):
        yield from kinds_of(tree.part)
    elif isinstance(tree, Compared) and isinstance(tree.value, (str, date)):
        yield tree.column, getattr(type(tree.value), "fromisoformat", str)


def _tree(node: ast.expr) -> Tree:
    if isinstance(node, ast.BoolOp):
        operator = "and" if isinstance(node.op, ast.And) else "or"
        return Joined(operator, tuple(map(_tree, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return Not(_tree(node.operand))
    if isinstance(node, ast.Compare):
        return _compared(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name, arguments = node.func.id, node.args
        if name == "invert" and len(arguments) == 1:
            return Not(_tree(arguments[0]))
        if name in ("is_null", "is_valid") and arguments:
            null = Null(_column(arguments[0]))
            return null if name == "is_null" else Not(null)
    return Flag(_column(node))


def _compared(node: ast.Compare) -> Tree:
    parts: list[Tree] = []
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
                raise SyntaxNotReadError("in must be followed by a list of values")
            name = _column(left)
            one_of = tuple(Compared(name, "==", _value(each)) for each in right.elts)
            among: Tree = Joined("or", one_of) if one_of[1:] else one_of[0]
            parts.append(Not(among) if isinstance(operator, ast.NotIn) else among)
        else:
            word = _COMPARED.get(type(operator))
            if word is None:
                raise SyntaxNotReadError("is, and other operators, are not known")
            try:
                parts.append(Compared(_column(left), word, _value(right)))
            except SyntaxNotReadError:
                parts.append(Compared(_column(right), _TURNED[word], _value(left)))
        left = right
    return Joined("and", tuple(parts)) if parts[1:] else parts[0]


def _column(node: ast.expr) -> str:
    if isinstance(node, ast.Name) and node.id not in _NAMED:
        return node.id
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "field" and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value
    raise SyntaxNotReadError(f"{ast.unparse(node)} is not a column")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        # Arrow makes a float32 of 2.0, and then refuses integers that have no float32.
        return int(node.value) if node.value.is_integer() else node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bool, int)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMED:
        return _NAMED[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _CALLS and node.args:
        return _CALLS[node.func.id](_value(node.args[0]))  # type: ignore[attr-defined]
    raise SyntaxNotReadError(f"{ast.unparse(node)} is not a value")
