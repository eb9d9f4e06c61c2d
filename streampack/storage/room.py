"""The room for the files of a cache: which of them go.

Folders are spread over zones with an equal share of the limit each. A process counts the bytes that
it adds to a zone, and looks through the zone after some of them. So a scan takes the same time for
any size of the cache, and no record exists that a killed process could leave wrong.

An epoch reads a corpus once, so of two files the one that was read last is needed last, and goes
first: see `order_of_removal`. If each new file took the place of an old one, none would stay until
it is needed. A file that is on its way to a reader was not used after it was made.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.storage.locks import Lock

_FOLDERS = 256
_ZONE_BYTES = 64 << 20  # a smaller cache has fewer zones
_LEAST_BYTES = 4096  # smallest space that a file takes on a disk
_LOOKS = 32  # scans of a zone by a process, while it adds the zone's share of the limit
_STALE_S = 600.0  # age at which a part has no writer
_UNUSED_S = 24 * 3600.0  # after which a file is of no run
_RECENT = 64  # part of the room for files read last: others may read them too
_DERIVED = 4  # part of the room for derived content used last
_LISTS = "lists"  # folder of the lists of files that runs read in later epochs
_TOLD_S = 3600.0  # between two signs of a run that has another epoch to come
#: Bytes of a file's key in lists, and in the keys of content derived from it.
KEY_BYTES = 16
#: Ends the key of derived content.
DERIVED = "m"
_KEY = f"S{KEY_BYTES}"


def mark_as_read(path: str) -> None:
    """Note that the last block of a file was read: it was used after it was made."""
    with suppress(OSError):  # another process removed it, or it belongs to another user
        made_ns = os.stat(path).st_mtime_ns
        os.utime(path, ns=(max(time.time_ns(), made_ns + 1), made_ns))


class Entry(NamedTuple):
    """A file of the cache: the times when it was used and made, its size and path."""

    used_ns: int
    made_ns: int
    num_bytes: int
    path: str

    @property
    def key(self) -> str:
        """Key of the content."""
        return self.path.rpartition("/")[2].partition("-")[0]

    @property
    def last_ns(self) -> int:
        """Time at which the file was used or made."""
        return max(self.used_ns, self.made_ns)


def order_of_removal(
    files: Sequence[Entry], lists: Iterable[NDArray[Any]], unused_before_ns: int, quota: int
) -> list[Entry]:
    """Return files in the order in which they are removed.

    First are files that no run lists and nobody has used for a day, and derived content but for the
    contents used last, of a quarter of the room: the ones used longest ago first. Of files that
    were read, the ones read last go next, as they are needed last, in the next epoch; but files
    that a run lists, as it has another epoch to come, go after others. Last, in the order of their
    use, are files used just now, files on their way to readers, and other derived content, which is
    made anew if a part is missing.

    Args:
        files: the files.
        lists: sorted beginnings of the keys of files that runs read in later epochs.
        unused_before_ns: the time a day ago.
        quota: bytes that files may take.
    """
    keys = np.array([os.fsencode(file.key) for file in files], _KEY)
    is_listed = np.zeros(len(files), bool)
    for listed in filter(len, lists):
        is_listed |= listed[np.searchsorted(listed, keys) % len(listed)] == keys
    recent, in_use = quota // _RECENT, quota // _DERIVED
    goes, contents, old = set[Entry](), set[str](), set[Entry]()
    for file in sorted(files, key=lambda file: -file.last_ns):
        if file.key.endswith(DERIVED):
            if in_use > 0:
                contents.add(file.key)
            if file.key in contents:
                in_use -= file.num_bytes
            else:
                old.add(file)
        elif file.used_ns > file.made_ns:
            recent -= file.num_bytes
            if recent < 0:
                goes.add(file)

    def rank(at: int) -> tuple[int, int]:
        file, last_ns = files[at], files[at].last_ns
        if file in old or (last_ns < unused_before_ns and not is_listed[at]):
            return 0, last_ns
        return (1 + int(is_listed[at]), -last_ns) if file in goes else (3, last_ns)

    return [files[at] for at in sorted(range(len(files)), key=rank)]


class Room:
    """The room in a folder.

    Args:
        folder: folder with the folders of files, "00" to "ff".
        limit_bytes: bytes that files may take.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        zones = max(1, min(_FOLDERS, limit_bytes // _ZONE_BYTES))
        self._zones = 1 << (zones.bit_length() - 1)
        #: Bytes that a zone may take.
        self.quota = max(1, limit_bytes // self._zones)
        self._added: dict[int, float] = {}
        self._told: dict[str, float] = {}  # when this process gave a sign, by name of a list
        self._lists: dict[str, NDArray[Any]] = {}

    def add(self, path: Path, num_bytes: int) -> None:
        """Count a file; remove others if they have no room."""
        zone = self._zone(path)
        added = self._added.get(zone, random.random() * self.quota / _LOOKS)
        added += max(num_bytes, _LEAST_BYTES)
        if added >= self.quota / _LOOKS:
            added = 0.0
            self.look(zone)
        self._added[zone] = added

    def make(self, path: Path) -> None:
        """Make room for a file on a full disk."""
        self.look(self._zone(path), is_full=True)

    def keep(self, name: str, keys: Callable[[], Iterable[str]]) -> None:
        """Let files stay that a run reads in a later epoch; called now and then.

        Args:
            name: name of the list of these files in all processes.
            keys: returns the keys of the files.
        """
        now_s = time.time()
        if now_s - self._told.get(name, 0.0) < _TOLD_S:
            return
        self._told[name] = now_s
        path = self._folder / _LISTS / f".{name}"
        with suppress(OSError):
            try:
                os.utime(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f"{path.name}.{os.getpid()}")
                np.sort(np.array([*keys()], _KEY)).tofile(part)
                os.replace(part, path)

    def _listed(self, since_s: float) -> Iterator[NDArray[Any]]:
        """Yield the lists of runs with another epoch to come."""
        with suppress(FileNotFoundError), os.scandir(self._folder / _LISTS) as items:
            for item in items:
                with suppress(OSError):
                    if item.stat().st_mtime < since_s:
                        os.unlink(item.path)
                        continue
                    if item.name not in self._lists:
                        self._lists[item.name] = np.fromfile(item.path, _KEY)
                    yield self._lists[item.name]

    def _zone(self, path: Path) -> int:
        return int(path.parent.name, 16) % self._zones

    def _items(self, zone: int) -> Iterator[os.DirEntry[str]]:
        for place in range(zone, _FOLDERS, self._zones):
            with suppress(FileNotFoundError), os.scandir(self._folder / f"{place:02x}") as items:
                yield from items

    def look(self, zone: int, *, is_full: bool = False) -> None:
        """Keep a zone below its share of the limit; on a full disk, free half of it."""
        now_s, kept = time.time(), self.quota - self.quota // _LOOKS  # added up to the next look
        files: list[Entry] = []
        for item in self._items(zone):
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if not item.name.startswith("."):
                    size = max(status.st_size, _LEAST_BYTES)
                    files.append(Entry(status.st_atime_ns, status.st_mtime_ns, size, item.path))
                elif status.st_mtime < now_s - _STALE_S:
                    _remove_stale(Path(item.path))
        total = sum(file.num_bytes for file in files)
        excess = total - (min(kept, total // 2) if is_full else kept)
        if excess <= 0:
            return
        unused_s = now_s - _UNUSED_S
        lists = self._listed(unused_s)
        for file in order_of_removal(files, lists, int(unused_s * 1e9), self.quota):
            if excess <= 0:
                return
            excess -= file.num_bytes
            with suppress(OSError):
                os.unlink(file.path)


def _remove_stale(path: Path) -> None:
    """Remove a part or a lock of a killed process."""
    with suppress(OSError):
        if path.suffix != ".lock":
            path.unlink()
        elif (lock := Lock.acquire(path)) is not None:
            lock.remove()
