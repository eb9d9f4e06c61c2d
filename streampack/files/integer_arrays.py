"""Documents from raw bytes, many at once: integer arrays, files of numpy, texts."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack._jit import kernel_of
from streampack.documents.blocks import TOKEN_DTYPES, Documents, Texts, offsets_of
from streampack.errors import ConfigError

#: Reason for a document with an invalid id; ends a sentence that begins with the document's name.
BAD_ID = "has an id that is negative or does not fit into 32 bits"

#: The integer dtypes that documents may be stored in, by kind: the size of an item in bytes, plus
#: 16 if it is signed.
INTEGER_DTYPES: dict[int, np.dtype[Any]] = {
    np.dtype(name).itemsize + (16 if name.startswith("int") else 0): np.dtype(name)
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
}
_LARGEST = 0xFFFFFFFF


def integer_kind(dtype: DTypeLike, argument: str = "dtype") -> int:
    """Return the kind of an integer dtype, a key of `INTEGER_DTYPES`; `ConfigError` for others."""
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = np.dtype(object)
    for kind, known in INTEGER_DTYPES.items():
        if wanted == known:
            return kind
    raise ConfigError(
        f"{argument} must be an integer dtype, got {dtype!r}.",
        "Pass one of " + ", ".join(known.name for known in INTEGER_DTYPES.values()) + ".",
        setting=argument,
    )


def integer_block(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    origin: NDArray[np.void],
    problems: dict[int, str],
) -> Documents | UngatheredDocuments:
    """Make a block of documents of N integer arrays at any byte position.

    Args:
        data: (B,) bytes.
        starts: (N,) byte at which each array begins.
        counts: (N,) number of integers; the caller has checked that they end inside `data`.
        kinds: (N,) dtypes of the arrays, as keys of `INTEGER_DTYPES`.
        origin: (N,) of dtype `ORIGIN`.
        problems: reasons for broken arrays, by index; these arrays are left out. Arrays with an
            invalid token id are added to it and left out too.

    Returns:
        `UngatheredDocuments` for arrays of one unsigned token dtype, else `Documents`. The ids of
        `Documents` keep the dtype of the arrays if all have the same one of uint16, uint32 and
        int32, and are uint32 otherwise.
    """
    good = np.arange(len(starts))
    if problems:
        good = np.setdiff1d(good, list(problems))
        starts, counts, kinds, origin = starts[good], counts[good], kinds[good], origin[good]
    dtype = _unsigned_dtype(kinds)
    if dtype is not None:  # an unsigned dtype of token ids has no invalid ids
        return UngatheredDocuments(data, starts, counts, dtype, origin)
    values, offsets = integers_at(data, starts, counts, kinds), offsets_of(counts)
    tokens = values if values.dtype in TOKEN_DTYPES else values.astype(np.uint32)
    block = Documents(tokens, offsets, origin)
    if len(values) and (values.min() < 0 or values.max() > _LARGEST):
        places = np.flatnonzero((values < 0) | (values > _LARGEST))
        bad = np.unique(np.searchsorted(offsets, places, "right") - 1)
        problems.update(dict.fromkeys(good[bad].tolist(), BAD_ID))
        block = block.take(np.setdiff1d(np.arange(len(good)), bad))
    return block


def integers_at(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> NDArray[Any]:
    """Return (T,) integers of N arrays end to end, in their dtype or int64; see `integer_block`."""
    offsets = offsets_of(counts)
    if len(kinds) and bool((kinds == kinds[0]).all()):
        dtype = INTEGER_DTYPES[int(kinds[0])]
        values: NDArray[Any] = np.empty(int(offsets[-1]), dtype=dtype)
        copy_spans(data, starts, offsets * dtype.itemsize, values.view(np.uint8))
        return values
    values = np.empty(int(offsets[-1]), dtype=np.int64)
    for i, kind in enumerate(kinds.tolist()):  # 2**63 and more become negative
        dtype, begin = INTEGER_DTYPES[kind], int(starts[i])
        part = data[begin : begin + int(counts[i]) * dtype.itemsize].view(dtype)
        values[offsets[i] : offsets[i + 1]] = part
    return values


@dataclass(frozen=True, slots=True, eq=False)
class UngatheredDocuments:
    """A block of N documents that are still in the data of their shard; `take` copies them once.

    Attributes:
        data: the bytes; starts, counts: (N,) int64, first byte and number of ids of each document.
        dtype: dtype of the ids, unsigned.
        origin: (N,) of dtype `ORIGIN`.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    dtype: np.dtype[Any]
    origin: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, order: NDArray[np.int64]) -> Documents:
        """Copy the documents `order` (M,), in that order, into a compact block."""
        offsets = offsets_of(self.counts[order])
        tokens = np.empty(int(offsets[-1]), dtype=self.dtype)
        copy_spans(
            self.data, self.starts[order], offsets * self.dtype.itemsize, tokens.view(np.uint8)
        )
        return Documents(tokens, offsets, self.origin[order])

    def gathered(self) -> Documents:
        """Copy all documents, in their stored order."""
        return self.take(np.arange(len(self), dtype=np.int64))


def _unsigned_dtype(kinds: NDArray[np.uint8]) -> np.dtype[Any] | None:
    """Return the dtype that arrays of these kinds (N,) share, if it is an unsigned token dtype."""
    if not len(kinds) or not bool((kinds == kinds[0]).all()):
        return None
    return INTEGER_DTYPES[int(kinds[0])] if kinds[0] in (2, 4) else None


@kernel_of(lambda *call: call[3].size)
def copy_spans(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy the bytes from starts[i] on to out[offsets[i]:offsets[i + 1]].

    Through views that both begin at 0, the loop becomes a plain memory copy, about fifty times
    faster than one that adds an offset to every index.
    """
    for i in range(len(starts)):
        n = offsets[i + 1] - offsets[i]
        source = data[starts[i] : starts[i] + n]
        target = out[offsets[i] : offsets[i + 1]]
        for k in range(n):
            target[k] = source[k]


NPY_MAGIC = b"\x93NUMPY"

Read = TypeVar("Read")

_ATTEMPTS = 100
_NO_INTEGERS, _NOT_FLAT = "not a little-endian integer", "not one dimension"


def no_npy(error: Exception) -> str:
    """Return numpy's message about a file without object addresses, so that it is reproducible."""
    return f"is not a .npy file ({re.sub(' object at 0x[0-9a-f]+', '', str(error))})"


def read_again(read: Callable[[io.BytesIO], Read], content: bytes) -> Read:
    """Call a reader of numpy on a file's bytes; retry at a `SystemError`, pass on other exceptions.

    Numpy has Python parse the header, which now and then fails if threads do so at the same time (a
    SystemError, CPython's issue 106905). The file is not at fault, so the call is retried.
    """
    for _ in range(_ATTEMPTS):
        try:
            return read(io.BytesIO(content))
        except SystemError:
            continue
    return read(io.BytesIO(content))


def npy_header(head: bytes, num_bytes: int) -> tuple[int, int, int] | str:
    """Parse the header of a `.npy` file with numpy's own parser: (header bytes, count, kind).

    Args:
        head: the beginning of the file, with the whole header.
        num_bytes: size of the whole file.

    Returns:
        The kind is a key of `INTEGER_DTYPES`. For a file that cannot be read, a text is returned
        instead: the reason, which ends a sentence that begins with the name of the document.
        Pickled objects are never loaded: only the header is read.
    """
    try:
        header = _parsed(head[: _header_bytes(head)])
    except Exception as error:  # numpy evaluates the header, which can raise nearly anything
        return no_npy(error)
    if isinstance(header, str):
        return header
    begin, shape, dtype = header
    if dtype.hasobject:
        return "holds pickled objects, which are never loaded"
    kind = next((k for k, known in INTEGER_DTYPES.items() if known == dtype), 0)
    if not kind:
        return f"has the dtype {dtype}, {_NO_INTEGERS}"
    if len(shape) != 1:
        return f"has the shape {shape}, {_NOT_FLAT}"
    remaining = num_bytes - begin
    if shape[0] < 0 or shape[0] * dtype.itemsize != remaining:
        return f"has the shape {shape}, and {remaining} bytes follow its header"
    return begin, int(shape[0]), kind


def _header_bytes(head: bytes) -> int:
    """Return the length of a header in bytes, declared in two bytes, or four since version 2."""
    width = 2 if head[6:7] == b"\1" else 4
    return 8 + width + int.from_bytes(head[8 : 8 + width], "little")


@lru_cache(maxsize=64)  # a file is opened for each part of it
def _parsed(head: bytes) -> tuple[int, Any, Any] | str:
    return read_again(_header, head)


def _header(stream: io.BytesIO) -> tuple[int, Any, Any] | str:
    """Return (bytes of the header, shape, dtype), or the reason if the version is unknown."""
    headers: Any = np.lib.format
    version = headers.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        return f"has a .npy file of version {version[0]}.{version[1]}"
    read = headers.read_array_header_1_0 if version == (1, 0) else headers.read_array_header_2_0
    shape, _, dtype = read(stream)
    return stream.tell(), shape, dtype


def pieces(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[memoryview]:
    """Yield views of `data` (B,) from each of `starts` (N,), `sizes` (N,) bytes long."""
    view = memoryview(cast(Any, data))
    for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        yield view[start:stop]


def decoded_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    origin: NDArray[np.void],
    problems: dict[int, str],
) -> Texts:
    """Make a block of N texts in UTF-8, at any byte position.

    `problems` is as for `integer_block`: texts that are not UTF-8 are added to it and left out.
    """
    texts: list[str] = []
    good: list[int] = []
    for i, piece in enumerate(pieces(data, starts, sizes)):
        if i in problems:
            continue
        try:
            texts.append(str(piece, "utf-8"))
            good.append(i)
        except UnicodeDecodeError as error:
            problems[i] = f"is not UTF-8 ({error.reason})"
    return Texts(texts, origin[good])
