"""Writers of one shard at a time; the same data always gives the same bytes."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack.conversion.mosaic import streaming_module
from streampack.conversion.payloads import Payload
from streampack.errors import ConfigError

__all__ = ["MDSShards", "ParquetShards", "ShardWriter", "TarShards", "shard_writer"]


@dataclass(frozen=True)
class ShardWriter(ABC):
    """Writes shards of a format.

    Attributes:
        dtype: "uint16" or "uint32" for token ids, "str" for text.
        compression: as the format names it, or None.
    """

    dtype: str
    compression: str | None = None

    #: Bytes a document takes besides its content, for cutting shards to size.
    overhead: ClassVar[int] = 16

    @abstractmethod
    def check(self) -> None:
        """Raise `ConfigError` for settings with which the first shard could not be written."""

    @abstractmethod
    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write one shard.

        Args:
            folder: an empty folder for it.
            shard: its number.
            first: number of its first document in the whole corpus.
            documents: its content.

        Returns:
            The file, with its final name, and what the index needs of it (JSON-able).
        """

    def index(self, shards: Sequence[Any]) -> tuple[str, bytes] | None:
        """Name and content of the index over all shards, or None if the format has none."""
        return None


class MDSShards(ShardWriter):
    """MDS shards of mosaicml-streaming with one column, `tokens` or `text`."""

    def check(self) -> None:
        """Raise `ConfigError` for a compression that MDS does not know."""
        with streaming_module("base.compression") as module:
            known = self.compression is None or module.is_compression(self.compression)
        if not known:
            raise ConfigError(
                f'MDS knows no compression "{self.compression}".',
                "The shards cannot be written.",
                "Use zstd, gz, br, bz2 or snappy, with a level after a colon if wanted: zstd:9.",
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``shard.00012.mds``; what the index needs is its entry for the shard."""
        column, encoding = "tokens", f"ndarray:{self.dtype}"
        if self.dtype == "str":
            column, encoding = "text", "str"
        with streaming_module("base.format.mds.writer") as module:
            # A writer per shard: a new one cannot continue what another one began.
            with module.MDSWriter(
                columns={column: encoding},
                out=str(folder),
                compression=self.compression,
                size_limit=None,
                max_workers=1,
            ) as writer:
                for document in documents:
                    writer.write({column: document})
        index = folder / "index.json"
        (info,) = json.loads(index.read_text())["shards"]
        index.unlink()
        stored = info["zip_data"] or info["raw_data"]
        written = folder / stored["basename"]
        for data in filter(None, (info["raw_data"], info["zip_data"])):
            data["basename"] = data["basename"].replace("shard.00000.", f"shard.{shard:05}.")
        return written.rename(folder / stored["basename"]), info

    def index(self, shards: Sequence[Any]) -> tuple[str, bytes] | None:
        """``index.json`` as mosaicml-streaming reads it."""
        content = {"version": 2, "shards": list(shards)}
        return "index.json", json.dumps(content, sort_keys=True).encode()


class TarShards(ShardWriter):
    """Tar shards as webdataset writes them: `000000000.npy` or `000000000.txt` per document."""

    overhead: ClassVar[int] = (
        1200  # a member's header, the padding to 512 bytes, and the header of a .npy
    )

    def check(self) -> None:
        """Raise `ConfigError` for a compression, or if webdataset is not installed."""
        if self.compression is not None:
            raise ConfigError(
                f'Compression "{self.compression}" was asked for tar shards.',
                "They are written plain, so that they can be read in bulk.",
                "Leave --compression out, or convert to mds.",
            )
        if find_spec("webdataset") is None:
            raise ConfigError(
                "webdataset is not installed.",
                "Tar shards cannot be written.",
                'Install it with `pip install "streampack[webdataset]"`.',
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``shard-00012.tar`` with one member per document."""
        from webdataset import TarWriter  # pyright: ignore[reportAttributeAccessIssue]

        file = folder / f"shard-{shard:05}.tar"
        with file.open("wb") as stream:
            with TarWriter(stream, encoder=False, mtime=0) as writer:
                for number, document in enumerate(documents, start=first):
                    name, data = _member(document)
                    writer.write({"__key__": f"{number:09}", name: data})
        return file, {"basename": file.name, "samples": len(documents)}


class ParquetShards(ShardWriter):
    """Parquet shards with one column, `tokens` or `text`, in row groups of 4,096 documents."""

    def check(self) -> None:
        """Raise `ConfigError` for a compression that Parquet does not know."""
        if self.compression not in (None, "zstd", "gz", "br", "snappy"):
            raise ConfigError(
                f'Parquet knows no compression "{self.compression}".',
                "The shards cannot be written.",
                "Use zstd, gz, br or snappy, or leave --compression out.",
            )

    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write ``part-00012.parquet``."""
        if self.dtype == "str":
            table = pa.table({"text": pa.array(documents, pa.large_string())})
        else:
            offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
            ids = np.concatenate([np.zeros(0, self.dtype), *documents]).astype(self.dtype)
            table = pa.table({"tokens": pa.LargeListArray.from_arrays(offsets, pa.array(ids))})
        file = folder / f"part-{shard:05}.parquet"
        known = {None: "none", "gz": "gzip", "br": "brotli"}
        compression = known.get(self.compression, self.compression)
        pq.write_table(table, file, row_group_size=4096, compression=compression)
        return file, {"basename": file.name, "samples": len(documents)}


def _member(document: Payload) -> tuple[str, bytes]:
    if isinstance(document, str):
        return "txt", document.encode()
    data = io.BytesIO()
    np.save(data, document, allow_pickle=False)
    return "npy", data.getvalue()


def shard_writer(to: str, dtype: str, compression: str | None) -> ShardWriter:
    """The writer for `--to`; `ConfigError` if there is none."""
    if to == "mds":
        return MDSShards(dtype, compression)
    if to == "webdataset":
        return TarShards(dtype, compression)
    if to == "parquet":
        return ParquetShards(dtype, compression)
    raise ConfigError(
        f'"{to}" is not a format to convert to.',
        "There is no writer for it.",
        "Use mds, webdataset or parquet.",
    )
