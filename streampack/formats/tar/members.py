"""The members of tar shards: the documents' files, other files of a sample, beginnings of parts.

Headers lead only from one member to the next, and lanes that share an archive read many parts of
it. So a process reads its headers once, up to the last part that begins inside it.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.file_info import FileInfo
from streampack.files.file_source import HEAD_BYTES
from streampack.files.integer_arrays import integer_kind
from streampack.files.json_records import record_of
from streampack.formats.tar.headers import ALL, MORE, is_header, scan_file
from streampack.sources.fields import ATTENTION_MASK, LOSS_FIELDS
from streampack.sources.records import BrokenDocumentError, kind_of
from streampack.storage.decompression import DamagedError, codec_of, open_content
from streampack.storage.files import StoredFile
from streampack.storage.storage import Storage

TEXT_ENDINGS = ("txt", "text", "md")


class TarColumn(NamedTuple):
    """The member of a sample, and the field in it, that hold the document.

    Attributes:
        key: the ending of the files, in lower case: "npy".
        field: in a JSON or .npz file; "" in others.
        form: format of the file: "npy", "npz", "text", "json" or "raw".
    """

    key: str
    field: str
    form: str

    @classmethod
    def of(cls, name: str, dtype: str | None, tokenized: bool) -> TarColumn:
        """Return the column of a name such as "npy" or "json:text".

        Args:
            name: the ending, and behind a colon the field.
            dtype: dtype of bare arrays.
            tokenized: True if token ids are wanted.

        Raises:
            ConfigError: such files cannot be read, or cannot hold such documents.
        """
        if dtype is not None:
            integer_kind(dtype)
        key, _, field = name.partition(":")
        key = key.lower().removeprefix(".")
        last = key.rpartition(".")[2]
        form = "raw" if dtype is not None else "text" if last in TEXT_ENDINGS else last
        wanted = ("json", "npy", "npz", "raw") if tokenized else ("json", "text")
        if form not in wanted or bool(field) != (form in ("json", "npz")):
            setting = "tokens" if tokenized else "text"
            raise ConfigError(
                f"{setting}={name!r} is not a kind of tar member that can be read.",
                remedy='Name text as "txt" or "json:FIELD", and tokens as "npy", "npz:FIELD" or '
                '"json:FIELD", or by any ending with dtype= for bare arrays.',
                setting=setting,
            )
        return cls(key, field, form)


_PEEKED = 64  # number of a shard's members that are inspected
#: Bytes of a shard that are searched for its first members, at most.
LARGEST_HEAD_BYTES = 4 << 20
_PART = 64 << 10


@dataclass(frozen=True, slots=True)
class FirstMembers:
    """The endings and fields of a shard's first members.

    Attributes:
        endings: their names after the first dot, in lower case, each once.
        fields: by ending, the kinds of the fields in its first JSON or .npz file, by name.
    """

    endings: Sequence[str] = ()
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, shard: FileInfo, storage: Storage) -> FirstMembers:
        """Inspect the first members of a shard; in a damaged one, the members before the damage."""
        size = HEAD_BYTES
        while True:
            data, _ = head_of(shard, storage, LARGEST_HEAD_BYTES, size)
            fields: dict[str, Mapping[str, str]] = {}
            head, count = BytesIO(data[:LARGEST_HEAD_BYTES].tobytes()), 0
            # Damage is reported when the shard is read; tarfile has no common class of errors.
            with suppress(Exception), tarfile.open(fileobj=head) as archive:
                for member in islice(archive, _PEEKED):
                    stem, _, ending = PurePosixPath(member.name).name.lower().partition(".")
                    if member.isfile() and stem and ending and not fields.get(ending):
                        content = archive.extractfile(member)
                        fields[ending] = _fields_in(ending, content.read() if content else b"")
                    count += 1
            is_whole = (
                size >= min(shard.num_bytes, LARGEST_HEAD_BYTES) or len(data) >= LARGEST_HEAD_BYTES
            )
            if is_whole or count == _PEEKED:
                break
            size = min(size * max(2, 5 * _PEEKED // (4 * max(count, 1))), LARGEST_HEAD_BYTES)
        return cls(tuple(fields), {name: kinds for name, kinds in fields.items() if kinds})

    def beside(self, key: str) -> Mapping[str, str]:
        """Return the kinds of the fields beside documents in files of the ending `key`."""
        arrays = [name for name in self.endings if name != key and name.endswith(".npy")]
        return {**{name[:-4]: "tokens" for name in arrays}, **self.fields.get(key, {})}

    def columns(self) -> dict[str, str]:
        """Return possible documents: ".npy" and ".txt" files by their endings, and the fields of
        JSON and .npz files as "json:text". Kinds are as in `Fields.found_in`.
        """
        kinds: dict[str, str] = {}
        for name in self.endings:
            last = name.rpartition(".")[2]
            if last in ("json", "npz"):
                kinds |= {
                    f"{name}:{field}": kind for field, kind in self.fields.get(name, {}).items()
                }
            elif last == "npy" and name[:-4] not in (*LOSS_FIELDS, ATTENTION_MASK):
                kinds[name] = "tokens"
            elif last in TEXT_ENDINGS:
                kinds[name] = "text"
        return kinds


def _fields_in(ending: str, content: bytes) -> Mapping[str, str]:
    try:
        if ending.endswith("json"):
            return {name: kind_of(value) for name, value in record_of(content).items()}
        if ending.endswith("npz"):
            names = zipfile.ZipFile(BytesIO(content)).namelist()
            return {name.removesuffix(".npy"): "tokens" for name in names}
    except (BrokenDocumentError, zipfile.BadZipFile):
        pass
    return {}


def head_of(
    shard: FileInfo, storage: Storage, most: int, stored_bytes: int = LARGEST_HEAD_BYTES
) -> tuple[NDArray[np.uint8], int]:
    """Return the content at the beginning of a shard, and about how many stored bytes hold it.

    Of a compressed shard it has about `most` bytes. The stored bytes are known only to blocks of a
    compression, so their number is the less exact, the fewer they are.
    """
    with storage.open(shard) as file:
        stored = file.read(0, stored_bytes)
    data = np.frombuffer(stored, dtype=np.uint8)
    codec = None if is_header(data) else codec_of(stored)
    if codec is None:
        return data, len(stored)
    parts, length = [b""], 0
    with open_content(stored, codec) as content:
        with suppress(DamagedError):  # expected: the head of a larger file ends too early
            while length < most and (part := content.file.read(_PART)):
                parts.append(part)
                length += len(part)
        whole = length < most
        data = np.frombuffer(b"".join(parts), dtype=np.uint8)
        return data, len(stored) if whole else max(content.stored(length), 1)


_STEP = 4096  # samples per scan
_KEPT_SHARDS = 16


class Samples:
    """Beginnings of the samples in a source's archives; headers are read once, as far as needed.

    Args:
        extension: extension of the wanted files; see `scan_tar`.
    """

    def __init__(self, extension: NDArray[np.uint8]) -> None:
        self._extension = extension
        self._found: dict[int, tuple[NDArray[np.int64], int, int]] = {}

    def scanned(self, shard: int) -> int:
        """Return the byte up to which the headers of an archive were read."""
        return self._found.get(shard, (None, 0))[1]

    def first(
        self, shard: int, file: StoredFile, document: int | None, least: int
    ) -> tuple[int, int, int]:
        """Return the index of a sample, the byte at which it begins, and the scan's outcome so far.

        Args:
            shard: index of the archive; file: the archive.
            document: index of the sample; None is the first that begins at byte `least` or later.
        """
        # The first byte of each sample and of the next; the scan's position and its outcome.
        begins, end, outcome = self._found.pop(shard, (np.zeros(1, dtype=np.int64), 0, MORE))
        while outcome == MORE and (
            begins[-1] < least if document is None else len(begins) <= document
        ):
            scanned = scan_file(file, end, self._extension, ALL, _STEP, few=True)
            begins = np.append(begins, scanned.ends)
            end, outcome = scanned.end, scanned.outcome
        self._found = dict([*self._found.items()][1 - _KEPT_SHARDS :])
        self._found[shard] = begins, end, outcome
        samples = len(begins) - 1
        known = begins if outcome == MORE else begins[:samples]
        number = int(np.searchsorted(known, least)) if document is None else document
        if number < len(known):
            return number, int(known[number]), MORE
        return samples, end, outcome
