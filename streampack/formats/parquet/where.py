"""The condition of `where=` on row groups of Parquet files, and on the rows that are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streampack.formats.parquet.statistics import pruned_groups
from streampack.predicates import Predicate

if TYPE_CHECKING:
    from streampack.formats.parquet.source import Parquet
    from streampack.storage.file_info import FileInfo
    from streampack.storage.files import StoredFile


class Where(Predicate):
    """A condition on the rows of Parquet files; see `Predicate`.

    Attributes:
        ids: field ids of columns, if files know their columns by them; None takes names.
    """

    ids: dict[str, int] | None = None

    def groups(self, file: StoredFile, groups: Sequence[int]) -> list[int]:
        """Return the groups among a file's row groups that may have rows to read."""
        pruned, _ = pruned_groups(file, self, self.ids)
        return [group for group in groups if group not in pruned]

    def left_out(
        self, source: Parquet, files: Sequence[FileInfo], num_bytes: int
    ) -> dict[str, Any]:
        """Return the groups that are left out, in words, and the bytes of others, for a manifest.

        Args:
            source: a source with this condition.
            files: the sampled files.
            num_bytes: bytes of all groups.
        """
        pruned = groups = 0
        for info in files:
            with source.storage.open(info) as file:
                numbers, count = pruned_groups(file, self, self.ids)
            pruned, groups = pruned + len(numbers), groups + count
        words = f"{self.text:.200}"
        if groups:
            words += f" leaves out {pruned:,} of {groups:,} row groups unread"
            words += f", in {len(files)} sampled files" if len(files) > 1 else ""
        read = num_bytes * (groups - pruned) // groups if groups else num_bytes
        return {"left_out": words, "encoded_bytes": read}
