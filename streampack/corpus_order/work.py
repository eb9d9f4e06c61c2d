"""The work folder: results of stages, in files that are either complete or missing.

A file is written under another name and renamed, so a killed process never leaves a partial result.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streampack.conversion.folders import move, writing_to


@dataclass(frozen=True)
class Work:
    """Work folder that all processes of the job see.

    Attributes:
        folder: path of the folder, which is created when needed.
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Return the path of the file `name`, a relative path."""
        return self.folder / name

    def has(self, name: str) -> bool:
        """Return True if the file exists, which implies that it is complete.

        Some file systems leave empty ones after a power failure.
        """
        path = self.path(name)
        return path.exists() and path.stat().st_size > 0

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a temporary path, which is renamed to `name` if the block succeeds.

        Raises:
            StorageError: see `writing_to`.
        """
        path = self.path(name)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # machines share process ids
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield part
                move(part, path)
            finally:
                part.unlink(missing_ok=True)

    def save(self, name: str, values: NDArray[Any]) -> None:
        """Write an array as .npy."""
        with self.writing(name) as path, path.open("wb") as file:
            np.save(file, values, allow_pickle=False)

    def load(self, name: str, *, in_memory: bool = False) -> NDArray[Any]:
        """Load an array, memory-mapped unless `in_memory`."""
        mode: Literal["r"] | None = None if in_memory else "r"
        return np.asarray(np.load(self.path(name), mmap_mode=mode, allow_pickle=False))

    def note(self, name: str, content: dict[str, Any]) -> None:
        """Write a note, a small file of JSON."""
        with self.writing(name) as path:
            path.write_text(json.dumps(content, sort_keys=True))

    def read(self, name: str) -> dict[str, Any]:
        """Return a note's content, or {} if it does not exist or is damaged."""
        try:
            note: dict[str, Any] = json.loads(self.path(name).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return note

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
