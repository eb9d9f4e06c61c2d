"""Raw documents at a few positions of a source, as digests that ranks compare.

- Data in memory: items by index, or rows of a table. Rows of a dataset with a transform are those
  below it.
- Local files: the stored bytes at positions in the files; remote files: entries of their listing.
- Iterables and streams: the first item.
- Sources of a user: blocks at positions of their shards, or the first block of their first lane.

Nothing is read in proportion to the corpus.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from streampack.packing.rng import derive_seed
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.indexed import InMemory, Items
from streampack.sources.sharded import ShardedSource

if TYPE_CHECKING:
    from streampack.iterables.source import ItemSource

PLACES = 18  # the first and the last position, and 16 that follow from the seed
READINGS = 4  # readings that must agree before ranks are told that theirs differ
_STORED_BYTES = 4096
_lock = threading.Lock()  # of the global random states

#: Reads the raw document at a position; True reads it anew, and a file's documents by its format.
Read = Callable[[int, bool], Any]


def digests(source: Source, seed: int, lanes: int) -> NDArray[np.int64]:
    """Return the (18,) digests of 48 bits of a source's documents; 0 where there is none."""
    values = np.zeros(PLACES, dtype=np.int64)
    length, read = _reader(source._inner, lanes)
    for number, place in enumerate(places(length, seed)):
        values[number] = _digest(read, place, False)
    return values


def repeated_digests(
    source: Source, seed: int, lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read the documents anew, several times.

    Returns:
        The (18,) digests, and which of them differed between readings, as random documents do.
    """
    tries = 1 if _is_stored(source._inner) else READINGS  # files are not random
    values = np.zeros((tries, PLACES), dtype=np.int64)
    length, read = _reader(source._inner, lanes)
    for number, place in enumerate(places(length, seed)):
        values[:, number] = [_digest(read, place, True) for _ in range(tries)]
    return values[0], (values != values[0]).any(axis=0)


def places(length: int, seed: int) -> list[int]:
    """Return up to 18 positions below `length`, with the first and the last one."""
    if length <= PLACES:
        return list(range(length))
    inner = (1 + derive_seed(seed, 5, k) % (length - 2) for k in range(PLACES - 2))
    return [0, *inner, length - 1]


def name_of_place(source: Source, seed: int, number: int) -> str:
    """Return the name of the document with this index among the digests."""
    inner = source._inner
    if isinstance(inner, InMemory):
        return f"{inner.words[0]} {places(len(_data(inner)), seed)[number]}"
    if isinstance(inner, ShardedSource):
        shard, _, _ = _piece(inner, places(inner.manifest.weight, seed)[number])
        return inner._shard_name(shard)
    return "the first document"


# ---------------------------------------------------------------------- reading


def _reader(source: Source, lanes: int) -> tuple[int, Read]:
    """Return the number of positions of a source, and the function that reads at one."""
    if isinstance(source, InMemory):
        return len(_data(source)), lambda place, anew: _in_memory(source, place)
    if isinstance(source, ShardedSource):
        stored = _is_stored(source)
        return (
            source.manifest.weight,
            lambda place, anew: (
                _block(source, place) if anew or not stored else _stored(source, place)
            ),
        )
    from streampack.iterables.source import ItemSource

    if isinstance(source, ItemSource):
        return 1, lambda place, anew: _first_item(source, anew)
    if source.once:
        return 0, lambda place, anew: None
    return 1, lambda place, anew: _first_block(source, lanes)


def _data(source: InMemory) -> Any:
    return source.data  # type: ignore[attr-defined]


def _in_memory(source: InMemory, place: int) -> Any:
    if isinstance(source, Items):
        if hasattr(source.data, "with_format"):  # a transform may be random
            return source.data.with_format("arrow")[place : place + 1].to_pylist()
        return _document(source, next(iter(source.items(place, place + 1))))
    rows = source._rows(place, place + 1)  # type: ignore[attr-defined]
    return rows.select(source._columns(rows.schema)).to_pylist()  # type: ignore[attr-defined]


def _document(source: Any, item: Any) -> Any:
    """Return the part of an item that is the document: other fields may be a rank's own."""
    fields = source.fields
    if fields.records is None and fields.document is not None:
        return item[fields.document]
    return item


def _piece(source: ShardedSource, place: int) -> tuple[int, int, int]:
    """Return a shard, and the part of its weight at a position of the unshuffled line."""
    piece: tuple[int, int, int] = source._line(None).pieces(place, place + 1)[0]
    return piece


def _is_stored(source: Source) -> bool:
    from streampack.files.file_source import FileSource

    return isinstance(source, FileSource) and not isinstance(source, InMemory)


def _block(source: ShardedSource, place: int) -> Any:
    """Return the first block after a position of the unshuffled line."""
    part = source._span(place, source.manifest.weight, seed=0, epoch=0, shuffle=False)
    return next((block for block, _ in part.read(None, ErrorPolicy())), None)


def _stored(source: ShardedSource, place: int) -> Any:
    """Return the stored bytes at a position of the unshuffled line."""
    manifest = source.manifest
    shard, low, _ = _piece(source, place)
    path, size = manifest.paths[shard], int(manifest.num_bytes[shard])
    if "://" in path:
        return path, size, manifest.versions[shard] if len(manifest.versions) else ""
    begin = min(low * size // int(manifest.weights[shard]), size - _STORED_BYTES)
    with open(path, "rb") as file:
        file.seek(max(begin, 0))
        return file.read(_STORED_BYTES)


def _first_item(source: ItemSource, anew: bool) -> Any:
    if not anew or source.once:
        return _document(source, source.first_item(None))
    return _document(source, source.fresh_first())


def _first_block(source: Source, lanes: int) -> Any:
    reader = source.lanes(lanes, seed=0, epoch=0, shuffle=False)[0]
    return next((block for block, _ in reader.read(None, ErrorPolicy())), None)


# ---------------------------------------------------------------------- digests


def _digest(read: Read, place: int, anew: bool) -> int:
    """Return the digest of a document; an error of its reading counts as its content."""
    digest = hashlib.blake2b(digest_size=6)
    try:
        with _fixed_random(place):
            document = read(place, anew)
        _update(digest, document)
    except Exception as error:
        digest = hashlib.blake2b(type(error).__name__.encode(), digest_size=6)
    return int.from_bytes(digest.digest(), "big")


@contextmanager
def _fixed_random(seed: int) -> Iterator[None]:
    """Fix the global random states inside, so that augmented documents are alike on all ranks."""
    with _lock:
        legacy: Any = np.random.mtrand._rand  # type: ignore[attr-defined]  # np.random.rand's
        states = random.getstate(), legacy.get_state(), torch.get_rng_state()
        random.seed(seed)
        legacy.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            legacy.set_state(states[1])
            torch.set_rng_state(states[2])


def _update(digest: Any, value: Any) -> None:
    """Add a document to a digest, by its values alone."""
    digest.update(type(value).__name__.encode() + b"\0")
    if isinstance(value, str):
        digest.update(value.encode("utf-8", "surrogatepass"))
    elif value is None or isinstance(value, (bool, int, float, complex)):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        if value.keys() == {"bytes", "path"} and value["bytes"] is not None:
            value = {"bytes": value["bytes"]}  # the path may be of a rank's own cache
        for key in sorted(value, key=str):
            _update(digest, key)
            _update(digest, value[key])
    elif isinstance(value, (bytes, bytearray, memoryview)):
        digest.update(value)
    elif hasattr(value, "tobytes") and not getattr(getattr(value, "dtype", 0), "hasobject", False):
        digest.update(value.tobytes())
    elif hasattr(value, "tolist"):
        _update(digest, value.tolist())
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name != "origin":
                _update(digest, getattr(value, field.name))
    elif isinstance(value, Sequence):
        _update_list(digest, list(value))


def _update_list(digest: Any, values: Any) -> None:
    digest.update(b"%d\0" % len(values))
    if len(values) and {*map(type, values)} == {int}:
        try:
            digest.update(np.array(values, dtype=np.int64).tobytes())
            return
        except OverflowError:
            pass
    for value in values:
        _update(digest, value)
