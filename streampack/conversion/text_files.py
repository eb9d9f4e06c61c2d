"""Plain text files as a source: one document per file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack.documents import Texts, make_origin
from streampack.errors import ConfigError
from streampack.reading.base import Block, Cursor, LaneReader, Source
from streampack.reading.options import Reading, checked_reading
from streampack.reading.skips import Skips
from streampack.storage.remote import shown
from streampack.storage.storage import FileInfo, Storage

__all__ = ["TextFiles"]


class TextFiles(Source):
    """UTF-8 text files, one document each, to be converted; training reads the result.

    One lane, in the order of the paths. The shard of an origin is 0, its index the file's number.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        reading: how many files a block holds.
        storage: how files are reached.
    """

    endings = (".txt",)

    tokenized = False

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.paths = paths
        self.reading = checked_reading(reading)
        self.storage = Storage() if storage is None else storage
        self._files: list[FileInfo] | None = None

    @property
    def files(self) -> list[FileInfo]:
        """The files, sorted by path; listed on first use."""
        if self._files is None:
            self._files = self.storage.list(self.paths, endings=self.endings)
        return self._files

    def prepare(self) -> None:
        """List the files."""
        _ = self.files

    def max_lanes(self) -> int:
        """One."""
        return 1

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> Sequence[LaneReader]:
        """The only lane; `ConfigError` for another number."""
        if n != 1 or shuffle:
            raise ConfigError(
                f"{n} lanes were asked of text files, shuffle={shuffle}.",
                "They are read in one lane, in order.",
                "Turn them into shards with `streampack convert` and train from those.",
            )
        return [_Reader(self)]

    def describe(self) -> dict[str, Any]:
        """Names at both ends, number and size of the files."""
        names = [file.path.rsplit("/", 1)[-1] for file in self.files]
        return {
            "kind": "TextFiles",
            "names": names[:1] + names[-1:],
            "files": len(names),
            "bytes": sum(file.num_bytes for file in self.files),
            "reading": self.reading.describe(),
        }

    def document_name(self, origin: np.void) -> str:
        """Where the document is found."""
        return f"file {shown(self.files[int(origin['index'])].path)}"


@dataclass(frozen=True, slots=True)
class _Reader(LaneReader):
    """The cursor is ``{"next": number of the next file}``."""

    source: TextFiles

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        files = self.source.files
        reading = self.source.reading
        first = 0 if cursor is None else int(cursor["next"])
        while first < len(files):
            texts: list[str] = []
            index: list[int] = []
            size = 0
            i = first
            while i < len(files) and i - first < reading.documents_per_block:
                size += files[i].num_bytes
                text = self._text(i, skips)
                if text is not None:
                    texts.append(text)
                    index.append(i)
                i += 1
                if size >= reading.block_bytes:
                    break
            first = i
            block, _ = skips.replay(
                Texts(texts, make_origin(0, np.array(index, dtype=np.int64))), 0
            )
            if len(block):
                yield block, {"next": first}

    def _text(self, i: int, skips: Skips) -> str | None:
        file = self.source.files[i]
        data = self.source.storage.read_range(file.path, 0, file.num_bytes)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            reason = f"is not UTF-8 at byte {error.start}"
            skips.handle(self.source.broken_document(0, i, reason))
            return None
