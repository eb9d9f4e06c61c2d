"""Files of records, in which documents are a field or a column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streampack.arguments import explained
from streampack.files.file_source import FileSource
from streampack.sources.arguments import NamedFields
from streampack.sources.fields import RecordSchema
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streampack.fields.paths import PathFields
    from streampack.predicates import Predicate


class RecordFiles(FileSource):
    """A source of files with records; documents are texts or token ids in one of their fields.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        text: the field that holds the text.
        tokens: the field that holds token ids.
        loss_mask: the fields that hold loss masks or labels of the ids.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: the arguments exclude each other.
    """

    listing_fields: tuple[str, ...] = ("paths", "fields")
    #: Condition on the rows that are read; `RowFiles` alone take one.
    where: Predicate | None = None

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
        **named: Unpack[NamedFields],
    ) -> None:
        super().__init__(paths, reading=reading, storage=storage)
        self.fields = RecordSchema.named(**named)

    @property
    def column(self) -> str:
        """The field that holds the documents."""
        return self.fields.document or ""

    def path_fields(self, path: str, columns: Collection[str] = ()) -> PathFields | None:
        """Return the declared fields that a file's path has and its `columns` lack, if any.

        A condition gets its columns, and a function of records all fields of the path.
        """
        everything, where = bool(self.fields.by_function), self.where
        if not (everything or where or self.field_types.document.keys() - columns):
            return None
        from streampack.fields.paths import PathFields

        return PathFields.of(path, self.field_types, columns, where, everything=everything)
