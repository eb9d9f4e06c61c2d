"""Indexed datasets of Megatron-LM as a source.

The index of Megatron-LM, version 1: a header, and three arrays that are read in place.

    "MMIDIDX" 0 0 | u64 version | u8 dtype | u64 S sequences | u64 D | i32 lengths[S] |
    i64 pointers[S] | i64 documents[D]

All little-endian. A length is in tokens, a pointer in bytes of the `.bin`. Document i has the
sequences documents[i] to documents[i + 1], so there are D - 1. An index of multimodal data ends
with S bytes more, the modes of its sequences.

The sizes of the arrays are compared with the file's when it is listed, their ends when it is
opened, and lengths with pointers when they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.documents.blocks import offsets_of
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown
from streampack.files.flat import ByIndex, FlatFile, FlatSource, Integers
from streampack.files.integer_arrays import INTEGER_DTYPES, integer_kind
from streampack.names.listing import has_ending, named_paths, refuse_repeated
from streampack.sources.arguments import FileOptions
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError
from streampack.storage.files import StoredFile
from streampack.threads import in_threads

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size
EMPTY_BYTES = HEADER_BYTES + 8  # size of an index without documents
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32",
    8: "uint16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an index.

    Attributes:
        kind: dtype of the tokens, as a key of `INTEGER_DTYPES`.
        sequences, documents: number of sequences and of documents.
    """

    kind: int
    sequences: int
    documents: int


def parse_header(head: bytes, num_bytes: int, where: str) -> Header:
    """Parse the header of an index.

    Args:
        head: the first `HEADER_BYTES` bytes of the index, or all if it has fewer.
        num_bytes: size of the whole index.
        where: path of the index, for messages.

    Raises:
        ConfigError: the file is no index of Megatron-LM, or has an unsupported version or dtype.
    """
    if not head.startswith(_MAGIC) or len(head) < HEADER_BYTES:
        raise ConfigError(
            f"{where} is not an index of Megatron-LM: it begins with {head[:9]!r}.",
            remedy="Pass the .idx that was written with the .bin; sources.Tokens reads a .bin "
            "without one.",
            path=where,
        )
    _, version, code, sequences, entries = _HEADER.unpack(head)
    dtype = _DTYPES.get(code, f"unknown (code {code})")
    if version != 1 or dtype not in ("uint8", "int8", "int16", "int32", "int64", "uint16"):
        raise ConfigError(
            f"{where} must be of version 1 with a known dtype, got {version} and {dtype}.",
            remedy="Write the dataset again with Megatron-LM's preprocess_data.py.",
            path=where,
        )
    expected = HEADER_BYTES + 12 * sequences + 8 * entries
    if num_bytes != expected or entries < 1:
        raise ConfigError(
            f"{where} has {num_bytes} bytes, and {sequences} sequences of text and {entries} ends "
            f"of documents take {expected}.",
            remedy="Copy or write it again; multimodal datasets, which have more, are not read.",
            path=where,
        )
    return Header(integer_kind(dtype), sequences, entries - 1)


class Index:
    """An open index. A call with (low, high) returns the beginnings of documents; see `ByIndex`.

    Args:
        file: the index file.
        header: header of the index.
        bin_bytes: size of the `.bin`.

    Raises:
        DamagedFileError: the index does not end where the `.bin` does.
    """

    def __init__(self, file: StoredFile, header: Header, bin_bytes: int) -> None:
        count = header.sequences
        pointers = HEADER_BYTES + 4 * count
        self._lengths = Integers(file, HEADER_BYTES, count, "i4")
        self._pointers = Integers(file, pointers, count, "i8")
        self._documents = Integers(file, pointers + 8 * count, header.documents + 1, "i8")
        self._item_bytes = INTEGER_DTYPES[header.kind].itemsize
        self._bin_bytes = bin_bytes
        if self._documents[0] != 0 or self._documents[header.documents] != count:
            raise DamagedFileError("its index has sequences outside of all documents")
        expected = 0
        if count:
            expected = self._pointers[count - 1] + self._lengths[count - 1] * self._item_bytes
        if expected != bin_bytes or (count and self._pointers[0]):
            raise DamagedFileError(f"it has {bin_bytes} bytes, and its index declares {expected}")

    def __call__(self, low: int, high: int) -> NDArray[np.int64]:
        sequences = self._documents.part(low, high)
        first, last = int(sequences[0]), int(sequences[-1])
        rising = bool((sequences[1:] >= sequences[:-1]).all())
        if not rising or first < 0 or last > len(self._pointers):
            raise DamagedFileError(f"by its index documents {low} to {high - 1} have no sequences")
        begins = np.full(len(sequences), self._bin_bytes, dtype=np.int64)
        inside = sequences < len(self._pointers)
        pointers = self._pointers.part(first, last + 1)
        begins[inside] = pointers[sequences[inside] - first]
        sizes = offsets_of(self._lengths.part(first, last).astype(np.int64)) * self._item_bytes
        if not np.array_equal(begins - begins[0], sizes[sequences - first]):
            raise DamagedFileError(
                f"by its index documents {low} to {high - 1} have other lengths than places"
            )
        return begins // self._item_bytes


_PARTNER = {".idx": ".bin", ".bin": ".idx"}


class MegatronIndexed(FlatSource):
    """Documents in the indexed datasets of Megatron-LM, version 1: token ids of any integer dtype.

    Documents are those in the index; the sequences of a document are joined. An end token that
    preprocessing has written stays. Files are cut at any document among any number of lanes. Local
    files are mapped, remote ones read by range, so that a lane reads the parts that it needs.
    `Documents.origin` holds the index of the document in its file.

    Args:
        paths: a `.idx` or `.bin`, the prefix that both share, a directory, a glob or brace
            expansion, local or any fsspec URL; or several.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: a file lacks its partner, or an index is invalid, damaged, or for multimodal
            data or floats; when the dataset is built.
    """

    endings = FORMATS["MegatronIndexed"].endings
    listing = "sampled"

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(named_paths(paths), **options)
        refuse_repeated(self.paths)

    def list_shards(self) -> Manifest:
        infos = {info.path: info for path in self.paths for info in self._list(path)}
        missing = sorted({_partner(path) for path in infos} - set(infos))
        if missing:
            infos |= {info.path: info for info in self.storage.list(missing)}
        bins = [infos[path] for path in sorted(infos) if has_ending(path, (".bin",))]
        self.storage.refuse_repeated([info.path for info in bins])
        indexes = [infos[_partner(info.path)] for info in bins]
        headers = in_threads(self._header, self._sampled(indexes))
        sizes = np.array([info.num_bytes for info in bins], dtype=np.int64)
        details = {"headers": headers, "indexes": indexes}
        return Manifest.of_files(bins, np.maximum(sizes, self._least(indexes, headers)), details)

    def _least(self, indexes: Sequence[FileInfo], headers: Sequence[Header]) -> NDArray[Any]:
        """Return the least weight of each file: an empty one that should not be is an error."""
        return np.array([index.num_bytes > EMPTY_BYTES for index in indexes])

    def _list(self, path: str) -> list[FileInfo]:
        """List the files that a path names; some may lack their partner."""
        try:
            return self.storage.list(path, endings=tuple(_PARTNER))
        except ConfigError:
            try:
                # The path is the common prefix of both files.
                return self.storage.list(f"{path}.idx")
            except ConfigError:
                pass
            raise

    def _header(self, index: FileInfo) -> Header:
        head = self.storage.read_range(index, 0, min(HEADER_BYTES, index.num_bytes))
        return parse_header(head, index.num_bytes, shown(index.path))

    def describe(self) -> dict[str, Any]:
        index_bytes = sum(index.num_bytes for index in self.manifest.details["indexes"])
        return {**super().describe(), "index_bytes": index_bytes}

    def estimate_tokens(self) -> int:
        """Return the number of tokens, exact if the files that were not opened have one dtype."""
        headers: list[Header] = self.manifest.details["headers"]
        item_bytes = np.array([INTEGER_DTYPES[header.kind].itemsize for header in headers])
        sizes = self.manifest.num_bytes
        if len(headers) == len(sizes):
            return int((sizes // item_bytes).sum())
        return int(sizes.sum() / item_bytes.mean())

    @contextmanager
    def open_flat(self, shard: int) -> Iterator[FlatFile]:
        details = self.manifest.details
        listed: FileInfo = details["indexes"][shard]
        with self._open_listed(listed) as idx, self.open_shard(shard) as file:
            try:
                header = parse_header(idx.read(0, HEADER_BYTES), idx.num_bytes, shown(listed.path))
            except ConfigError as error:
                raise self.broken_shard(shard, error.fact, remedy=error.remedy) from error
            index = Index(idx, header, file.num_bytes)
            tokens = file.num_bytes // INTEGER_DTYPES[header.kind].itemsize
            yield FlatFile(file, header.kind, 0, ByIndex(header.documents, index, tokens))


def _partner(path: str) -> str:
    """Return the index of a `.bin`, or the `.bin` of an index.

    Raises:
        ConfigError: `path` is neither a `.bin` nor a `.idx`.
    """
    ending = path[-4:].lower()
    if ending not in _PARTNER:
        raise ConfigError(
            f"{shown(path)} is neither a .bin nor a .idx.",
            "Name either of them, or the prefix that both share.",
            path=shown(path),
        )
    return path[:-4] + _PARTNER[ending]
