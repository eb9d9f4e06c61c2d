"""Where finished shards are written: a local directory or any URL that fsspec knows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from streampack.errors import ConfigError
from streampack.storage.filesystems import open_filesystem
from streampack.storage.remote import shown, split_url, with_retries

T = TypeVar("T")

#: Folder of the progress files inside a destination.
HIDDEN = ".streampack"


class Destination:
    """A folder in which every file is either whole or missing.

    Local files are moved into place; object stores only show files that are complete.

    Args:
        url: local path or URL.
        retries: attempts after the first for remote files.

    Raises:
        ConfigError: it is a file, or nothing can be written there.
    """

    def __init__(self, url: str, *, retries: int = 5) -> None:
        protocol, rest = split_url(url)
        self.url = url.rstrip("/")
        self.local = Path(rest).expanduser().absolute() if protocol is None else None
        self._retries = retries
        if self.local is not None and self.local.exists() and not self.local.is_dir():
            raise ConfigError(
                f"{url} is a file.",
                "Shards are written to a folder.",
                "Name an empty folder, or one that does not exist yet.",
            )
        if protocol in ("http", "https"):
            raise ConfigError(
                f"{shown(url)} is an HTTP address.",
                "HTTP servers accept no files.",
                "Use a local directory or an object store such as s3://.",
            )
        self._root = self.url if self.local is None else str(self.local)
        self._filesystem = open_filesystem(protocol or "file", {}, 60.0)

    def names(self) -> list[str]:
        """Paths of all files in it, relative and sorted, hidden ones too."""

        def find() -> list[str]:
            try:
                found = self._filesystem.find(self._root)
            except FileNotFoundError:
                return []
            root = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
            return sorted(name.removeprefix(root) for name in found)

        return self._attempt("Listing", self.url, find)

    def refuse_filled(self, what: str) -> None:
        """Raise `ConfigError` if it holds files, and none of an unfinished `what`."""
        visible = sorted(name for name in self.names() if not name.startswith(f"{HIDDEN}/"))
        if visible:
            raise ConfigError(
                f"{self.url} holds {len(visible)} files ({visible[0]}, ...) and no "
                f"unfinished {what}.",
                "Writing there would mix two sets of shards.",
                "Choose another destination, or remove what is there.",
            )

    def refuse_other(self, what: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raise `ConfigError` if the settings of the unfinished `what` are not the wanted ones."""
        for name, value in json.loads(json.dumps(wanted)).items():
            if found.get(name) != value:
                raise ConfigError(
                    f"{self.url} holds an unfinished {what} with {name} {found.get(name)!r}; this "
                    f"one has {value!r}.",
                    "Continuing would mix two sets of shards.",
                    "Repeat the first command to continue, or remove what is there to start again.",
                )

    def scratch(self) -> Path:
        """A new local folder to write shards in before they are put; `clear` it afterwards."""
        if self.local is None:
            return Path(mkdtemp(prefix="streampack-convert-"))
        folder = self.local / HIDDEN / "part"
        self.clear(folder)  # a killed run may have left half a shard
        folder.mkdir(parents=True)
        return folder

    def clear(self, scratch: Path) -> None:
        """Remove a scratch folder, and the hidden folder if it is empty then."""
        shutil.rmtree(scratch, ignore_errors=True)
        if self.local is not None:
            try:
                scratch.parent.rmdir()
            except OSError:
                pass

    def put(self, file: Path, name: str) -> None:
        """Move a local file to the destination, with this name."""
        if self.local is not None:
            target = self.local / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
            return
        target_url = f"{self.url}/{name}"
        self._attempt(
            "Uploading", target_url, lambda: self._filesystem.put_file(str(file), target_url)
        )
        file.unlink()

    def write(self, name: str, data: bytes, scratch: Path) -> None:
        """Write a small file."""
        part = scratch / "small"
        part.write_bytes(data)
        self.put(part, name)

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        url = f"{self._root}/{name}"
        data: bytes = self._attempt("Reading", url, lambda: self._filesystem.cat_file(url))
        return data

    def remove(self, name: str) -> None:
        """Remove a file."""
        url = f"{self._root}/{name}"
        self._attempt("Removing", url, lambda: self._filesystem.rm_file(url))

    def _attempt(self, doing: str, url: str, action: Callable[[], T]) -> T:
        return with_retries(action, doing=doing, url=url, retries=self._retries)
