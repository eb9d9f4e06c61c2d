"""Counting: the syntax tree of a chat template, with calls that count its steps.

Operators that Jinja compiles to those of Python become filters, or get one around an operand.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from streampack.chats.templates.work import CHARACTERS

#: Names of the filters of `BoundedEnvironment` that count.
STEP, COUNTED, SIZED, WEIGHED, JOIN, IN = (
    f"streampack_{name}" for name in ("step", "counted", "sized", "weighed", "join", "in")
)


class Counting(NodeTransformer):
    """Transformer that adds step counters to a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        if node.test is not None:  # the body, which counts, is not run for filtered items
            node.iter = _filtered(node.iter, COUNTED)
        return self._stepping(node)

    def visit_Macro(self, node: nodes.Macro) -> Any:  # noqa: N802
        return self._stepping(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> Any:  # noqa: N802
        return self._stepping(node)

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        return _filtered(nodes.List(visited.nodes, lineno=node.lineno), JOIN)

    def visit_Getitem(self, node: nodes.Getitem) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(visited, SIZED)
        visited.arg = _weighed(visited.arg)  # hashed, and named in errors
        return visited

    def visit_Pair(self, node: nodes.Pair) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        visited.key = _weighed(visited.key)
        return visited

    def visit_Compare(self, node: nodes.Compare) -> Any:  # noqa: N802
        visited: Any = self.generic_visit(node)
        left, pairs = visited.expr, []
        for operand in visited.ops:  # a < b < c is a < b and b < c
            pairs.append(_compared(left, operand))
            left = operand.expr
        return reduce(lambda a, b: nodes.And(a, b, lineno=node.lineno), pairs)

    def _stepping(self, node: Any) -> Any:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        steps = nodes.Const(1 + written // CHARACTERS, lineno=node.lineno)
        visited: Any = self.generic_visit(node)
        count = nodes.ExprStmt(_filtered(steps, STEP), lineno=node.lineno)
        visited.body = [count, *visited.body]
        return visited


def _compared(left: Any, operand: Any) -> Any:
    """Return the comparison of two values. One with a literal is short, whatever the other is."""
    right, line = operand.expr, left.lineno
    if operand.op in ("in", "notin"):
        if isinstance(right, nodes.List | nodes.Tuple) and all(map(_is_literal, right.items)):
            return nodes.Compare(left, [operand], lineno=line)
        contained = nodes.Filter(left, IN, [right], [], None, None, lineno=line)
        return contained if operand.op == "in" else nodes.Not(contained, lineno=line)
    if not _is_literal(left) and not _is_literal(right):
        left, right = _filtered(left, WEIGHED), _filtered(right, WEIGHED)
    return nodes.Compare(left, [nodes.Operand(operand.op, right, lineno=line)], lineno=line)


def _weighed(node: Any) -> Any:
    return node if _is_literal(node) else _filtered(node, WEIGHED)


def _is_literal(node: Any) -> bool:
    return isinstance(node, nodes.Const)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
