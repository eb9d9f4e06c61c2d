"""Contents of the members of tar shards: JSON, .npz, and `.npy` parsed in bulk."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.files.integer_arrays import integer_kind, no_npy, npy_header, read_again
from streampack.formats.tar.headers import ALL, DUPLICATE, MISSING, scan_tar
from streampack.sources.reading import too_long
from streampack.sources.records import BrokenDocumentError, ids_of

Record = Mapping[str, Any]
Files = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]


def npz_record(content: bytes, names: Collection[str], most_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of a `.npz` file that `names` lists; others are not read.

    Raises:
        BrokenDocumentError: the file is damaged, holds pickled objects, or unpacks to more than
            `most_bytes`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            wanted = {name: entries[name] for name in names if name in entries}
            total = sum(entry.file_size for entry in wanted.values())
            if total > most_bytes:
                raise BrokenDocumentError(too_long(total, most_bytes))
            return {name: array_in(archive.read(entry)) for name, entry in wanted.items()}
    except BrokenDocumentError:
        raise
    except Exception as error:  # zipfile has no common class for errors of damaged archives
        raise BrokenDocumentError(f"is not a .npz file ({error})") from None


def array_in(content: bytes) -> NDArray[Any]:
    """Return the array of a `.npy` file.

    Raises:
        BrokenDocumentError: the file is damaged, or holds pickled objects.
    """

    def read(stream: io.BytesIO) -> tuple[NDArray[Any], int]:
        formats: Any = np.lib.format
        return formats.read_array(stream, allow_pickle=False), stream.tell()

    try:
        array, end = read_again(read, content)
    except Exception as error:  # numpy evaluates the header, which can raise nearly anything
        raise BrokenDocumentError(no_npy(error)) from None
    if end != len(content):
        raise BrokenDocumentError(f"has {len(content) - end} bytes after its .npy file")
    return array


def file_document(content: bytes, form: str, dtype: str | None) -> NDArray[Any] | str:
    """Return the ids or the text of a file that holds one document alone."""
    if form == "text":
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise BrokenDocumentError(f"is not UTF-8 ({error.reason})") from None
    if form == "npy":
        return ids_of(array_in(content))
    kind = np.dtype(dtype).newbyteorder("<")
    if len(content) % kind.itemsize:
        what = f"has {len(content)} bytes, which is no whole number of {dtype}"
        raise BrokenDocumentError(what)
    return ids_of(np.frombuffer(content, dtype=kind))


def files_beside(data: NDArray[np.uint8], begin: int, extension: str, samples: int) -> Files:
    """Return (N,) starts, sizes, status of N samples' files of an extension, from byte `begin`."""
    starts = np.zeros(samples, dtype=np.int64)
    sizes, ends = np.zeros_like(starts), np.zeros_like(starts)
    status = np.full(samples, MISSING, dtype=np.uint8)
    wanted = np.frombuffer(extension.lower().encode(), dtype=np.uint8)
    if samples:
        scan_tar(data, begin, wanted, ALL, starts, sizes, status, ends)
    return starts, sizes, status


def field_beside(
    data: NDArray[np.uint8], name: str, files: Files, i: int, most_bytes: int
) -> NDArray[Any] | None:
    """Return the array of a field in sample `i`; None if the sample has no such file."""
    start, size, status = (int(column[i]) for column in files)
    if status == DUPLICATE:
        raise BrokenDocumentError(f"has several files .{name}.npy")
    if status:
        return None
    if size > most_bytes:
        raise BrokenDocumentError(too_long(size, most_bytes))
    try:
        return array_in(data[start : start + size].tobytes())
    except BrokenDocumentError as reason:
        raise BrokenDocumentError(f"has a file .{name}.npy that {reason}") from None


#: Status of a file that the kernel leaves to numpy's own header parser.
UNCOMMON = 255

_HEADER_BYTES = 128  # numpy's header of an array of one dimension
_HEADER = re.compile(
    rb"\x93NUMPY[\1\2]\0.{2,4}\{'descr': '([<|][ui][1248])', 'fortran_order': .{4,5}, 'shape': \(",
    re.DOTALL,
)


@kernel_of(lambda *call: call[3].size * (call[1].size + 20))
def npy_counts(
    data: NDArray[np.uint8],
    beginning: NDArray[np.uint8],
    item_bytes: int,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> None:
    """Read the headers of N files that begin like `beginning`, which ends before the shape.

    `starts` moves to the first integer and counts are filled. Files with a status other than 0 are
    left alone; an unusual header gets status `UNCOMMON`.
    """
    for i in range(len(starts)):
        if status[i] != 0:
            continue
        status[i] = UNCOMMON
        at, values = starts[i], starts[i] + _HEADER_BYTES
        same = sizes[i] >= _HEADER_BYTES
        for k in range(len(beginning) if same else 0):
            same &= data[at + k] == beginning[k]
        if not same:
            continue
        at += len(beginning)
        count = np.int64(0)
        while at + 2 < values and 48 <= data[at] <= 57:
            count = 10 * count + np.int64(data[at]) - 48
            at += 1
        flat = data[at] == 44 and data[at + 1] == 41  # the end of "(700,)"
        if flat and count * item_bytes == sizes[i] - _HEADER_BYTES:
            starts[i], counts[i], status[i] = values, count, 0


def array_headers(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
    problems: dict[int, str],
    dtype: str | None,
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return (N,) numbers of ids and (N,) kinds of arrays: `.npy` files, or bare ones of `dtype`.

    `starts` (N,) moves to the first id of each.
    """
    counts = np.zeros_like(starts)
    kinds = np.zeros(len(starts), dtype=np.uint8)
    if dtype is not None:
        kind = integer_kind(dtype)
        kinds[:] = kind
        counts[:] = sizes // (kind & 15)
        for i in np.flatnonzero((sizes % (kind & 15) != 0) & (status == 0)).tolist():
            problems[i] = f"has {sizes[i]} bytes, which is no whole number of {dtype}"
        return counts, kinds
    first = int(np.argmin(status)) if len(status) else 0
    head = data[starts[first] :][:_HEADER_BYTES].tobytes() if len(status) else b""
    if known := _HEADER.match(head):
        kinds[:] = kind = integer_kind(known[1].decode())
        beginning = np.frombuffer(known[0], dtype=np.uint8)
        npy_counts(data, beginning, kind & 15, starts, sizes, status, counts)
    else:
        status[status == 0] = UNCOMMON
    for i in np.flatnonzero(status == UNCOMMON).tolist():
        content = data[starts[i] : starts[i] + sizes[i]].tobytes()
        header = npy_header(content, len(content))
        if isinstance(header, str):
            problems[i] = header
        else:
            starts[i] += header[0]
            counts[i], kinds[i] = header[1:]
    return counts, kinds
