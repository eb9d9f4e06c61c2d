"""Shards that a command writes: `pipe:` URLs, if the user allows them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streampack.errors import StorageError
from streampack.extras import missing_package
from streampack.storage.files import LocalFile


def run_pipe(url: str, target: Path) -> None:
    """Write the output of a `pipe:` URL to a file; webdataset runs the command.

    Raises:
        ConfigError: webdataset is not installed.
        StorageError: the command failed.
    """
    try:
        from webdataset.gopen import gopen
    except ImportError as error:
        raise missing_package("webdataset", "webdataset", path=url) from error
    try:
        with gopen(url, "rb") as stream, open(target, "wb") as out:
            shutil.copyfileobj(stream, out)
    except OSError as error:
        raise StorageError(
            f"{url} failed: {error}.", "Run the command by hand to see why.", path=url
        ) from error


@contextmanager
def opened_pipe(url: str, folder: Path | None) -> Iterator[LocalFile]:
    """Open the output of a `pipe:` URL, a file in `folder` inside the context."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "shard"
        run_pipe(url, target)
        yield LocalFile(target)
