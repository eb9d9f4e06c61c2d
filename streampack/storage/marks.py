"""Marks of folders with files that are not a corpus by themselves.

The log of a table format lists the files of each of its snapshots; the folder also holds files of
older snapshots, and for some formats no readable file at all. `streampack convert` and
`streampack order` keep their notes in the destination until they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from streampack.storage.file_info import FileInfo

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
            from streampack.storage.marked_folders import marked_folder

            raise marked_folder(folder, mark)
