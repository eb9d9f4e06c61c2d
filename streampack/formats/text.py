"""Plain text files as a source: one document per file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streampack.documents.blocks import Texts, make_origin
from streampack.file_info import shown
from streampack.files.file_source import FileSource, ShardBlock
from streampack.sources.formats import FORMATS
from streampack.sources.manifest import Manifest
from streampack.sources.reading import too_long
from streampack.storage.decompression import codec_of


class TextFiles(FileSource):
    """UTF-8 text files, one document each: a whole file, with all its lines.

    A byte order mark is left out. A file with NUL characters is broken: it is UTF-16 or binary.
    A file is fetched by itself, so many small ones in an object store are better rewritten as
    shards with `streampack convert`.

    Args:
        paths: files, directories, globs or brace expansions, local or any fsspec URL.
        reading: limits of blocks and open shards.
        storage: access to files and their cache.
    """

    endings = FORMATS["TextFiles"].endings
    tokenized = False
    listing_fields: tuple[str, ...] = ("paths",)

    def list_shards(self) -> Manifest:
        infos = self.storage.list(self.paths, endings=self.endings)
        details = {"documents": np.ones(len(infos), dtype=np.int64)}
        return Manifest.of_files(infos, details=details)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "dtype": "text"}

    def estimate_tokens(self) -> int:
        """Estimate the number of tokens: four bytes each."""
        return self.manifest.weight // 4

    def document_name(self, origin: np.void) -> str:
        return f"file {shown(self.manifest.paths[int(origin['shard'])])}"

    def blocks(self, shard: int, low: int, high: int, position: int | None) -> Iterator[ShardBlock]:
        if low > 0 or position is not None:  # the document belongs to an earlier part
            return
        text, problem = self._text(shard)
        origin = make_origin(shard, np.zeros(1, dtype=np.int64))
        block = None if problem else Texts([text], origin)
        yield ShardBlock(block, origin, {0: problem} if problem else {}, 1, high)

    def _text(self, shard: int) -> tuple[str, str]:
        """Return the text of a file and "", or the reason for a file that is no document."""
        size, most = int(self.manifest.num_bytes[shard]), self.reading.most_bytes
        if size > most:
            return "", too_long(size, most)
        with self.open_shard(shard) as file:
            data = file.read(0, size)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if codec := codec_of(data):
                return "", f"is compressed ({codec}), and text files are read as they are"
            return "", f"is not UTF-8 at byte {error.start}"
        return text, "has a NUL character, as UTF-16 and binary files do" if 0 in data else ""
