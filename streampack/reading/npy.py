"""Files of one numpy array: what their header says."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from streampack.reading.integer_arrays import INTEGER_DTYPES

NPY_MAGIC = b"\x93NUMPY"

Read = TypeVar("Read")

_ATTEMPTS = 100
_NO_INTEGERS, _NOT_FLAT = "not a little-endian integer", "not one dimension"


def no_npy(error: Exception) -> str:
    """What numpy says of a file, without the addresses of its objects: the same every time."""
    return f"is not a .npy file ({re.sub(' object at 0x[0-9a-f]+', '', str(error))})"


def read_again(read: Callable[[io.BytesIO], Read], content: bytes) -> Read:
    """What a reader of numpy makes of a file's bytes; it raises what the reader raises.

    Numpy has Python parse the header, which fails now and then where threads do so at once (a
    SystemError, CPython's issue 106905). That says nothing about the file, so it is tried again.
    """
    for _ in range(_ATTEMPTS):
        try:
            return read(io.BytesIO(content))
        except SystemError:
            continue
    return read(io.BytesIO(content))


def npy_header(head: bytes, num_bytes: int) -> tuple[int, int, int] | str:
    """Where the integers of a file are, by numpy's own parser: (header bytes, count, kind).

    Args:
        head: its beginning, with the whole header.
        num_bytes: of the whole file.

    Returns:
        The kind is that of `INTEGER_DTYPES`. A text instead says what is wrong; it ends a sentence
        that begins with the name of the document. Pickled objects are never loaded: only the
        header is read.
    """
    try:
        found = read_again(_header, head)
    except Exception as error:  # numpy evaluates the header, which can raise nearly anything
        return no_npy(error)
    if isinstance(found, str):
        return found
    begin, shape, dtype = found
    if dtype.hasobject:
        return "holds pickled objects, which are never loaded"
    kind = next((k for k, known in INTEGER_DTYPES.items() if known == dtype), 0)
    if not kind:
        return f"has the dtype {dtype}, {_NO_INTEGERS}"
    if len(shape) != 1:
        return f"has the shape {shape}, {_NOT_FLAT}"
    rest = num_bytes - begin
    if shape[0] < 0 or shape[0] * dtype.itemsize != rest:
        return f"has the shape {shape}, and {rest} bytes follow its header"
    return begin, int(shape[0]), kind


def is_other_array(reason: str) -> bool:
    """True if what `npy_header` says is of a sound file, with an array of another form."""
    return reason.endswith((_NO_INTEGERS, _NOT_FLAT))


def _header(stream: io.BytesIO) -> tuple[int, Any, Any] | str:
    """(bytes of the header, shape, dtype), or what is wrong with the version."""
    headers: Any = np.lib.format
    version = headers.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        return f"has a .npy file of version {version[0]}.{version[1]}"
    read = headers.read_array_header_1_0 if version == (1, 0) else headers.read_array_header_2_0
    shape, _, dtype = read(stream)
    return stream.tell(), shape, dtype
