"""The MDS format, version 2: the files of a folder, and the content of an `index.json`.

A directory holds `index.json` and shards. A shard is ``u32 n | u32 offsets[n + 1] | JSON config |
samples``, offsets counting from the file's beginning; a sample is ``u32 size`` for each column of
variable size, then the bytes of all columns, in the order of the index. All little-endian.
A value of an array column (`ndarray`) begins with the facts that its encoding leaves open: a byte
for the dtype, then ``ndim << 2 | log2(bytes per dimension)`` and the dimensions.
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
from streampack.file_info import shown, split_url
from streampack.names.listing import refuse_repeated
from streampack.storage.storage import Storage

_WRITE_AGAIN = "Write the shards again with mosaicml-streaming's MDSWriter, or check the path."
_LARGEST = 1 << 33  # limit of any number about a shard: its samples begin at 32-bit offsets


@dataclass(frozen=True, slots=True)
class ShardColumns:
    """The columns of a shard, in stored order: names, encodings, bytes (0 where it varies)."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard as its index describes it.

    Attributes:
        name: path of the uncompressed file, relative to the index.
        num_bytes: size of the uncompressed file.
        samples: number of samples.
        hashes: algorithm -> hexadecimal digest of the uncompressed file.
        zip_name: path of the compressed file, or "" if there is none.
        zip_bytes, zip_hashes: size and digests of the compressed file.
        codec: compression of that file.
    """

    name: str
    num_bytes: int
    samples: int
    hashes: dict[str, str]
    layout: ShardColumns
    zip_name: str = ""
    zip_bytes: int = 0
    zip_hashes: dict[str, str] | None = None
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read, and the type of its values.

    Attributes:
        name: name of the column; number: its index among the shard's columns.
        setting: use of the column: "text", "image" (the bytes of a file), "tokens", "loss_mask",
            "token_fields" (arrays of numbers), "document_fields" (a number per sample) or "names"
            (a text per sample, read as a key).
        dtype: dtype of its numbers; None if each sample stores its own.
        has_shape: True if each sample stores its shape.
        shape: shape of the values of a token.
    """

    name: str
    number: int
    setting: str
    dtype: np.dtype[Any] | None = None
    has_shape: bool = False
    shape: tuple[int, ...] = ()

    @property
    def kind(self) -> int:
        """The dtype as a key of `INTEGER_DTYPES`, unsigned for other numbers; 0 without a dtype."""
        if self.dtype is None:
            return 0
        return self.dtype.itemsize + (16 if self.dtype.kind == "i" else 0)


def parse_index(text: bytes, where: str) -> Iterator[IndexedShard]:
    """Yield the shards of an index, one at a time; `where` is its path, for messages.

    Raises:
        ConfigError: `text` is no MDS index of version 2, or names files outside its directory.
    """
    try:
        index = json.loads(text)
        _check_version(index.get("version", 2), where)  # the versions of shards are required
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
    """Raise `ConfigError` unless this is version 2, the only one with a defined layout."""
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
        layout=ShardColumns(names, encodings, sizes),
        **fields,
    )


def _natural(value: Any) -> int:
    """Check a size or count of a shard: the numbers of an index are added up in 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r:.80} is not a size that a shard can have")
    return value


def _inside(name: Any, where: str) -> str:
    """Check that a file name from an index does not lead out of the index's directory."""
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
    """Return True if a file may have the name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def column_of(
    layout: ShardColumns,
    name: str,
    setting: str,
    where: str,
    dtype: str | None = None,
    shape: tuple[int, ...] = (),
) -> Column:
    """Return the column `name` for the use `setting`; see `Column`.

    Args:
        layout: layout of the shard.
        name, setting: name and use of the column.
        where: path of the index, for messages.
        dtype: dtype of the integers in a column of `bytes`.
        shape: shape of the values of a token.

    Raises:
        ConfigError: there is no such column, or its encoding does not fit the use.
    """
    number = layout.names.index(name) if name in layout.names else -1
    encoding = layout.encodings[number] if number >= 0 else ""
    base, *parameters = encoding.split(":")
    fits_shape = len(parameters) < 2 or _shape_in(parameters[1])[1:] == shape
    array = (
        base == "ndarray"
        and len(parameters) < 3
        and fits_shape
        and (not parameters or parameters[0] in _NUMBERS)
    )
    value_dtype = np.dtype(parameters[0]) if array and parameters else None
    has_shape = len(parameters) < 2
    if setting in TEXTS:
        fits = encoding == "str" and dtype is None
    elif setting == "image":
        fits = encoding in ("bytes", "jpeg", "png")
    elif setting == "document_fields":
        fits, has_shape = encoding in ("int", *_NUMBERS), False
        value_dtype = np.dtype({"int": "int64"}.get(encoding, encoding)) if fits else None
    elif encoding == "bytes" and dtype is not None:
        fits, value_dtype, has_shape = True, np.dtype(dtype), False
    elif setting == "token_fields":
        fits = value_dtype is not None
    else:
        fits = array and (
            value_dtype is None or value_dtype.kind in ("iu" if setting == "tokens" else "iub")
        )
        fits = fits and (dtype is None or setting != "tokens")
    if not fits:
        columns = zip(layout.names, layout.encodings, strict=True)
        raise ConfigError(
            f"Column {name!r} of {where} {'is ' + encoding if encoding else 'does not exist'}, and "
            f"it is to be read as {setting}{f' of {dtype}' if dtype else ''}.",
            remedy="Name another; dtype= is for ids in `bytes`. The columns are "
            f"{', '.join(f'{column} ({kind})' for column, kind in columns)}.",
            setting={"names": "document_fields"}.get(setting, setting)
            if dtype is None or setting != "tokens"
            else "dtype",
            path=where,
        )
    return Column(name, number, setting, value_dtype, has_shape, shape)


def _shape_in(encoding: str) -> tuple[int, ...]:
    """Return the shape of all arrays that an encoding declares, such as "700,48,8"."""
    sizes = encoding.split(",")
    return tuple(map(int, sizes)) if all(size.isdecimal() for size in sizes) else (0, 0)


def kinds_of(layout: ShardColumns) -> dict[str, str]:
    """Return the kinds of columns by name: "tokens" if it may hold an array, "text" or ""."""
    known = {"str": "text", "ndarray": "tokens", "bytes": "tokens"}
    kinds = [known.get(encoding.partition(":")[0], "") for encoding in layout.encodings]
    return dict(zip(layout.names, kinds, strict=True))


#: Uses of columns of texts.
TEXTS = ("text", "names")
#: Encodings of numbers in a column.
_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
CODECS = ("br", "bz2", "gz", "snappy", "zstd")
#: Endings of the names of shards.
SHARDS = (".mds", *(f".mds.{codec}" for codec in CODECS))


def read_index(folder: str, storage: Storage) -> bytes:
    """Read a folder's index.

    Raises:
        ConfigError: there is no index.
        ContentError, StorageError: the index cannot be read.
    """
    where = f"{folder}/index.json"
    try:
        if split_url(where)[0] is not None:
            return storage.remote.read_start(where, doing="Looking up")
        return storage.read_range(where, 0, storage.size(where))
    except StorageError as error:
        if error.failure != "missing":
            raise
        raise ConfigError(
            f"An MDS corpus must have an index, but {shown(where)} does not exist.",
            remedy="Pass the folder with index.json, or a list of such folders.",
            path=shown(where),
        ) from error


def new_hash(algorithm: str) -> Any:
    """Return a new hash object, from hashlib or else from the xxhash package."""
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm)
    try:
        import xxhash

        return {name: getattr(xxhash, name) for name in xxhash.algorithms_available}[algorithm]()
    except (ImportError, KeyError) as error:
        raise ConfigError(
            f"validate_hash must be a hash of hashlib or xxhash, got {algorithm!r}.",
            remedy=f"Name a hash of the index; `{pip_command('mds')}` installs xxhash.",
            setting="validate_hash",
        ) from error


def folders_of(paths: Sequence[str]) -> list[str]:
    """Return the directories of a corpus, given them or their indexes; local ones as absolute.

    Raises:
        ConfigError: two paths lead to the same directory.
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
    """Return True if a local directory holds a compressed shard in its uncompressed form only.

    The caches of mosaicml-streaming look like this.
    """
    protocol, path = split_url(folder)
    names = [
        protocol is None and Path(path, name).exists() for name in (shard.zip_name, shard.name)
    ]
    return names == [False, True]
