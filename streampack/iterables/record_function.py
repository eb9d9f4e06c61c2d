"""records=: a user's function of one record, applied before the record is read.

The function gets every field of the record, also those that only the file's path has, and returns a
record in a shape that is read, or None to leave the record out. It replaces rewriting the files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import Texts
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError, ContentError, first_line
from streampack.files.json_records import size_of
from streampack.hooks.hook import Hook, as_hook
from streampack.iterables.source import ItemSource
from streampack.sources.base import Block
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.fields import RecordReader, RecordSchema
from streampack.sources.records import BrokenDocumentError, kind_of
from streampack.sources.sharded import ShardedSource

_LOOKED_AT = 100  # records that may be left out or broken before the first result


@dataclass(frozen=True, slots=True)
class Converted:
    """Reader of the results of a function of records; see `RecordReader`.

    Attributes:
        hook: the function.
        reader: reader of its results.
        columns: fields of the first record; all fields are read.
        kinds: kinds of the fields of its first result.
        several: True if a result may hold several documents.
    """

    hook: Hook
    reader: RecordReader
    columns: Sequence[str]
    kinds: Mapping[str, str]
    several: bool = False

    def __repr__(self) -> str:  # without addresses: the processes of a job compare it
        return f"Converted({self.hook.name!r}, {self.reader!r})"

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.hook.name

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        """Return True if the results hold ids."""
        return self.reader.hold_ids(self.kinds, f"The result of records={self.hook.name!r}")

    def size(self, record: Any, tokenized: bool) -> int:
        """Estimate the bytes of a record, before the function."""
        return size_of(record)

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Block, dict[int, str]]:
        """Make a block of the results; the reason for a record that is left out is ""."""
        reasons: dict[int, str] = {}
        results: list[dict[str, Any]] = []
        kept: list[int] = []
        for i, item in enumerate(items):
            try:
                record = _record(item if parse is None else parse(item))
                result = converted(self.hook, record)
            except BrokenDocumentError as reason:
                reasons[i] = str(reason)
                continue
            if result is None:
                reasons[i] = ""
                continue
            declared = {name: record[name] for name in types.document if name in record}
            results.append({**declared, **result})
            kept.append(i)
        block, broken = self.reader.block(results, origin[kept], types, tokenized)
        return block, reasons | {kept[i]: reason for i, reason in broken.items()}


@dataclass(frozen=True, slots=True)
class _Look:
    """Reader that keeps the first records as they are; see `RecordReader`."""

    function: ClassVar[str] = "look"
    columns: ClassVar[Sequence[str]] = ()
    records: list[Any] = field(default_factory=list, repr=False)

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        return False

    def size(self, record: Any, tokenized: bool) -> int:
        return size_of(record)

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Block, dict[int, str]]:
        for item in items:
            try:
                self.records.append(_record(item if parse is None else parse(item)))
            except BrokenDocumentError:
                continue
        return Texts([], origin[:0]), {}


def _record(value: Any) -> dict[str, Any]:
    """Return a copy of a record, which the function may change."""
    if not isinstance(value, Mapping):
        raise BrokenDocumentError(f"is {type_in_words(value)}, not a record")
    return dict(value)


def converted(hook: Hook, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function's result for a record.

    Raises:
        BrokenDocumentError: the function raised an exception, or its result is not a record.
    """
    try:
        result = hook.function(copy.copy(record))
    except Exception as error:
        words = f"{type(error).__name__}: {first_line(error)}"
        raise BrokenDocumentError(f'cannot be converted: "{hook.name}" raised {words}') from error
    if result is None or isinstance(result, Mapping):
        return None if result is None else dict(result)
    raise BrokenDocumentError(
        f'cannot be converted: "{hook.name}" returned {type_in_words(result)}, not a record such '
        'as {"text": ...} or {"messages": ...}, or None'
    )


def converting(
    function: Any, make: Callable[[RecordReader], Any], reader: Callable[..., RecordReader]
) -> Any:
    """Return a source that reads the results of a user's function.

    Args:
        function: the user's function of a record, or a `Hook` of it.
        make: makes the source with a reader of its records.
        reader: makes the reader of the results, given the kinds of the first one's fields.

    Raises:
        ConfigError: the function has no name, or gives no record.
    """
    hook = as_hook("records", function)
    look = _Look()
    source = make(look)
    _read_first(source, look)
    first, result = _first_result(hook, look.records)
    kinds = {str(name): kind_of(value) for name, value in result.items()}
    read = reader(kinds)
    several = bool(getattr(getattr(read, "fields", None), "several", False))
    fields = RecordSchema(False, "", records=Converted(hook, read, [*first], kinds, several))
    if isinstance(source, ShardedSource):
        source._manifest, source._lines = None, {}
    source.fields = fields.found_in(kinds, "")
    return source


def _read_first(source: Any, look: _Look) -> None:
    """Read the first records of a source into `look`."""
    if isinstance(source, ItemSource):  # some can be read only once
        first = source.first_item()  # type: ignore[attr-defined]
        look.block([first], np.zeros(1, dtype=np.int8), FieldSpec(), False, source.parse)
        return
    for shard, weight in enumerate(source.manifest.weights.tolist()):
        try:
            for _ in source.read_shard(shard, 0, weight, None, ErrorPolicy("skip")):
                if len(look.records) >= _LOOKED_AT:
                    return
        except ContentError:  # the same error is raised where the shard is read
            continue
        if look.records:
            return


def _first_result(hook: Hook, records: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first record with a result, and the result."""
    problem = "returned None for all of them"
    for record in records[:_LOOKED_AT]:
        try:
            result = converted(hook, record)
        except BrokenDocumentError as reason:
            problem = str(reason).removeprefix("cannot be converted: ")
            continue
        if result is not None:
            return record, result
    fields = ", ".join(f'"{name}"' for name in list(records[0])[:30]) if records else "(none)"
    raise ConfigError(
        f"records= must return a record for one of the first {len(records[:_LOOKED_AT])} with the "
        f"fields {fields}; {problem}.",
        "Correct the function; it gets one record, a dict, and returns another, or None.",
        setting="records",
    )
