"""Texts and ids that a user's function makes of records, for `sources.open`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.fields import FieldSpec
from streampack.files.json_records import size_of
from streampack.files.paths import open_files
from streampack.iterables.of_records import source_of_records
from streampack.iterables.record_function import converting
from streampack.names.listing import named_paths
from streampack.sources.base import Block, Source
from streampack.sources.fields import RecordReader, RecordSchema
from streampack.sources.formats import RECORD_FORMATS
from streampack.sources.reading import ReadOptions
from streampack.sources.records import block_of


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reader of documents in a field of records; see `RecordReader`.

    Attributes:
        fields: the fields to read.
    """

    function: ClassVar[str] = ""
    fields: RecordSchema

    @property
    def columns(self) -> Sequence[str]:
        """Names of the fields that are read."""
        return (self.fields.document or "", *self.fields.loss_masks)

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        """Return True if the documents are ids."""
        return self.fields.tokenized

    def size(self, record: Any, tokenized: bool) -> int:
        """Estimate the bytes of a record."""
        return size_of(record)

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Block, dict[int, str]]:
        """Make a block of the valid records, and a dict from index to reason for the others."""
        return block_of(items, self.fields, origin, types, parse)


def open_records(
    source: Any,
    *,
    records: Any,
    reading: ReadOptions | None = None,
    storage: Any = None,
    where: Any = None,
    **named: Any,
) -> Source:
    """Open files or objects as texts or ids that a function makes of each record.

    Args:
        source: as for `sources.open`.
        records: the function.
        reading, storage, where: as for `sources.open`.
        named: fields of the function's results.
    """
    if where is not None:
        paths = named_paths(source)
        source, storage = (
            open_files(paths, where=where, storage=storage, formats=RECORD_FORMATS),
            None,
        )

    def make(reader: RecordReader) -> Any:
        return source_of_records(source, reader, reading, storage)

    def reader(kinds: Mapping[str, str]) -> FieldReader:
        fields = RecordSchema.named(**named).found_in(kinds, "The result of records=")
        return FieldReader(fields)

    opened: Source = converting(records, make, reader)
    return opened
