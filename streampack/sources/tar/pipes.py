"""`pipe:` URLs, which run a command in a shell and read what it prints."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from streampack.errors import ConfigError, StorageError


def is_pipe(path: str) -> bool:
    """True for a `pipe:` URL."""
    return path.startswith("pipe:")


def refuse_pipes(paths: Sequence[str]) -> None:
    """Raise `ConfigError` if one of the paths is a `pipe:` URL."""
    for path in filter(is_pipe, paths):
        raise ConfigError(
            f'"{path}" is a pipe: URL.',
            "It would run a command in a shell, so it is refused.",
            "Name the shards by URL (s3://, https://, ...), or, if you wrote the command yourself, "
            f'pass sources.WebDataset({path!r}, tokens="npy", allow_pipe=True) with your files.',
        )


def run_pipe(url: str, target: Path) -> None:
    """Write what a `pipe:` URL yields to a file; webdataset runs the command.

    Raises:
        ConfigError: webdataset is not installed.
        StorageError: the command failed.
    """
    try:
        from webdataset.gopen import gopen
    except ImportError as error:
        raise ConfigError(
            "webdataset is not installed.",
            "It runs the commands of pipe: URLs.",
            'Install it with `pip install "streampack[webdataset]"`.',
        ) from error
    try:
        with gopen(url, "rb") as stream, open(target, "wb") as out:
            shutil.copyfileobj(stream, out)
    except OSError as error:
        raise StorageError(
            f"{url} failed: {error}.",
            "The shard cannot be read.",
            "Run the command by hand to see why.",
        ) from error
