"""Marks of folders with files that are not a corpus by themselves.

The log of a table format lists the files of each of its snapshots; the folder also holds files of
older snapshots, and for some formats no readable file at all. `streampack convert` and
`streampack order` keep their notes in the destination until they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown

#: Folder in a destination with the note of an unfinished conversion or order, a file of JSON.
UNFINISHED = ".streampack"
#: Patterns of the files in a subfolder that identify the kind of its parent folder.
MARKS = {
    "_delta_log": "*",
    ".hoodie": "hoodie.properties",
    "metadata": "*.metadata.json*",
    "_versions": "*.manifest",
    UNFINISHED: "*.json",
}
_MARKED = re.compile(rf"(?:^|/)({'|'.join(map(re.escape, MARKS))})/(?:.*/)?([^/]+)$")

_OLD_ROWS = "and its folder also holds rows that were deleted or replaced"
#: By mark, the predicate of a sentence about the folder, and a remedy with a placeholder for it.
_FACTS = {
    "_delta_log": (
        f"is a Delta table, {_OLD_ROWS}",
        "Pass that folder by itself, or sources.Delta({0!r}, version=...).",
    ),
    ".hoodie": (
        f"is a Hudi table, {_OLD_ROWS}",
        "Pass the files of its current version: the table's folder joined with "
        "slice.base_file_relative_path(), for each slice of "
        "hudi.HudiTableBuilder.from_base_uri({0!r}).build().get_file_slices(), if none "
        "has_log_files().",
    ),
    "metadata": (
        f"is an Iceberg table, {_OLD_ROWS}",
        "Pass sources.Iceberg(table, snapshot_id=...), with a table of pyiceberg or its metadata "
        "file; or that folder by itself if it has a metadata/version-hint.text.",
    ),
    "_versions": (
        "is a Lance dataset, which the library lance alone reads",
        "Pass its rows: lance.dataset({0!r}).to_table().",
    ),
    UNFINISHED: (
        "holds an unfinished conversion or order, so documents are missing there",
        "Repeat the command to finish it, or remove the folder.",
    ),
}


class MarkedFolderError(ConfigError):
    """Raised for a folder that is not a corpus by itself.

    Attributes:
        folder: path or URL of the folder; mark: its key in `MARKS`.
    """

    folder: str
    mark: str


def marks_among(names: Iterable[str]) -> dict[str, str]:
    """Return marked folders and their marks from relative paths of files; "" is the top."""
    marks = {}
    for match in filter(None, map(_MARKED.search, names)):
        if fnmatchcase(match[2], MARKS[match[1]]):
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
        if f"{looked_into}/".startswith(f"{inside}{mark}/"):  # the log itself is meant
            continue
        is_near = f"{looked_into}/".startswith(inside) or inside.startswith(f"{looked_into}/")
        if any(file.path.startswith(inside) for file in files) or (is_near and not files):
            fact, remedy = _FACTS[mark]
            error = MarkedFolderError(
                f"{shown(folder)} {fact}.", remedy.format(folder), path=shown(folder)
            )
            error.folder, error.mark = folder, mark
            raise error
