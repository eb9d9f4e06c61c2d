"""The error for a file that cannot be mapped."""

from __future__ import annotations

import errno
from pathlib import Path

from streampack.errors import StorageError


def not_mapped(path: Path, error: OSError) -> OSError:
    """Return the error for a file that cannot be mapped."""
    if error.errno not in (errno.ENOMEM, errno.ENODEV):
        return error
    return StorageError(
        f"{path} cannot be mapped into memory ({error.strerror}).",
        "Raise vm.max_map_count, or lower open_shards of ReadOptions or the number of lanes."
        if error.errno == errno.ENOMEM
        else "Copy it to a file system that maps files.",
        path=str(path),
    )
