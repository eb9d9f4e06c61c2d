"""Indexed datasets of Megatron-LM as a source.

The index of Megatron-LM, version 1: a header, and three arrays that are read where they lie.

    "MMIDIDX" 0 0 | u64 version | u8 dtype | u64 S sequences | u64 D | i32 lengths[S] |
    i64 pointers[S] | i64 documents[D]

All little-endian. A length is in tokens, a pointer in bytes of the `.bin`. Document i has the
sequences documents[i] to documents[i + 1], so there are D - 1. An index of multimodal data ends
with S bytes more, the modes of its sequences.

Nothing of it is believed before it is checked: the sizes of the arrays against that of the file
when it is listed, their ends when it is opened, and what lies between when it is read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.sources.base import Reading
from streampack.sources.flat import FlatFile, FlatSource
from streampack.sources.manifest import Manifest
from streampack.sources.raw_bytes import INTEGER_DTYPES, integer_kind
from streampack.sources.records import DamagedFileError
from streampack.storage.decompression import map_file
from streampack.storage.listing import has_ending, in_threads, named_paths, refuse_repeated
from streampack.storage.remote import FileInfo, shown
from streampack.storage.storage import Storage

_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32",
    8: "uint16",
}  # fmt: skip
_CHECKED = 1 << 20  # sequences at a time


@dataclass(frozen=True, slots=True)
class Header:
    """What the beginning of an index says.

    Attributes:
        kind: the dtype of the tokens, as in `INTEGER_DTYPES`.
        sequences, documents: how many there are.
    """

    kind: int
    sequences: int
    documents: int


def parse_header(head: bytes, num_bytes: int, where: str) -> Header:
    """The header of an index.

    Args:
        head: its first `HEADER_BYTES` bytes, or all if it has fewer.
        num_bytes: of the whole index.
        where: its path, for messages.

    Raises:
        ConfigError: it is no such index, or one that cannot be read.
    """
    if not head.startswith(_MAGIC) or len(head) < HEADER_BYTES:
        raise ConfigError(
            f"{where} is not an index of Megatron-LM: its {num_bytes} bytes begin with "
            f"{head[:9]!r}.",
            "Where documents begin is unknown.",
            "Pass the .idx that was written with the .bin. Of a .bin without one, documents are "
            'found by their last token: sources.Tokens("x.bin", dtype="uint16", eos_id=50256).',
        )
    _, version, code, sequences, entries = _HEADER.unpack(head)
    dtype = _DTYPES.get(code, f"unknown (code {code})")
    if version != 1 or code not in _DTYPES or dtype.startswith("float"):
        raise ConfigError(
            f"{where} has version {version}, and the dtype of its tokens is {dtype}.",
            "Only token ids in indexes of version 1 can be read.",
            "Write the dataset again with Megatron-LM's preprocess_data.py.",
        )
    expected = HEADER_BYTES + 12 * sequences + 8 * entries
    if sequences and num_bytes == expected + sequences:
        raise ConfigError(
            f"{where} holds the modes of its sequences: it is multimodal.",
            "Its images would be read as if they were tokens.",
            "Pass a dataset of text only.",
        )
    if num_bytes != expected or entries < 1:
        raise ConfigError(
            f"{where} has {num_bytes} bytes, and {sequences} sequences and {entries} ends of "
            f"documents take {expected}.",
            "It is cut short, or damaged.",
            "Copy or write it again.",
        )
    return Header(integer_kind(dtype), sequences, entries - 1)


class Index:
    """An index that is open: where documents begin, by their number.

    Args:
        data: (B,) its bytes.
        header: of this index.
        bin_bytes: of the `.bin`.

    Raises:
        DamagedFileError: it does not end where the `.bin` does.
    """

    def __init__(self, data: NDArray[np.uint8], header: Header, bin_bytes: int) -> None:
        sequences = header.sequences
        pointers = HEADER_BYTES + 4 * sequences
        self._lengths = data[HEADER_BYTES:pointers].view("<i4")
        self._pointers = data[pointers : pointers + 8 * sequences].view("<i8")
        self._documents = data[pointers + 8 * sequences :].view("<i8")
        self._item_bytes = INTEGER_DTYPES[header.kind].itemsize
        self._bin_bytes = bin_bytes
        self.end = header.documents
        if int(self._documents[0]) != 0 or int(self._documents[-1]) != sequences:
            raise DamagedFileError("by its index there are sequences that no document has")
        expected = self._after(sequences - 1) if sequences else 0
        if expected != bin_bytes:
            raise DamagedFileError(f"it has {bin_bytes} bytes and its index says {expected}")

    def first(self, token: int) -> int:
        # All of a damaged file is in some part, so what is wrong with it is found.
        return bisect_left(range(self.end), token, key=self._token) if token > 0 else 0

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = np.arange(start, min(start + most, stop) + 1, dtype=np.int64)
        sequences = self._documents[start : int(positions[-1]) + 1].astype(np.int64)
        low, high = int(sequences[0]), int(sequences[-1])
        rising = bool((sequences[1:] >= sequences[:-1]).all())
        if not rising or low < 0 or high > len(self._lengths) or not self._adjoin(low, high):
            raise DamagedFileError(
                f"by its index documents {start} to {int(positions[-1]) - 1} do not follow one "
                "another"
            )
        return positions, np.array([self._begin(n) for n in sequences.tolist()]) // self._item_bytes

    def _adjoin(self, low: int, high: int) -> bool:
        """True if each of these sequences ends where the next one begins, inside the `.bin`."""
        if low == 0 and self._begin(0) != 0:
            return False
        for at in range(low, high, _CHECKED):
            lengths = self._lengths[at : min(at + _CHECKED, high)].astype(np.int64)
            before, after = self._begin(at), self._begin(at + len(lengths))
            ends = before + np.cumsum(lengths) * self._item_bytes
            whole = before % self._item_bytes == 0 and bool((lengths >= 0).all())
            inside = whole and 0 <= before <= after <= self._bin_bytes
            following = self._pointers[at + 1 : at + len(lengths)]
            if not inside or ends[-1] != after or not np.array_equal(ends[:-1], following):
                return False
        return True

    def _token(self, document: int) -> int:
        """The token that a document begins at."""
        return self._begin(int(self._documents[document])) // self._item_bytes

    def _begin(self, sequence: int) -> int:
        """The byte that a sequence begins at; after the last one, that at which the file ends."""
        if not 0 <= sequence <= len(self._pointers):
            raise DamagedFileError(f"its index names sequence {sequence}, which it has not")
        if sequence == len(self._pointers):
            return self._bin_bytes
        return int(self._pointers[sequence])

    def _after(self, sequence: int) -> int:
        return int(self._pointers[sequence]) + int(self._lengths[sequence]) * self._item_bytes


_PARTNER = {".idx": ".bin", ".bin": ".idx"}


class MegatronIndexed(FlatSource):
    """Documents in the indexed datasets of Megatron-LM, version 1: token ids of any integer dtype.

    A document is what the index calls one; if it has several sequences, they are joined. An end
    token that preprocessing has written stays. Files are cut at any document among any number of
    lanes. Both files are mapped into memory, remote ones from the cache, so that a lane reads the
    parts that it needs. `Documents.origin` holds the number of the document in its file.

    Args:
        paths: a `.idx` or `.bin`, the prefix that both share, a directory, a glob or brace
            expansion, local or any fsspec URL; or several.
        reading: how a lane reads the files.
        storage: how files are reached and cached.

    Raises:
        ConfigError: a file without its partner, an index that is not one, is damaged, or is of
            multimodal data or floats; when the dataset is built.
    """

    endings = (".idx",)

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        self.paths = named_paths(paths)
        refuse_repeated(self.paths)

    def list_shards(self) -> Manifest:
        found = {info.path: info for path in self.paths for info in self._list(path)}
        missing = sorted({_partner(path) for path in found} - set(found))
        if missing:
            found |= {info.path: info for info in self.storage.list(missing)}
        bins = [found[path] for path in sorted(found) if has_ending(path, (".bin",))]
        indexes = [found[_partner(info.path)] for info in bins]
        headers = in_threads(self._header, indexes)
        sizes = np.array([info.num_bytes for info in bins], dtype=np.int64)
        # An empty file that should not be is an error, so it must be read.
        least = np.array([min(header.sequences, 1) for header in headers], dtype=np.int64)
        details = {
            "headers": headers,
            "indexes": indexes,
            "documents": np.array([header.documents for header in headers], dtype=np.int64),
        }
        return Manifest.of_files(bins, np.maximum(sizes, least), details)

    def _list(self, path: str) -> list[FileInfo]:
        """The files that a path names, of which some may lack their partner."""
        try:
            return self.storage.list(path, endings=tuple(_PARTNER))
        except ConfigError:
            try:
                return self.storage.list(f"{path}.idx")  # it was a prefix
            except ConfigError:
                pass
            raise

    def _header(self, index: FileInfo) -> Header:
        head = self.storage.read_range(index.path, 0, min(HEADER_BYTES, index.num_bytes))
        return parse_header(head, index.num_bytes, shown(index.path))

    def describe(self) -> dict[str, Any]:
        details = self.manifest.details
        kinds = sorted({INTEGER_DTYPES[header.kind].name for header in details["headers"]})
        return {**super().describe(), "dtypes": kinds, "documents": int(details["documents"].sum())}

    def estimate_tokens(self) -> int:
        """The exact number of tokens."""
        headers: list[Header] = self.manifest.details["headers"]
        item_bytes = [INTEGER_DTYPES[header.kind].itemsize for header in headers]
        return int((self.manifest.num_bytes // np.array(item_bytes)).sum())

    @contextmanager
    def open_flat(self, shard: int) -> Iterator[FlatFile]:
        details = self.manifest.details
        header: Header = details["headers"][shard]
        with self.open_listed(details["indexes"][shard]) as idx, self.open_shard(shard) as path:
            data = map_file(path)
            yield FlatFile(data, header.kind, 0, Index(map_file(idx), header, len(data)))


def _partner(path: str) -> str:
    """The index of a `.bin`, or the `.bin` of an index.

    Raises:
        ConfigError: it is neither.
    """
    ending = path[-4:].lower()
    if ending not in _PARTNER:
        raise ConfigError(
            f"{shown(path)} is neither a .bin nor a .idx.",
            "A dataset of Megatron-LM has one of each.",
            "Name either of them, or the prefix that both share.",
        )
    return path[:-4] + _PARTNER[ending]
