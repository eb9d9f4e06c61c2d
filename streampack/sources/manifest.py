"""The shards of a source as columns, and their order, laid end to end for lanes to divide.

A million shards have a million names, so names are kept as their common prefix and one byte string
with the remainder of each; they become strings on access. A shard takes the remainder of its name
and 24 bytes of numbers; pickled and compressed, a few bytes.

The *line* of an epoch is its shards laid end to end, which lanes divide among them. A shard takes
as much of the line as it weighs. A piece is a part of one shard; documents that begin in a piece
belong to it, so a line can be cut anywhere. The order of the shards is computed once per process
(12 bytes per shard, 20 milliseconds for a million of them); a part of the line is two positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.documents.blocks import offsets_of
from streampack.packing.rng import permutation

if TYPE_CHECKING:
    from streampack.file_info import FileInfo


class Names(Sequence[str]):
    """A long sequence of short strings with a common prefix, decoded on access."""

    __slots__ = ("_bytes", "_ends", "_prefix")

    def __init__(self, names: Sequence[str]) -> None:
        # The common prefix of the smallest and the largest name is a prefix of all names.
        low, high = (min(names), max(names)) if len(names) else ("", "")
        pairs = enumerate(zip(low, high, strict=False))
        cut = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
        self._prefix = low[:cut]
        tails = [_encoded(name[cut:]) for name in names]
        self._bytes = b"".join(tails)
        self._ends = offsets_of(np.fromiter(map(len, tails), dtype=np.int64, count=len(tails)))

    @property
    def folder(self) -> str:
        """The folder that contains all names."""
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


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # a local file may have any bytes in its name


@dataclass(frozen=True, eq=False)
class Manifest:
    """The shards of a source, as columns.

    Attributes:
        paths: S paths or URLs, in listing order; kept as `Names`.
        weights: (S,) int64, approximate amount of content per shard, in a unit of the format's
            choice, as proportional to tokens as the listing can know; 0 for an empty one.
        num_bytes: (S,) int64, size of each shard as stored.
        versions: S texts that differ between versions of a shard, as its store reports them when it
            is listed; empty if the store or the format's listing does not know them.
        details: further facts that the format needs, for example column encodings.
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
        """Make a manifest of files; without `weights`, a file weighs its bytes, at least 1."""
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
        """Return the path of a shard, relative to the folder that contains all shards."""
        names = self.paths
        assert isinstance(names, Names)
        return names[shard][len(names.folder) :]

    @cached_property
    def weight(self) -> int:
        """Return the total weight of all shards."""
        return int(self.weights.sum())

    @cached_property
    def digest(self) -> str:
        """64 bits, in hexadecimal, over names (without their folder), weights and sizes.

        The folder is left out so that a corpus may move between buckets and disks, and so are
        versions, which a copy does not keep. Computed once, by the process that lists the shards;
        it is part of a pickled manifest.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            digest.update(_encoded(path.rsplit("/", 1)[-1]) + b"\0")
        digest.update(np.ascontiguousarray(self.weights).tobytes())
        digest.update(np.ascontiguousarray(self.num_bytes).tobytes())
        return digest.hexdigest()


#: (shard, low, high): the part [low, high) of a shard's weight.
Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ShardOrder:
    """The shards of one epoch in reading order, without shards of weight 0.

    Attributes:
        shards: (K,) int32, indices of the shards.
        bounds: (K + 1,) int64, the weight before each shard.
    """

    shards: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, manifest: Manifest, seed: int | None) -> ShardOrder:
        """Shuffle the shards by the seed of an epoch; None keeps the order of the manifest."""
        count = len(manifest)
        shards = np.arange(count, dtype=np.int32)
        if seed is not None:
            shards = permutation(count, seed).astype(np.int32)
        shards = shards[manifest.weights[shards] > 0]
        return cls(shards, offsets_of(manifest.weights[shards]))

    def pieces(self, low: int, high: int) -> ShardPieces:
        """Return the pieces of [low, high) of the line; each is computed on access."""
        first = int(np.searchsorted(self.bounds, low, side="right")) - 1
        end = int(np.searchsorted(self.bounds, high, side="left"))
        return ShardPieces(self, low, high, first, end - first if low < high else 0)


@dataclass(frozen=True, slots=True)
class ShardPieces(Sequence[Piece]):
    """Pieces of consecutive shards; the first and the last may be parts of their shards.

    Attributes:
        first: position of the first shard in the line.
        num_shards: number of shards.
    """

    line: ShardOrder
    low: int
    high: int
    first: int
    num_shards: int

    def __len__(self) -> int:
        return self.num_shards

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < self.num_shards:
            raise IndexError(k)
        place = self.first + k
        start, stop = (int(bound) for bound in self.line.bounds[place : place + 2])
        shard = int(self.line.shards[place])
        return shard, max(start, self.low) - start, min(stop, self.high) - start

    def weight(self, k: int) -> int:
        """Return the weight of piece k and all later pieces."""
        if k >= self.num_shards:
            return 0
        return self.high - max(int(self.line.bounds[self.first + k]), self.low)
