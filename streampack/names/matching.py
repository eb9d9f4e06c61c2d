"""Match files with patterns.

Rules:
  1. A component with wildcards is compared with the names in its folder. A name equal to the
     component matches literally, even if it contains wildcard characters.
  2. ``**`` stands for a folder and all folders below it.
  3. A wildcard matches no name with a leading dot and no folder with a leading underscore, because
     other tools put these beside the data. A component may begin with such a character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from streampack.file_info import FileInfo
from streampack.names.folders import Folders, join

#: Beginnings of the names of folders that other tools, or a file system, put beside the data.
HIDDEN = (".", "_", "lost+found")


def has_glob(path: str) -> bool:
    """Return True if the path contains ``*``, ``?`` or ``[``."""
    return any(character in path for character in "*?[")


def is_hidden(name: str, *, is_folder: bool) -> bool:
    """Return True if no wildcard matches the name."""
    return name.startswith(HIDDEN if is_folder else ".")


def matches(folders: Folders, folder: str, components: Sequence[str]) -> Iterator[FileInfo]:
    """Yield the files below a folder that match a pattern; a file may occur several times.

    Args:
        folders: folders of the file system.
        folder: path or URL.
        components: components of the pattern; the first is compared with the names in `folder`.
    """
    first, others = components[0], components[1:]
    if first == "**":

        def enters(name: str) -> bool:
            return any(_stands_for(part, name, is_folder=True) for part in (*others, "*"))

        for name, info in folders.below(folder, enters).items():
            if _fits(name.split("/"), components):
                yield info
        return
    if not has_glob(first) and others:
        yield from matches(folders, join(folder, first), others)
        return
    entries = folders.entries(folder)
    for name in [first] if first in entries else entries:
        entry = entries[name]
        if name == first or _stands_for(first, name, is_folder=entry is None):
            if others and entry is None:
                yield from matches(folders, join(folder, name), others)
            elif entry is not None and not others:
                yield entry


def _stands_for(component: str, name: str, *, is_folder: bool) -> bool:
    hidden = is_hidden(name, is_folder=is_folder) and component[:1] != name[:1]
    return not hidden and fnmatchcase(name, component)


def _fits(names: Sequence[str], components: Sequence[str]) -> bool:
    """Return True if the names of folders and a file match a pattern's components."""
    first, others = components[0], components[1:]
    is_folder = len(names) > 1
    if first != "**":
        fits = _stands_for(first, names[0], is_folder=is_folder)
        return fits and (
            _fits(names[1:], others) if others and is_folder else not others and not is_folder
        )
    if others and _fits(names, others):
        return True
    if is_hidden(names[0], is_folder=is_folder):
        return False
    return _fits(names[1:], components) if is_folder else not others
