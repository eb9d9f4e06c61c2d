"""Flat files of token ids as a source, and the beginnings of documents in them.

Token files of llm.c and modded-nanogpt have a header of 256 little-endian int32: a magic number, a
version, the number of ids that follow; the others are 0. The magic number gives the bytes per id.
See ``write_datafile`` of https://github.com/karpathy/llm.c
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.arguments import explained, whole_number
from streampack.errors import ConfigError
from streampack.file_info import FileInfo, shown
from streampack.files.flat import ByIndex, FlatFile, FlatSource, Integers
from streampack.files.integer_arrays import (
    INTEGER_DTYPES,
    NPY_MAGIC,
    integer_kind,
    npy_header,
)
from streampack.names.listing import has_ending
from streampack.sources.arguments import FileOptions
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.records import DamagedFileError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOOKED_AT, _NEAR = 1 << 16, 1 << 12  # tokens searched at a time, and at first for one end


class ByEndToken:
    """Documents that end with an end token each, the last one perhaps without.

    The position of a document is the token that it begins at.

    Args:
        tokens: the tokens of the whole file.
        eos_id: id of the end token.
    """

    def __init__(self, tokens: Integers, eos_id: int) -> None:
        self._tokens = tokens
        self._eos_id = eos_id
        self.end = len(tokens)

    def first(self, token: int) -> int:
        if token <= 0:
            return 0
        if token >= self.end or self._tokens[token - 1] == self._eos_id:
            return min(token, self.end)
        return int(self.ahead(token, self.end, 1, self.end)[0][1])

    def before(self, token: int) -> int:
        return min(token, self.end)

    def ahead(
        self, start: int, stop: int, most: int, most_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        places, at, count, last = [np.array([start], dtype=np.int64)], start, 0, start
        while last < stop and at < self.end:
            if count and (count >= most or at - start >= most_tokens):
                break
            until = min(at + (_NEAR if most == 1 and at == start else _LOOKED_AT), self.end)
            while at < until and last < stop:  # behind `stop`, up to the first end
                part = self._tokens.part(at, min(until, stop if at < stop else at + _NEAR))
                ends = np.flatnonzero(part == self._eos_id) + (at + 1)
                ends = ends[: np.searchsorted(ends, stop) + 1]
                places.append(ends)
                count += len(ends)
                last = int(ends[-1]) if len(ends) else last
                at += len(part)
        if at == self.end and last < stop:  # the file ends without an end token
            places.append(np.array([self.end], dtype=np.int64))
        tokens = np.concatenate(places)[: most + 1]
        return tokens, tokens


HEADER_BYTES = 1024
_DTYPES = {20240520: "uint16", 20240801: "uint32"}  # dtype by magic number


def is_llmc(head: bytes) -> bool:
    """Return True if a file begins with a header of llm.c."""
    return int.from_bytes(head[:4], "little") in _DTYPES and not any(head[12:HEADER_BYTES])


def llmc_kind(head: bytes, num_bytes: int) -> int:
    """Return the kind of the ids after the header; `DamagedFileError` if they contradict it."""
    if num_bytes < HEADER_BYTES:
        raise DamagedFileError(f"it has {num_bytes} bytes, fewer than its header of {HEADER_BYTES}")
    magic, _, count = np.frombuffer(head[:12], "<i4").tolist()
    dtype = _DTYPES[magic]
    following = num_bytes - HEADER_BYTES
    if following != count * np.dtype(dtype).itemsize:
        raise DamagedFileError(
            f"its header declares {count} ids of {dtype}, and {max(following, 0)} bytes follow"
        )
    return integer_kind(dtype)


logger = logging.getLogger(__name__)

_INDEXED = (".ds",)
_HEADER_BYTES = 64 << 10  # beginning of a .npy file, which contains its whole header
_HEAD_BYTES = 1 << 20  # beginning of a file, which should contain an end token


class Tokens(FlatSource):
    """Documents in files that are one long array of token ids.

    `.npy` files of one dimension; raw files, as nanoGPT, OLMo and dolma write them (the last two
    end in `.npy` and have no header); files of llm.c and modded-nanogpt, which have a header: a
    document ends with the end token, which stays, or where the file ends. Files of datatrove
    (`.ds`): the `.ds.index` beside a file holds the ends of its documents.

    Files are cut at any byte among any number of lanes; a document belongs to the part that its
    first token is in. Local ones are mapped, remote ones read by range. `Documents.origin`
    holds the token that a document begins at, or its index in a `.ds` file.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        dtype: dtype of the little-endian integers in raw files. Other files declare it themselves.
        eos_id: the token that ends a document. Not for `.ds`.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.

    Raises:
        ConfigError: an argument is missing, which the error names, or does not fit the files; when
            the dataset is built.
    """

    endings = FORMATS["Tokens"].endings
    listing_fields: tuple[str, ...] = ("paths", "dtype", "eos_id")

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        dtype: DTypeLike | None = None,
        eos_id: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(paths, **options)
        if dtype is not None:
            integer_kind(dtype)
        self.dtype = None if dtype is None else np.dtype(dtype).name
        if eos_id is not None:
            eos_id = whole_number("eos_id", eos_id, least=0)
        self.eos_id = eos_id

    def list_shards(self) -> Manifest:
        infos = self.storage.list(self.paths, endings=self.endings)
        indexed = [has_ending(info.path, _INDEXED) for info in infos]
        if len(set(indexed)) > 1:
            raise ConfigError(
                f"{shown(infos[0].path)} and {shown(infos[-1].path)} are files of two kinds.",
                "Name files of one kind, or mix two sources with sources.Mixture.",
                setting="paths",
            )
        indexes: list[FileInfo | None] = [None] * len(infos)
        if indexed[0]:
            listed = self.storage.list([f"{info.path}.index" for info in infos])
            by_path = {index.path: index for index in listed}
            indexes = [by_path[f"{info.path}.index"] for info in infos]
        self._check_arguments(infos[0].path, indexed[0])
        sizes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        # An empty file that should not be is an error, so it must be read.
        least = np.array([index is not None and index.num_bytes > 0 for index in indexes])
        looks = (self._look(*pair) for pair in zip(infos, indexes, strict=True))
        kind, begin = next((form for form in looks if form is not None), (2, 0))
        details = {"indexes": indexes, "item_bytes": INTEGER_DTYPES[kind].itemsize, "begin": begin}
        return Manifest.of_files(infos, np.maximum(sizes, least), details)

    def _check_arguments(self, path: str, indexed: bool) -> None:
        if indexed == (self.eos_id is None):
            return
        if indexed:
            raise ConfigError(
                f"eos_id is for files without an index, but {shown(path)} has one.",
                "Leave eos_id out.",
                setting="eos_id",
            )
        dtype = "" if has_ending(path, (".npy",)) else ', dtype="uint16"'
        raise ConfigError(
            f"eos_id is required for {shown(path)}, which has no index.",
            f"Pass it: sources.Tokens({path!r}{dtype}, eos_id=50256), with yours.",
            setting="eos_id",
            path=shown(path),
        )

    def _look(self, info: FileInfo, index: FileInfo | None) -> tuple[int, int] | None:
        """Return (kind, begin) of a file; None if the file is empty or damaged."""
        head = self._head(info, _HEADER_BYTES)
        last = b""
        if index is not None and index.num_bytes >= 8:
            last = self.storage.read_range(index, index.num_bytes - 8, index.num_bytes)
        if not head or (index is not None and not last):
            return None
        says_it = head.startswith(NPY_MAGIC) or is_llmc(head)
        if index is None and self.dtype is None and not says_it:
            raise ConfigError(
                f"dtype is required for {shown(info.path)}, which has no header.",
                'Pass it, for example dtype="uint16" or dtype="uint32".',
                setting="dtype",
                path=shown(info.path),
            )
        try:
            end = int.from_bytes(last, "little") if last else None
            kind, begin = self._form(head, info.num_bytes, end)
        except DamagedFileError:
            return None  # reading it raises the error, and `on_error` decides
        if self.eos_id is not None:
            self._check_ends(info, begin, INTEGER_DTYPES[kind])
        return kind, begin

    def _check_ends(self, info: FileInfo, begin: int, dtype: np.dtype[Any]) -> None:
        """Warn if no document ends in the beginning of a file."""
        for size in (_HEADER_BYTES, _HEAD_BYTES):
            head = self._head(info, size)[begin:]
            ids = np.frombuffer(head, dtype, len(head) // dtype.itemsize)
            if (ids == self.eos_id).any():
                return
        logger.warning(
            "No document ends in the first %d ids of %s: eos_id=%d and dtype=%s may be wrong.",
            len(ids), shown(info.path), self.eos_id, dtype.name,
        )  # fmt: skip

    def _head(self, info: FileInfo, num_bytes: int) -> bytes:
        with self.storage.open(info) as file:
            return file.read(0, num_bytes)

    def _form(self, head: bytes, num_bytes: int, end: int | None) -> tuple[int, int]:
        """Return (kind, begin) of a file, by its first bytes and the last number of its index."""
        wanted = 0 if self.dtype is None else integer_kind(self.dtype)
        begin, kind = 0, wanted
        if end is not None:
            kind = kind or (num_bytes // end if end and num_bytes in (2 * end, 4 * end) else 0)
            if not kind or end * INTEGER_DTYPES[kind].itemsize != num_bytes:
                raise DamagedFileError(
                    f"it has {num_bytes} bytes, and its index declares {end} ids"
                )
        elif head.startswith(NPY_MAGIC):
            header = npy_header(head, num_bytes)
            if isinstance(header, str):
                raise DamagedFileError(f"it {header}")
            begin, _, kind = header
        elif is_llmc(head):
            begin, kind = HEADER_BYTES, llmc_kind(head, num_bytes)
        elif not kind:
            raise DamagedFileError("it has no header, and dtype is not given")
        if begin and wanted and wanted != kind:
            raise DamagedFileError(
                f"its ids are {INTEGER_DTYPES[kind].name}, and dtype is {self.dtype}"
            )
        if (num_bytes - begin) % INTEGER_DTYPES[kind].itemsize:
            raise DamagedFileError(
                f"its size of {num_bytes} bytes is not a multiple of {INTEGER_DTYPES[kind].name}"
            )
        return kind, begin

    @contextmanager
    def open_flat(self, shard: int) -> Iterator[FlatFile]:
        index = self.index_of(shard)
        with self.open_shard(shard) as file:
            size = file.num_bytes
            if index is None:
                kind, begin = self._form(file.read(0, _HEADER_BYTES), size, None)
                dtype = INTEGER_DTYPES[kind]
                tokens = Integers(file, begin, (size - begin) // dtype.itemsize, dtype)
                yield FlatFile(file, kind, begin, ByEndToken(tokens, self.eos_id or 0))
                return
            with self._open_listed(index) as table:
                if table.num_bytes % 8:
                    raise DamagedFileError(f"its index has {table.num_bytes} bytes, is cut short")
                ends = Integers(table, 0, table.num_bytes // 8, "i8")
                kind, _ = self._form(b"", size, ends[len(ends) - 1] if len(ends) else 0)
                count = size // INTEGER_DTYPES[kind].itemsize

                def begins(low: int, high: int) -> NDArray[np.int64]:
                    before = ends.part(max(low - 1, 0), max(high - 1, 0))
                    return np.append(0, before) if low == 0 else before  # type: ignore[return-value]

                yield FlatFile(file, kind, 0, ByIndex(len(ends), begins, count))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "dtype": self.dtype, "eos_id": self.eos_id}

    def estimate_tokens(self) -> int:
        """Return the number of tokens, exact if all files have the dtype of the first one."""
        details = self.manifest.details
        ids = np.maximum(self.manifest.num_bytes - details["begin"], 0) // details["item_bytes"]
        return int(ids.sum())

    def document_name(self, origin: np.void) -> str:
        path = shown(self.manifest.paths[int(origin["shard"])])
        what = "document" if has_ending(path, _INDEXED) else "the document at token"
        return f"{what} {int(origin['index'])} of {path}"
