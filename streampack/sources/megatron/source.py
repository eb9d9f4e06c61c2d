"""Indexed datasets of Megatron-LM as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streampack.arguments import explained
from streampack.errors import ConfigError
from streampack.reading.flat import FlatFile, FlatSource
from streampack.reading.integer_arrays import INTEGER_DTYPES
from streampack.reading.manifest import Manifest
from streampack.reading.options import Reading
from streampack.sources.megatron.index import HEADER_BYTES, Header, Index, parse_header
from streampack.storage.decompression import map_file
from streampack.storage.listing import in_threads
from streampack.storage.patterns import has_ending, named_paths, refuse_repeated
from streampack.storage.remote import FileInfo, shown
from streampack.storage.storage import Storage

_PARTNER = {".idx": ".bin", ".bin": ".idx"}


class MegatronIndexed(FlatSource):
    """Documents in the indexed datasets of Megatron-LM, version 1: token ids of any integer dtype.

    A document is what the index calls one; if it has several sequences, they are joined. An end
    token that preprocessing has written stays. Files are cut at any document among any number of
    lanes. Both files are mapped into memory, remote ones from the cache, so that a lane reads the
    parts that it needs. `Documents.origin` holds the number of the document in its file.

    Args:
        paths: a `.idx` or `.bin`, the prefix that both share, a directory, a glob or brace
            expansion, local or any fsspec URL; or several.
        reading: how a lane reads the files.
        storage: how files are reached and cached.

    Raises:
        ConfigError: a file without its partner, an index that is not one, is damaged, or is of
            multimodal data or floats; when the dataset is built.
    """

    endings = (".idx",)

    @explained
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(reading=reading, storage=storage)
        self.paths = named_paths(paths)
        refuse_repeated(self.paths)

    def list_shards(self) -> Manifest:
        found = {info.path: info for path in self.paths for info in self._list(path)}
        missing = sorted({_partner(path) for path in found} - set(found))
        if missing:
            found |= {info.path: info for info in self.storage.list(missing)}
        bins = [found[path] for path in sorted(found) if has_ending(path, (".bin",))]
        indexes = [found[_partner(info.path)] for info in bins]
        headers = in_threads(self._header, indexes)
        sizes = np.array([info.num_bytes for info in bins], dtype=np.int64)
        # An empty file that should not be is an error, so it must be read.
        least = np.array([min(header.sequences, 1) for header in headers], dtype=np.int64)
        details = {
            "headers": headers,
            "indexes": indexes,
            "documents": np.array([header.documents for header in headers], dtype=np.int64),
        }
        return Manifest.of_files(bins, np.maximum(sizes, least), details)

    def _list(self, path: str) -> list[FileInfo]:
        """The files that a path names, of which some may lack their partner."""
        try:
            return self.storage.list(path, endings=tuple(_PARTNER))
        except ConfigError:
            try:
                return self.storage.list(f"{path}.idx")  # it was a prefix
            except ConfigError:
                pass
            raise

    def _header(self, index: FileInfo) -> Header:
        head = self.storage.read_range(index.path, 0, min(HEADER_BYTES, index.num_bytes))
        return parse_header(head, index.num_bytes, shown(index.path))

    def describe(self) -> dict[str, Any]:
        details = self.manifest.details
        kinds = sorted({INTEGER_DTYPES[header.kind].name for header in details["headers"]})
        return {**super().describe(), "dtypes": kinds, "documents": int(details["documents"].sum())}

    def estimate_tokens(self) -> int:
        """The exact number of tokens."""
        headers: list[Header] = self.manifest.details["headers"]
        item_bytes = [INTEGER_DTYPES[header.kind].itemsize for header in headers]
        return int((self.manifest.num_bytes // np.array(item_bytes)).sum())

    @contextmanager
    def open_flat(self, shard: int) -> Iterator[FlatFile]:
        details = self.manifest.details
        header: Header = details["headers"][shard]
        with self.open_listed(details["indexes"][shard]) as idx, self.open_shard(shard) as path:
            data = map_file(path)
            yield FlatFile(data, header.kind, 0, Index(map_file(idx), header, len(data)))


def _partner(path: str) -> str:
    """The index of a `.bin`, or the `.bin` of an index.

    Raises:
        ConfigError: it is neither.
    """
    ending = path[-4:].lower()
    if ending not in _PARTNER:
        raise ConfigError(
            f"{shown(path)} is neither a .bin nor a .idx.",
            "A dataset of Megatron-LM has one of each.",
            "Name either of them, or the prefix that both share.",
        )
    return path[:-4] + _PARTNER[ending]
