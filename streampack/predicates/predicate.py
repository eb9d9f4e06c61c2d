"""Predicate: the condition of `where=`, applied to rows and to bounds of groups of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from streampack.errors import ConfigError
from streampack.predicates.bounds import Bounds, may_match
from streampack.predicates.text import (
    Compared,
    Flag,
    Joined,
    Not,
    Null,
    SyntaxNotReadError,
    Tree,
    columns_of,
    kinds_of,
    parse,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SYNTAX = "Write it as in 'lang == \"en\" and score >= 0.5', or pass an expression of pyarrow."


class Predicate:
    """A condition on rows.

    Args:
        where: a pyarrow expression, or a text as in ``lang in ["de", "en"] and score >= 0.5``.

    Attributes:
        text: the condition as text, for fingerprints.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, where: Any) -> None:
        self._tree: Tree | None = None
        if isinstance(where, str):
            try:
                self._tree = parse(where)
            except SyntaxNotReadError as error:
                raise ConfigError(
                    f"where={where!r:.200} is not a condition: {error}.", _SYNTAX, setting="where"
                ) from error
            self._expression = _expression(self._tree)
        elif isinstance(where, pc.Expression):
            self._expression = where
            try:
                tree = parse(str(where))
                self._tree = tree if _expression(tree).equals(where) else None
            except SyntaxNotReadError:
                pass
        else:
            raise ConfigError(
                f"where must be a condition, got {where!r:.200}.", _SYNTAX, setting="where"
            )
        self.text = str(self._expression)

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> list[str]:
        """Names of its columns, or words of its text among which they are."""
        if self._tree is not None:
            return list(dict.fromkeys(columns_of(self._tree)))
        return list(dict.fromkeys(re.findall(r"\w+", self.text)))

    def columns_among(self, names: Collection[str]) -> list[str]:
        """Return the columns that it may read among these."""
        if self._tree is not None:
            return [name for name in self.names if name in names]
        return [name for name in names if name in self.text]

    def check(self, schema: pa.Schema, where: str) -> None:
        """Raise `ConfigError` unless the condition fits rows of a schema."""
        names = self.columns_among(schema.names)
        empty = pa.RecordBatch.from_arrays(
            [pa.array([], schema.field(name).type) for name in names], names=names
        )
        try:
            self._mask(empty)
        except (pa.ArrowException, KeyError) as error:
            columns = ", ".join(f'"{each.name}" ({each.type})' for each in schema)
            fact = str(error).partition("\n")[0]
            raise ConfigError(
                f"where={self.text!r:.200} does not fit {where}: {fact}.",
                f"Compare its columns {columns:.500} with values of their types, as date("
                '"2024-01-31") for dates.',
                setting="where",
            ) from error

    def rows(
        self, batch: pa.RecordBatch, numbers: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows that satisfy the condition, of rows with indices (N,)."""
        keep = self._mask(batch)
        if keep.true_count == len(keep):
            return batch, numbers
        return rows_where(batch, keep), numbers[keep.to_numpy(zero_copy_only=False)]

    def may_match(self, bounds: Callable[[str], Bounds | None]) -> bool:
        """Return False if no row of a group with these bounds can satisfy the condition."""
        return self._tree is None or may_match(self._tree, bounds)

    @property
    def kinds(self) -> dict[str, Callable[[str], Any]]:
        """Conversions of texts to the values that columns are compared with, but for numbers."""
        return {} if self._tree is None else dict(kinds_of(self._tree))

    @property
    def is_bounded(self) -> bool:
        """True if bounds can decide it."""
        return self._tree is not None

    def _mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        names = self.columns_among(batch.schema.names)
        table = pa.Table.from_batches([batch.select(names)])
        rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        project = acero.ProjectNodeOptions([self._expression], ["keep"])
        kept = acero.Declaration("project", project, [rows]).to_table(use_threads=False)["keep"]
        if not pa.types.is_boolean(kept.type):
            raise pa.ArrowInvalid(f"it gives {kept.type}, and not true or false")
        return kept.combine_chunks().fill_null(False)


def _expression(tree: Tree) -> pc.Expression:
    if isinstance(tree, Joined):
        joined = _expression(tree.parts[0])
        for part in map(_expression, tree.parts[1:]):
            joined = joined & part if tree.operator == "and" else joined | part
        return joined
    if isinstance(tree, Not):
        return ~_expression(tree.part)
    column = pc.field(tree.column)
    if isinstance(tree, Null):
        return column.is_null()
    if isinstance(tree, Flag):
        return column
    assert isinstance(tree, Compared)
    compare: dict[str, Callable[[Any], Any]] = {
        "==": column.__eq__,
        "!=": column.__ne__,
        "<": column.__lt__,
        "<=": column.__le__,
        ">": column.__gt__,
        ">=": column.__ge__,
    }
    return compare[tree.operator](pc.scalar(tree.value))


def rows_where(batch: pa.RecordBatch, keep: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows of a batch where `keep` (N,) is True, of columns of any type."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if any(each.type in views for each in batch.schema):  # Arrow does not filter them
        fields = [each.with_type(views.get(each.type, each.type)) for each in batch.schema]
        batch = batch.cast(pa.schema(fields, metadata=batch.schema.metadata))
    return batch.filter(keep)
