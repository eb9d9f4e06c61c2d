"""Marks of folders with files that are not a corpus by themselves.

The log of a table format lists the files of each of its snapshots; the folder also holds files of
older snapshots, and for some formats no readable file at all. `streampack convert` and
`streampack order` keep their notes in the destination until they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from streampack.errors import ConfigError
from streampack.storage.file_info import FileInfo, shown

#: Folder in a destination with the note of an unfinished conversion or order, a file of JSON.
UNFINISHED = ".streampack"


class Mark(NamedTuple):
    """A subfolder that identifies the kind of its parent folder.

    Attributes:
        files: pattern of the names of files in the subfolder.
        fact: predicate of a sentence about the parent folder.
        remedy: remedy with a placeholder for the parent folder.
    """

    files: str
    fact: str
    remedy: str


_OLD_ROWS = "and its folder also holds rows that were deleted or replaced"
MARKS = {
    "_delta_log": Mark(
        "*",
        f"is a Delta table, {_OLD_ROWS}",
        "Pass the files of its current version: deltalake.DeltaTable({0!r}).file_uris(), or a "
        "copy's if it has deletion_vectors() (docs/storage.md).",
    ),
    ".hoodie": Mark(
        "hoodie.properties",
        f"is a Hudi table, {_OLD_ROWS}",
        "Pass the files of its current version: the table's folder joined with "
        "slice.base_file_relative_path(), for each slice of "
        "hudi.HudiTableBuilder.from_base_uri({0!r}).build().get_file_slices(), if none "
        "has_log_files().",
    ),
    "metadata": Mark(
        "*.metadata.json*",
        f"is an Iceberg table, {_OLD_ROWS}",
        "Pass the files of a snapshot: [task.file.file_path for task in table.scan().plan_files()] "
        "with the table of pyiceberg, if no task has delete_files.",
    ),
    "_versions": Mark(
        "*.manifest",
        "is a Lance dataset, which the library lance alone reads",
        "Pass its rows: lance.dataset({0!r}).to_table().",
    ),
    UNFINISHED: Mark(
        "*.json",
        "holds an unfinished conversion or order, so documents are missing there",
        "Repeat the command to finish it, or remove the folder.",
    ),
}
_MARKED = re.compile(rf"(?:^|/)({'|'.join(map(re.escape, MARKS))})/(?:.*/)?([^/]+)$")


def marks_among(names: Iterable[str]) -> dict[str, str]:
    """Return marked folders and their marks from relative paths of files; "" is the top."""
    marks = {}
    for match in filter(None, map(_MARKED.search, names)):
        if fnmatchcase(match[2], MARKS[match[1]].files):
            marks[match.string[: match.start()]] = match[1]
    return marks


def refuse_marked(files: Sequence[FileInfo], marked: Mapping[str, str], looked_into: str) -> None:
    """Raise `ConfigError` for files in a marked folder, or a marked folder without other files.

    Args:
        files: files of a pattern.
        marked: names of marks by folder.
        looked_into: the folder in which the pattern looks for names.
    """
    for folder, mark in sorted(marked.items()):
        inside = folder.rstrip("/") + "/"
        is_near = f"{looked_into}/".startswith(inside) or inside.startswith(f"{looked_into}/")
        if any(file.path.startswith(inside) for file in files) or (is_near and not files):
            known = MARKS[mark]
            raise ConfigError(
                f"{shown(folder)} {known.fact}.", known.remedy.format(folder), path=shown(folder)
            )
