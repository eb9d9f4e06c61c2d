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

from streampack.errors import ConfigError, StorageError
from streampack.sources.raw_bytes import INTEGER_DTYPES, integer_kind
from streampack.storage.listing import has_ending, refuse_repeated
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
    """How to read a column of integers.

    Attributes:
        number: its place among the shard's columns.
        kind: dtype as in `INTEGER_DTYPES`, 0 if each sample has its own.
        has_shape: True if each sample has its shape.
    """

    number: int
    kind: int
    has_shape: bool


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
        if b'"chunks"' in text and b'"data_format"' in text:
            raise ConfigError(
                f"{where} is an index of litdata.",
                "Its chunks can be read by litdata alone: they do not say what they hold.",
                "Pass lambda: (dataset[i] for i in range(len(dataset))), with its "
                "StreamingDataset as the dataset.",
            ) from error
        raise ConfigError(
            f"{where} is not an MDS index: {type(error).__name__}: {error}.",
            "An index lists the shards and what they hold.",
            "Check the path, or write the index again.",
        ) from error


def _check_version(version: Any, where: str) -> None:
    """Raise `ConfigError` unless this is version 2, the only one that says what the fields mean."""
    if version != 2:
        named = "names no version" if version is None else f"is of version {version!r:.80}"
        raise ConfigError(
            f"{where} {named}.",
            "Only MDS version 2 can be read; in another one the same fields may mean other bytes.",
            _WRITE_AGAIN,
        )


def _indexed_shard(shard: dict[str, Any], where: str) -> IndexedShard:
    if shard["format"] != "mds":
        raise ConfigError(
            f"{where} lists a shard of format {shard['format']!r:.80}.",
            "Only MDS version 2 can be read.",
            _WRITE_AGAIN,
        )
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
    """A file name from an index, if it cannot lead out of the directory of the index.

    `..` is refused, and so are characters with a meaning in URLs and patterns: an index is
    untrusted, and these names become part of a path that is opened.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    strange = not isinstance(name, str) or not set(name).isdisjoint("\\:%?#*[]{}~")
    if strange or any(part in ("", ".", "..") for part in parts) or not name.isprintable():
        raise ConfigError(
            f"{where} names the shard {name!r}.",
            "An index may only name files in its own directory, so it is refused.",
            "Write the index again with plain file names, and find out where this one came from.",
        )
    return str(name)


def _number(layout: Layout, name: str, where: str) -> int:
    if name not in layout.names:
        raise ConfigError(
            f"{where} has no column {name!r}.",
            remedy=f"The columns are: {', '.join(layout.names)}.",
        )
    return layout.names.index(name)


def text_column(layout: Layout, name: str, where: str) -> Column:
    """How to read the column of text `name`.

    Raises:
        ConfigError: there is no such column, or it is of another encoding.
    """
    number = _number(layout, name, where)
    if layout.encodings[number] != "str":
        raise ConfigError(
            f"Column {name!r} of {where} has the encoding {layout.encodings[number]!r}, not `str`.",
            remedy="Name it as tokens= if it holds token ids, or name a column of text.",
        )
    return Column(number, 1, False)


def token_column(layout: Layout, name: str, argument: str, dtype: Any, where: str) -> Column:
    """How to read the integer column `name`; `argument` is the argument that names it.

    Raises:
        ConfigError: there is no such column, or its encoding is not one of integers.
    """
    number = _number(layout, name, where)
    base, *rest = layout.encodings[number].split(":")
    if base == "bytes" and not rest:
        if dtype is None:
            raise ConfigError(
                f"Column {name!r} of {where} is `bytes`.",
                "The type of its integers is unknown.",
                'Pass dtype, for example dtype="uint16".',
            )
        return Column(number, integer_kind(dtype), False)
    if base == "ndarray" and len(rest) <= 2:
        kind = integer_kind(rest[0], f"The encoding of column {name!r} of {where}") if rest else 0
        if kind and dtype is not None and kind != integer_kind(dtype):
            raise ConfigError(
                f"dtype is {dtype!r}, and column {name!r} of {where} is {rest[0]}.",
                "dtype is for columns of `bytes`, whose integers have no type yet.",
                "Leave dtype out.",
            )
        if len(rest) < 2:
            return Column(number, kind, True)
        if rest[1].isdecimal():  # one dimension
            if rest[1] != str(layout.sizes[number] // INTEGER_DTYPES[kind].itemsize):
                raise ConfigError(
                    f"Column {name!r} of {where} has {layout.sizes[number]} bytes and the encoding "
                    f"{layout.encodings[number]!r:.80}.",
                    "One of them is wrong.",
                    "Write the index again.",
                )
            return Column(number, kind, False)
    raise ConfigError(
        f"Column {name!r} of {where} has the encoding {layout.encodings[number]!r}.",
        f"{argument} needs a column of integers, and pickled ones are never read.",
        "Name another column, a text as text=, or write the shards again with one of the encoding "
        "`ndarray:uint32`.",
    )


def kinds_of(layout: Layout) -> dict[str, str]:
    """Columns by name: "tokens" for those that may hold an array, "text" or ""."""
    known = {"str": "text", "ndarray": "tokens", "bytes": "tokens"}
    kinds = [known.get(encoding.partition(":")[0], "") for encoding in layout.encodings]
    return dict(zip(layout.names, kinds, strict=True))


def mask_column(layout: Layout, name: str, where: str) -> Column:
    """How to read a mask or labels: a column of integers or booleans."""
    if name in layout.names:
        number = layout.names.index(name)
        base, *rest = layout.encodings[number].split(":")
        if base == "ndarray" and rest[:1] == ["bool"]:
            return Column(number, 1, len(rest) < 2)
        if base == "ndarray":
            return token_column(layout, name, "loss_mask", None, where)
    return token_column(layout, name, "loss_mask", "uint8", where)


CODECS = ("br", "bz2", "gz", "snappy", "zstd")
#: How the names of shards end.
SHARDS = (".mds", *(f".mds.{codec}" for codec in CODECS))
_INDEX = ("/index.json",)
_INDEX_LIMIT = 1 << 30


def read_index(folder: str, storage: Storage) -> bytes:
    """The content of a folder's index.

    Raises:
        ConfigError: there is none; the error names folders below that have one.
        ContentError, StorageError: it cannot be read.
    """
    where = f"{folder}/index.json"
    try:
        return storage.read_bytes(where, _INDEX_LIMIT)
    except StorageError as error:
        if error.failure != "missing":
            raise
        below = _folders_below(folder, storage)
        remedy = "Check the path; directories with parts of a corpus may be passed as a list."
        if below:
            more = f", or a list of those {len(below)} that have one" if below[1:] else ""
            remedy = f'Pass a folder below it that has one, "{shown(below[0])}"{more}.'
        raise ConfigError(
            f"There is no {shown(where)}.",
            "A directory of MDS shards has an index.json that lists them.",
            remedy,
        ) from error


def _folders_below(folder: str, storage: Storage) -> list[str]:
    try:
        found = storage.list(folder, endings=_INDEX)
    except (ConfigError, StorageError):  # nothing, or no listing
        return []
    return [info.path.rpartition("/")[0] for info in found if has_ending(info.path, _INDEX)]


def new_hash(algorithm: str) -> Any:
    """A new hash object, from hashlib or else from the xxhash package."""
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm)
    if not algorithm.startswith("xxh"):
        raise ConfigError(
            f"validate_hash is {algorithm!r}.",
            "No such algorithm is known.",
            'Use one that the index holds, for example "sha1" or "xxh64".',
        )
    try:
        import xxhash
    except ImportError as error:
        raise ConfigError(
            f"validate_hash is {algorithm!r} and the xxhash package is not installed.",
            "The shards cannot be checked.",
            'Install it with `pip install "streampack[mds]"`.',
        ) from error
    if algorithm not in xxhash.algorithms_available:
        return new_hash("no " + algorithm)
    return getattr(xxhash, algorithm)()


def _local(folder: str) -> Path | None:
    protocol, rest = split_url(folder)
    return Path(rest) if protocol is None else None


def folders_of(paths: Sequence[str]) -> list[str]:
    """The directories of a corpus, by their paths or those of their indexes; local ones absolute.

    Raises:
        ConfigError: a path names a shard, or two the same directory.
    """
    folders: list[str] = []
    for path in paths:
        if has_ending(path, SHARDS):
            raise ConfigError(
                f'"{shown(path)}" names shards of an MDS corpus.',
                "Which shards there are, and what they hold, is in its index.",
                f"Pass the folder: {path.rpartition('/')[0] or '.'}.",
            )
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
    local = _local(folder)
    return (
        local is not None
        and not (local / shard.zip_name).exists()
        and (local / shard.name).exists()
    )


def refuse_links(folder: str, name: str) -> None:
    """Raise `ConfigError` for a local shard that is a link to outside the index's directory."""
    local = _local(folder)
    if local is None:
        return
    target = (local / name).resolve()
    if not target.is_relative_to(local.resolve()):
        raise ConfigError(
            f"{local / name} is a link to {target}.",
            "An index may only name files in its own directory, so it is refused.",
            "Put the file itself there, or pass the directory that holds the files.",
        )
