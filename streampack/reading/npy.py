"""Files of one numpy array: what their header says."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from streampack.reading.integer_arrays import INTEGER_DTYPES

NPY_MAGIC = b"\x93NUMPY"


def no_npy(error: Exception) -> str:
    """What numpy says of a file, without the addresses of its objects: the same every time."""
    return f"is not a .npy file ({re.sub(' object at 0x[0-9a-f]+', '', str(error))})"


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
    stream = io.BytesIO(head)
    headers: Any = np.lib.format
    try:
        version = headers.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = headers.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, _, dtype = headers.read_array_header_2_0(stream)
        else:
            return f"has a .npy file of version {version[0]}.{version[1]}"
    except Exception as error:  # numpy evaluates the header, which can raise nearly anything
        return no_npy(error)
    if dtype.hasobject:
        return "holds pickled objects, which are never loaded"
    kind = next((k for k, known in INTEGER_DTYPES.items() if known == dtype), 0)
    if not kind:
        return f"has the dtype {dtype}, not a little-endian integer"
    if len(shape) != 1:
        return f"has the shape {shape}, not one dimension"
    rest = num_bytes - stream.tell()
    if shape[0] < 0 or shape[0] * dtype.itemsize != rest:
        return f"has the shape {shape}, and {rest} bytes follow its header"
    return stream.tell(), int(shape[0]), kind
