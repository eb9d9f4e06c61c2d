"""The shards of a source, as columns: one process lists them, and every other receives them.

A million shards are a million names, so names are kept as the prefix that all of them share and one
byte string with the rest of each; they become strings when they are asked for. A shard takes the
rest of its name and 24 bytes of numbers; pickled and compressed, a few bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.documents.ragged import offsets_of
from streampack.storage.remote import FileInfo


class Names(Sequence[str]):
    """A long sequence of short strings with a common prefix; decoded when they are asked for."""

    __slots__ = ("_bytes", "_ends", "_prefix")

    def __init__(self, names: Sequence[str]) -> None:
        # All names have the prefix that the first and the last of them, sorted, have in common.
        low, high = (min(names), max(names)) if len(names) else ("", "")
        pairs = enumerate(zip(low, high, strict=False))
        cut = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
        self._prefix = low[:cut]
        rest = [_encoded(name[cut:]) for name in names]
        self._bytes = b"".join(rest)
        self._ends = offsets_of(np.fromiter(map(len, rest), dtype=np.int64, count=len(rest)))

    @property
    def folder(self) -> str:
        """The folder that all of them are in."""
        return self._prefix[: self._prefix.rfind("/") + 1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start, stop = int(self._ends[index]), int(self._ends[index + 1])
        return self._prefix + self._bytes[start:stop].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for stop in self._ends[1:].tolist():
            yield self._prefix + self._bytes[start:stop].decode("utf-8", "surrogateescape")
            start = stop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self._prefix, self._bytes))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"Names({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # a local file may have any bytes in its name


@dataclass(frozen=True, eq=False)
class Manifest:
    """The shards of a source, as columns.

    Attributes:
        paths: S paths or URLs, in listing order; kept as `Names`.
        weights: (S,) int64, about how much is in each shard, in a unit of the format's choice that
            goes with tokens as closely as the listing can know; 0 for an empty one.
        num_bytes: (S,) int64, size of each shard as stored.
        versions: S texts that differ between versions of a shard, as its store says when it is
            listed; none at all if the store or the format's listing does not know.
        details: what the format needs besides, for example column encodings.
    """

    paths: Sequence[str]
    weights: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    details: dict[str, Any] = field(default_factory=dict)
    versions: Sequence[str] = ()

    @classmethod
    def of_files(
        cls,
        infos: Sequence[FileInfo],
        weights: NDArray[np.int64] | None = None,
        details: dict[str, Any] | None = None,
    ) -> Manifest:
        """Of listed files; without `weights`, a file weighs its bytes, at least 1.

        An empty file may be damage, so it must be read.
        """
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        weights = np.maximum(sizes, 1) if weights is None else weights
        paths, versions = [info.path for info in infos], [info.version for info in infos]
        return cls(paths, weights, sizes, details or {}, versions)

    def __post_init__(self) -> None:
        if not isinstance(self.paths, Names):
            object.__setattr__(self, "paths", Names(self.paths))
        if not isinstance(self.versions, Names):
            object.__setattr__(self, "versions", Names(self.versions if any(self.versions) else ()))

    def __len__(self) -> int:
        return len(self.weights)

    def name(self, shard: int) -> str:
        """The path of a shard, relative to the folder that all shards are in."""
        names = self.paths
        assert isinstance(names, Names)
        return names[shard][len(names.folder) :]

    @cached_property
    def weight(self) -> int:
        """Of all shards together."""
        return int(self.weights.sum())

    @cached_property
    def digest(self) -> str:
        """64 bits, in hexadecimal, over names (without their folder), weights and sizes.

        The folder is left out so that a corpus may move between buckets and disks, and so are
        versions, which a copy does not keep. Worked out once,
        by the process that lists; it is part of a pickled manifest.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            digest.update(_encoded(path.rsplit("/", 1)[-1]) + b"\0")
        digest.update(np.ascontiguousarray(self.weights).tobytes())
        digest.update(np.ascontiguousarray(self.num_bytes).tobytes())
        return digest.hexdigest()
