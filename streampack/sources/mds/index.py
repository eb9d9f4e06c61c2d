"""The MDS format, version 2: the files of a folder, and the content of an `index.json`.

A directory holds `index.json` and shards. A shard is ``u32 n | u32 offsets[n + 1] | JSON config |
samples``, offsets counting from the file's beginning; a sample is ``u32 size`` for each column of
variable size, then the bytes of all columns, in the order of the index. All little-endian.
An array column (`ndarray`) begins with what its encoding does not say: a byte for the dtype, then
``ndim << 2 | log2(bytes per dimension)`` and the dimensions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streampack.errors import ConfigError, StorageError
from streampack.extras import pip_command
from streampack.storage.listing import refuse_repeated
from streampack.storage.remote import shown, split_url
from streampack.storage.storage import Storage

_WRITE_AGAIN = "Write the shards again with mosaicml-streaming's MDSWriter, or check the path."
_LARGEST = 1 << 33  # of any number about a shard: its samples begin at 32-bit offsets


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a shard, in stored order: names, encodings, bytes (0 where it varies)."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard as its index describes it.

    Attributes:
        name: the uncompressed file, relative to the index.
        num_bytes: its size.
        samples: how many it holds.
        hashes: algorithm -> hexadecimal digest of the uncompressed file.
        zip_name: the compressed file, or "" if there is none.
        zip_bytes, zip_hashes: its size and digests.
        codec: what it is compressed with.
    """

    name: str
    num_bytes: int
    samples: int
    hashes: dict[str, str]
    layout: Layout
    zip_name: str = ""
    zip_bytes: int = 0
    zip_hashes: dict[str, str] | None = None
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """How to read a column.

    Attributes:
        name: of it; number: its place among the shard's columns.
        setting: what it is read as: "text", "image" (the bytes of a file), "tokens", "loss_mask",
            "token_fields" (arrays of numbers) or "document_fields" (a number per sample).
        dtype: of its numbers; None if each sample has its own.
        has_shape: True if each sample has its shape.
    """

    name: str
    number: int
    setting: str
    dtype: np.dtype[Any] | None = None
    has_shape: bool = False

    @property
    def kind(self) -> int:
        """The dtype as in `INTEGER_DTYPES`, unsigned for other numbers; 0 if there is none."""
        if self.dtype is None:
            return 0
        return self.dtype.itemsize + (16 if self.dtype.kind == "i" else 0)


def parse_index(text: bytes, where: str) -> Iterator[IndexedShard]:
    """The shards of an index, one at a time; `where` is its path, for messages.

    Raises:
        ConfigError: not an MDS index of version 2, or one that names files outside its directory.
    """
    try:
        index = json.loads(text)
        _check_version(index.get("version", 2), where)  # shards have theirs, which must be there
        for shard in index["shards"]:
            yield _indexed_shard(shard, where)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{where} is not an MDS index: {type(error).__name__}: {error}.",
            "Check the path, or write the index again.",
            path=where,
        ) from error


def _check_version(version: Any, where: str) -> None:
    """Raise `ConfigError` unless this is version 2, the only one that says what the fields mean."""
    if version != 2:
        raise ConfigError(
            f"{where} is of version {version!r:.80}, and only MDS version 2 can be read.",
            remedy=_WRITE_AGAIN,
            path=where,
        )


def _indexed_shard(shard: dict[str, Any], where: str) -> IndexedShard:
    if shard["format"] != "mds":
        raise ValueError(f"a shard is of format {shard['format']!r:.80}")
    _check_version(shard.get("version"), where)
    names = tuple(str(name) for name in shard["column_names"])
    encodings = tuple(str(encoding) for encoding in shard["column_encodings"])
    sizes = tuple(_natural(size or 0) for size in shard["column_sizes"])
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError("column names, encodings and sizes differ in number")
    raw, zipped = shard["raw_data"], shard.get("zip_data")
    fields: dict[str, Any] = {}
    if zipped:
        fields = {
            "zip_name": _inside(zipped["basename"], where),
            "zip_bytes": _natural(zipped["bytes"]),
            "zip_hashes": dict(zipped["hashes"]),
            "codec": str(shard["compression"]).split(":")[0],
        }
    return IndexedShard(
        name=_inside(raw["basename"], where),
        num_bytes=_natural(raw["bytes"]),
        samples=_natural(shard["samples"]),
        hashes=dict(raw["hashes"]),
        layout=Layout(names, encodings, sizes),
        **fields,
    )


def _natural(value: Any) -> int:
    """A size or a number, if a shard can have it: those of an index are added up in 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r:.80} is not a size that a shard can have")
    return value


def _inside(name: Any, where: str) -> str:
    """A file name from an index, if it cannot lead out of the directory of the index."""
    parts = str(name).replace("\\", "/").split("/")
    if ":" in parts[0] or any(part in ("", ".", "..") for part in parts) or not _is_name(str(name)):
        raise ConfigError(
            f"{where} names the shard {name!r}, and an index may only name files in its directory.",
            remedy="Write the index again with plain file names, and find out where this one came "
            "from.",
            path=where,
        )
    return str(name)


def _is_name(text: str) -> bool:
    """True if a file may have the name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def column_of(
    layout: Layout, name: str, setting: str, where: str, dtype: str | None = None
) -> Column:
    """How to read the column `name` as what the setting says; see `Column`.

    Args:
        layout: of the shard.
        name, setting: of the column.
        where: the index is, for messages.
        dtype: of a column of `bytes` with integers.

    Raises:
        ConfigError: there is no such column, or its encoding is another one.
    """
    number = layout.names.index(name) if name in layout.names else -1
    encoding = layout.encodings[number] if number >= 0 else ""
    base, *rest = encoding.split(":")
    flat = len(rest) < 2 or (len(rest) == 2 and rest[1].isdecimal())
    array = base == "ndarray" and flat and (not rest or rest[0] in _NUMBERS)
    found = np.dtype(rest[0]) if array and rest else None
    has_shape = len(rest) < 2
    if setting == "text":
        fits = encoding == "str" and dtype is None
    elif setting == "image":
        fits = encoding in ("bytes", "jpeg", "png")
    elif setting == "document_fields":
        fits, has_shape = encoding in ("int", *_NUMBERS), False
        found = np.dtype({"int": "int64"}.get(encoding, encoding)) if fits else None
    elif encoding == "bytes" and dtype is not None:
        fits, found, has_shape = True, np.dtype(dtype), False
    elif setting == "token_fields":
        fits = found is not None
    else:
        fits = array and (found is None or found.kind in ("iu" if setting == "tokens" else "iub"))
        fits = fits and (dtype is None or setting != "tokens")
    if not fits:
        columns = zip(layout.names, layout.encodings, strict=True)
        raise ConfigError(
            f"Column {name!r} of {where} {'is ' + encoding if encoding else 'does not exist'}, and "
            f"it is to be read as {setting}{f' of {dtype}' if dtype else ''}.",
            remedy="Name another; dtype= is for ids in `bytes`. The columns are "
            f"{', '.join(f'{column} ({kind})' for column, kind in columns)}.",
            setting=setting if dtype is None or setting != "tokens" else "dtype",
            path=where,
        )
    return Column(name, number, setting, found, has_shape)


def kinds_of(layout: Layout) -> dict[str, str]:
    """Columns by name: "tokens" for those that may hold an array, "text" or ""."""
    known = {"str": "text", "ndarray": "tokens", "bytes": "tokens"}
    kinds = [known.get(encoding.partition(":")[0], "") for encoding in layout.encodings]
    return dict(zip(layout.names, kinds, strict=True))


#: What a column may hold.
_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
CODECS = ("br", "bz2", "gz", "snappy", "zstd")
#: How the names of shards end.
SHARDS = (".mds", *(f".mds.{codec}" for codec in CODECS))


def read_index(folder: str, storage: Storage) -> bytes:
    """The content of a folder's index.

    Raises:
        ConfigError: there is none.
        ContentError, StorageError: it cannot be read.
    """
    where = f"{folder}/index.json"
    try:
        return storage.read_range(where, 0, storage.size(where))
    except StorageError as error:
        if error.failure != "missing":
            raise
        raise ConfigError(
            f"There is no {shown(where)}, which lists the shards of an MDS corpus.",
            remedy="Pass the folders that have one; several may be passed as a list.",
            path=shown(where),
        ) from error


def new_hash(algorithm: str) -> Any:
    """A new hash object, from hashlib or else from the xxhash package."""
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm)
    try:
        import xxhash

        return {name: getattr(xxhash, name) for name in xxhash.algorithms_available}[algorithm]()
    except (ImportError, KeyError) as error:
        raise ConfigError(
            f"validate_hash is {algorithm!r}, which neither hashlib nor the xxhash package has.",
            remedy=f"Name a hash of the index; `{pip_command('mds')}` installs xxhash.",
            setting="validate_hash",
        ) from error


def folders_of(paths: Sequence[str]) -> list[str]:
    """The directories of a corpus, by their paths or those of their indexes; local ones absolute.

    Raises:
        ConfigError: two are the same directory.
    """
    folders: list[str] = []
    for path in paths:
        folder = "." if path == "index.json" else path.removesuffix("/index.json")
        protocol, rest = split_url(folder)
        local = os.path.abspath(os.path.expanduser(rest))
        folders.append(local if protocol is None else folder.rstrip("/"))
    refuse_repeated(folders)
    return folders


def only_raw(folder: str, shard: IndexedShard) -> bool:
    """True if a local directory holds a compressed shard in its uncompressed form only.

    The caches of mosaicml-streaming look like this.
    """
    protocol, rest = split_url(folder)
    there = [
        protocol is None and Path(rest, name).exists() for name in (shard.zip_name, shard.name)
    ]
    return there == [False, True]
