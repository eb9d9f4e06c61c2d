"""Plain text files as a source: one document per file; and what is no text in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streampack.arguments import explained
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.base import Block, Reading
from streampack.sources.manifest import Manifest
from streampack.sources.sharded import ShardedSource
from streampack.sources.skips import Skips
from streampack.storage.decompression import CODEC_OF_ENDING, codec_of
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

_NAMES = {"gz": "gzip", "zstd": "zstd", "bz2": "bzip2"}


class OtherContent(NamedTuple):
    """What it is, after "it": "is gzip"; and what to do, a clause as well."""

    what: str
    remedy: str


def other_content(head: bytes, codec: str | None, *, packed: bool) -> OtherContent | None:
    """What the first bytes of a file say that it is; None if it may be what its name says.

    Args:
        head: eight of them at least, of what is stored.
        codec: what it is compressed with by its name; None is text in UTF-8.
        packed: True if compressed files are read under names that say so.
    """
    found = codec_of(head)
    if found == codec:
        return None if codec else other_than_text(head[:4])
    if found is None:
        return OtherContent(
            f"is not {_NAMES[codec or '']}",
            f'Take "{_ending(codec)}" out of its name if it is plain, or write it again',
        )
    remedy = f'Let its name end in "{_ending(found)}"' if codec else "Unpack it"
    if packed and not codec:
        remedy = f'Add "{_ending(found)}" to its name'
    return OtherContent(f"is {_NAMES[found]}", remedy)


def _ending(codec: str | None) -> str:
    return next(ending for ending, known in CODEC_OF_ENDING.items() if known == codec)


def other_than_text(data: bytes) -> OtherContent | None:
    """The same of bytes that are not compressed: whether they are UTF-16 or binary."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return OtherContent("is UTF-16", "Convert it with iconv -f UTF-16 -t UTF-8")
    if (at := data.find(0)) >= 0:
        return OtherContent(
            f"is UTF-16 or binary: it has a NUL character at byte {at}",
            "Convert UTF-16 with iconv -f UTF-16LE -t UTF-8, name other files",
        )
    return None


class TextFiles(ShardedSource):
    """UTF-8 text files, one document each: a whole file, whatever lines it has.

    A byte order mark is left out. A file with NUL characters is broken: it is UTF-16 or binary.
    A file is fetched by itself, so many small ones in an object store are better rewritten as
    shards with `streampack convert`.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        reading: how a lane reads the files.
        storage: how files are reached and cached.
    """

    endings = (".txt",)
    tokenized = False
    listing_fields: tuple[str, ...] = ("paths",)

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        self.paths = paths

    def list_shards(self) -> Manifest:
        infos = self.storage.list(self.paths, endings=self.endings)
        details = {"documents": np.ones(len(infos), dtype=np.int64)}
        return Manifest.of_files(infos, details=details)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "dtype": "text"}

    def estimate_tokens(self) -> int:
        """A rough number of tokens: four bytes each."""
        return self.weight // 4

    def document_name(self, origin: np.void) -> str:
        return f"file {shown(self.manifest.paths[int(origin['shard'])])}"

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: Skips
    ) -> Iterator[tuple[Block, int, int]]:
        if low > 0 or position is not None:  # the document begins before
            return
        with self.open_shard(shard) as file:
            data = file.read_bytes()
            try:
                text, other = data.decode("utf-8-sig"), other_than_text(data)
            except UnicodeDecodeError as error:
                not_text = OtherContent(f"is not UTF-8 at byte {error.start}", "Repair it")
                text, other = "", other_content(data, None, packed=False) or not_text
        if other is not None:
            remedy = f'{other.remedy}, or leave such files out with on_error="skip".'
            skips.handle(self.broken_document(shard, 0, other.what, remedy=remedy))
            return
        yield Texts([text], make_origin(shard, np.zeros(1, dtype=np.int64))), 1, high
