"""Plain text files as a source: one document per file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack.documents import Texts, make_origin
from streampack.errors import ConfigError, ContentError
from streampack.numeric import whole_number
from streampack.reading.base import Block, Cursor, LaneReader, Source
from streampack.reading.skips import Skips
from streampack.storage.storage import FileInfo, Storage

__all__ = ["TextFiles"]


class TextFiles(Source):
    """UTF-8 text files, one document each, for converting them; training reads what comes out.

    One lane, in the order of the paths. The shard of an origin is 0, its index the file's number.

    Args:
        path: a directory, file, glob or brace expansion, local or remote; or several.
        storage: how files are reached.
        block_documents: files per block at most.
        block_bytes: a block ends as soon as it holds this much.
    """

    seekable = True
    splittable = False
    tokenized = False

    def __init__(
        self,
        path: str | Sequence[str],
        *,
        storage: Storage | None = None,
        block_documents: int = 256,
        block_bytes: int = 4 << 20,
    ) -> None:
        self.path = path
        self.storage = Storage() if storage is None else storage
        needed = "A block needs at least one."
        self.block_documents = whole_number("block_documents", block_documents, needed)
        self.block_bytes = whole_number("block_bytes", block_bytes, needed)
        self._files: list[FileInfo] | None = None

    @property
    def files(self) -> list[FileInfo]:
        """The files, sorted by path; listed on first use."""
        if self._files is None:
            self._files = self.storage.list(self.path, suffixes=(".txt",))
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
            "block_documents": self.block_documents,
            "block_bytes": self.block_bytes,
        }

    def document_name(self, origin: np.void) -> str:
        """The file's path."""
        return self.files[int(origin["index"])].path


@dataclass(frozen=True, slots=True)
class _Reader(LaneReader):
    """The cursor is ``{"next": number of the next file}``."""

    source: TextFiles

    def read(self, cursor: Cursor | None, skips: Skips) -> Iterator[tuple[Block, Cursor]]:
        files = self.source.files
        first = 0 if cursor is None else int(cursor["next"])
        while first < len(files):
            texts: list[str] = []
            index: list[int] = []
            size = 0
            i = first
            while i < len(files) and i - first < self.source.block_documents:
                size += files[i].num_bytes
                text = self._text(i, skips)
                if text is not None:
                    texts.append(text)
                    index.append(i)
                i += 1
                if size >= self.source.block_bytes:
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
            skips.handle(
                ContentError(
                    f"{file.path} is not UTF-8 at byte {error.start}.",
                    "Its text cannot be read.",
                    'Convert the file, or use on_error="skip" to leave such files out.',
                    shard=0,
                    index=i,
                )
            )
            return None
