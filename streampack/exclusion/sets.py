"""The sets of documents that `exclude` names: parsed, described and compared with a state's.

A set is in order. So a set that was added to at its end is recognised by the digest of its first
keys, and the file of before is not needed. Otherwise the file of before is read, if it is
unchanged, and its keys must be in the sets that are given now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from streampack.errors import ConfigError, StateError
from streampack.exclusion.lookup import as_keys
from streampack.sources.base import Source
from streampack.sources.sharded import ShardedSource

#: A place as `locate` prints it.
_PLACE = re.compile(r"(.*), index (\d+)(?:, tokens \d+ to \d+)?")
#: Column of a set of places, in descriptions.
PLACES = ""


@dataclass(frozen=True)
class ExcludedSet:
    """Keys of a column, or printed places, in order.

    Attributes:
        column: name of the column; "" for places.
        keys: keys in UTF-8.
        path: path of the file that the keys come from; None if they come from memory.
    """

    column: str
    keys: tuple[bytes, ...]
    path: str | None = None

    def digest(self, count: int | None = None) -> str:
        """Return a digest of 16 bytes, in hexadecimal, of the first `count` keys, or of all."""
        keys = self.keys if count is None else self.keys[:count]
        sizes = np.fromiter(map(len, keys), dtype="<i8", count=len(keys))
        state = blake2b(self.column.encode(), digest_size=16)
        state.update(b"\0" + sizes.tobytes())
        state.update(b"".join(keys))
        return state.hexdigest()

    def describe(self) -> list[Any]:
        """Return column, number of keys and digest, JSON-able."""
        return [self.column, len(self.keys), self.digest()]


def excluded_sets(value: Any) -> tuple[ExcludedSet, ...]:
    """Return the sets of the argument `exclude`, in order.

    Raises:
        ConfigError: the argument has another type, or a file cannot be read.
    """
    if isinstance(value, Mapping):
        return tuple(_keys_of(str(column), keys) for column, keys in value.items())
    if isinstance(value, os.PathLike) or (isinstance(value, str) and not _PLACE.fullmatch(value)):
        return (_checked_places(ExcludedSet(PLACES, _lines(value), os.fspath(value))),)
    items = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    sets: list[ExcludedSet] = []
    places = [str(item) for item in items if _is_place(item)]
    for item in items:
        if isinstance(item, (Mapping, str, os.PathLike)) and not _is_place(item):
            sets += excluded_sets(item)
        elif not _is_place(item):
            raise _wrong(item)
    if places:
        sets.append(ExcludedSet(PLACES, tuple(place.encode() for place in places)))
    return tuple(sets)


def _is_place(item: Any) -> bool:
    """Return True for a `Piece`, or for its text."""
    return not isinstance(item, (Mapping, os.PathLike)) and bool(_PLACE.fullmatch(str(item)))


def _wrong(value: Any) -> ConfigError:
    return ConfigError(
        f"exclude must name keys of a column or places, got {value!r:.80}.",
        'Pass {"column": keys or a file with a key per line}, or places that dataset.locate(batch) '
        "returned, or a list of both.",
        setting="exclude",
    )


def _keys_of(column: str, keys: Any) -> ExcludedSet:
    if isinstance(keys, (str, os.PathLike)):
        return ExcludedSet(column, _lines(keys), os.fspath(keys))
    try:
        return ExcludedSet(column, tuple(as_keys(keys)))
    except TypeError as error:
        raise ConfigError(
            f'Keys of the column "{column}" must be texts or integers, got {error}.',
            "Pass a list of them, or the path of a file with a key per line.",
            setting="exclude",
        ) from error


def _lines(path: str | os.PathLike[str]) -> tuple[bytes, ...]:
    """Return the lines of a file that are not empty."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{os.fspath(path)} cannot be read: {error.strerror}.",
            "Pass the path of a file with a key, or a printed place, per line.",
            setting="exclude",
            path=os.fspath(path),
        ) from error
    lines = (line.removesuffix(b"\r") for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return tuple(line for line in lines if line)


def _checked_places(places: ExcludedSet) -> ExcludedSet:
    for line in places.keys:
        if not _PLACE.fullmatch(line.decode(errors="replace")):
            raise ConfigError(
                f"{places.path} must have places as `locate` prints them, got {line!r:.80}.",
                'Pass {"column": path} for keys of a column.',
                setting="exclude",
                path=places.path,
            )
    return places


def places_in(
    sets: Sequence[ExcludedSet], source: Source
) -> dict[tuple[int, int], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the places of sets as indices of documents, by the indices of source and shard.

    Raises:
        ConfigError: a place is not one of this source.
    """
    texts = [key.decode() for each in sets if each.column == PLACES for key in each.keys]
    if not texts:
        return {}
    names: dict[tuple[str, str], tuple[int, int]] = {}
    for number, (name, part) in enumerate(source._parts.items()):
        inner = part._inner
        if isinstance(inner, ShardedSource):
            names |= {(name, path): (number, i) for i, path in enumerate(inner.manifest.paths)}
    indices: dict[tuple[int, int], list[int]] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        assert match is not None
        head = match[1]
        splits = [("", head), *((head[:i], head[i + 2 :]) for i in _commas(head))]
        place = next((names[split] for split in splits if split in names), None)
        if place is None:
            raise ConfigError(
                f"A place must be in a file of the source, got {text!r:.200}.",
                'Pass places that dataset.locate(batch) returned; exclude={"column": keys} takes '
                "out documents of any source by a key.",
                setting="exclude",
            )
        indices.setdefault(place, []).append(int(match[2]))
    return {place: np.array(index, dtype=np.int64) for place, index in indices.items()}


def _commas(text: str) -> list[int]:
    return [match.start() for match in re.finditer(", ", text)]


def saved_sets(
    named: Sequence[ExcludedSet],
    saved: Sequence[Sequence[Any]],
    events: Sequence[Mapping[str, Any]],
) -> tuple[ExcludedSet, ...]:
    """Return the sets of a state, which must all be taken out by the sets given now.

    Args:
        named: sets of the argument `exclude`.
        saved: `ExcludedSet.describe` of the sets in the state.
        events: description and path of each set that the run was given.

    Raises:
        StateError: documents that are taken out would be delivered.
    """
    paths = {event["digest"]: event["path"] for event in events}
    return tuple(
        _saved_set(named, column, count, digest, paths.get(digest))
        for column, count, digest in saved
    )


def _saved_set(
    named: Sequence[ExcludedSet], column: str, count: int, digest: str, path: str | None
) -> ExcludedSet:
    same = [each for each in named if each.column == column]
    for each in same:
        if len(each.keys) >= count and each.digest(count) == digest:
            return ExcludedSet(column, each.keys[:count], path)
    what = f'{count:,} keys of the column "{column}"' if column else f"{count:,} places"
    where = "" if path is None else f", from {path}"
    fact = f"The run takes out {what}{where}, and exclude= lacks "
    try:
        before = ExcludedSet(column, _lines(path or ""), path)
    except ConfigError:
        before = ExcludedSet(column, ())
    if before.digest() == digest:
        missing = set(before.keys).difference(*(each.keys for each in same))
        if not missing:
            return before
        fact += f"{len(missing):,} of them, such as {min(missing).decode(errors='replace')!r:.80}."
    else:
        fact += "this set."
    raise StateError(
        fact,
        "Pass all sets that the run was given, as in exclude=[old, new], or start a new run.",
        setting="exclude",
        path=path,
    )
