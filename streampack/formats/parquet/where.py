"""The row groups of Parquet files that the condition of `where=` leaves out, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streampack.formats.parquet.statistics import pruned_groups
from streampack.predicates import Predicate

if TYPE_CHECKING:
    from streampack.file_info import FileInfo
    from streampack.formats.parquet.source import Parquet


def left_out(
    source: Parquet, where: Predicate, files: Sequence[FileInfo], num_bytes: int
) -> dict[str, Any]:
    """Return the groups that are left out, in words, and the bytes of others, for a manifest.

    Args:
        source: a source with the condition `where`.
        files: the sampled files.
        num_bytes: bytes of all groups.
    """
    pruned = groups = 0
    for info in files:
        with source.storage.open(info) as file:
            numbers, count = pruned_groups(file, where, source._field_ids)
        pruned, groups = pruned + len(numbers), groups + count
    words = f"{where.text:.200}"
    if groups:
        words += f" leaves out {pruned:,} of {groups:,} row groups unread"
        words += f", in {len(files)} sampled files" if len(files) > 1 else ""
    read = num_bytes * (groups - pruned) // groups if groups else num_bytes
    return {"left_out": words, "encoded_bytes": read}
