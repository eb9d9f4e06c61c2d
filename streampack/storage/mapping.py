"""Map files into memory without keeping their descriptors, of which a process may have 1,024.

A map of Python's `mmap` keeps a copy of the file's descriptor for as long as it exists (3.13 can
leave that out). A run maps the last blocks of every open shard, so it has thousands of maps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """A map of a file's first bytes; numpy reads its address, and keeps it alive."""

    def __init__(self, fd: int, size: int) -> None:
        address = _map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address, self._size = address, size
        # Kept here, because the module's name is gone at interpreter exit.
        self._unmap: Callable[[int, int], int] = _unmap
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (address, True),
        }  # fmt: skip

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap(self._address, self._size)


def mapped(fd: int, size: int) -> NDArray[np.uint8]:
    """Map the first bytes of an open file as (size,) uint8, read-only and paged in on access.

    The file may be closed, unlinked or replaced afterwards.

    Raises:
        OSError: the file cannot be mapped.
    """
    return np.asarray(_Map(fd, size)) if size else np.zeros(0, dtype=np.uint8)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map the bytes of a file as (B,) uint8, read-only and paged in on access."""
    with open(path, "rb") as file:
        return mapped(file.fileno(), os.fstat(file.fileno()).st_size)
