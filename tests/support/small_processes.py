"""Less work for the forks of a test process, and for the process: free memory, and huge pages.

A fork copies the table of its parent's pages, and most pages that it writes to: 70 ms for a
gigabyte in pages of 4 KiB, a fifth of that in pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

LIBC = ctypes.CDLL(None)
MAPS = Path("/proc/self/maps")
HUGE_BYTES = 2 << 20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25  # of Linux; kernels before 6.1 lack the second


def take_huge_pages() -> None:
    """Move the memory of this process to huge pages, on Linux."""
    for line in MAPS.read_text().splitlines() if MAPS.exists() else []:
        bounds, mode, _, _, inode, *name = line.split()
        if mode != "rw-p" or inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, stop = (int(bound, 16) for bound in bounds.split("-"))
        start, stop = -(-start // HUGE_BYTES) * HUGE_BYTES, stop // HUGE_BYTES * HUGE_BYTES
        for advice in (MADV_HUGEPAGE, MADV_COLLAPSE) if start < stop else ():
            LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)


def leave_little() -> None:
    """Give free memory back, and keep all objects that are left out of garbage collection."""
    gc.collect()
    gc.freeze()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)
