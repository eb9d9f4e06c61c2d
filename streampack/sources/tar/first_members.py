"""The first members of tar shards: what may be their documents, and what stands beside."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from streampack.reading.fields import LOSS_FIELDS
from streampack.reading.padding import ATTENTION_MASK
from streampack.reading.records import BrokenDocumentError, kind_of, record_of
from streampack.sources.tar.headers import is_header
from streampack.sources.tar.key import TEXT_ENDINGS
from streampack.storage.decompression import DamagedError, codec_of, open_content
from streampack.storage.storage import Storage

_PEEKED = 64  # members of a shard that are looked at
_HEAD_BYTES = 4 << 20  # of a shard, in which they are looked for
_PART = 64 << 10


@dataclass(frozen=True, slots=True)
class FirstMembers:
    """What the first members of a shard are.

    Attributes:
        shard: its path.
        endings: their names after the first dot, in lower case, each once.
        fields: of the first JSON or .npz file of an ending, the kinds of its fields by name.
    """

    shard: str
    endings: Sequence[str] = ()
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, shard: str, storage: Storage) -> FirstMembers:
        """Those of a shard; of a damaged one, those before the damage."""
        data, _ = head_of(shard, storage, _HEAD_BYTES)
        return cls.in_archive(shard, data)

    @classmethod
    def in_archive(cls, shard: str, data: NDArray[np.uint8]) -> FirstMembers:
        """Those of a shard whose uncompressed bytes are `data` (B,), or begin with them."""
        fields: dict[str, Mapping[str, str]] = {}
        head = BytesIO(data[:_HEAD_BYTES].tobytes())
        # Reading the shard says what is damaged, for which tarfile has no common class of errors.
        with suppress(Exception), tarfile.open(fileobj=head) as archive:
            for _, member in zip(range(_PEEKED), archive, strict=False):
                stem, _, ending = PurePosixPath(member.name).name.lower().partition(".")
                if member.isfile() and stem and ending and not fields.get(ending):
                    content = archive.extractfile(member)
                    fields[ending] = _fields_in(ending, content.read() if content else b"")
        return cls(shard, tuple(fields), {name: found for name, found in fields.items() if found})

    def beside(self, key: str) -> Mapping[str, str]:
        """What stands beside documents in files of an ending."""
        arrays = [name for name in self.endings if name != key and name.endswith(".npy")]
        return {**{name[:-4]: "tokens" for name in arrays}, **self.fields.get(key, {})}

    def instead_of(self, key: str) -> str:
        """What a message adds about files of an ending that samples lack; "" if some have it."""
        if key in self.endings or not self.endings:
            return ""
        there = ", ".join(f".{name:.40}" for name in sorted(self.endings)[:9])
        return f" (the first files of its shard end in {there})"

    def columns(self) -> dict[str, str]:
        """What may be the documents: ".npy" and ".txt" files by their endings, and the fields of
        JSON and .npz files as "json:text". Kinds are those of `Fields.found_in`.
        """
        kinds: dict[str, str] = {}
        for name in self.endings:
            last = name.rpartition(".")[2]
            if last in ("json", "npz"):
                kinds |= {f"{name}:{of}": kind for of, kind in self.fields.get(name, {}).items()}
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


def head_of(shard: str, storage: Storage, most: int) -> tuple[NDArray[np.uint8], int]:
    """The content at the beginning of a shard, and about how many bytes it is stored in.

    Of a compressed one it has about `most` bytes. Where they were stored is known the less, the
    fewer they are: to blocks of a compression.
    """
    size = storage.size(shard)
    stored = storage.read_range(shard, 0, min(size, _HEAD_BYTES))
    data = np.frombuffer(stored, dtype=np.uint8)
    codec = None if is_header(data) else codec_of(stored)
    if codec is None:
        return data, len(stored)
    parts, length = [b""], 0
    with open_content(stored, codec) as content:
        with suppress(DamagedError):  # the head of a larger file ends too early
            while length < most and (part := content.file.read(_PART)):
                parts.append(part)
                length += len(part)
        whole = length < most
        data = np.frombuffer(b"".join(parts), dtype=np.uint8)
        return data, len(stored) if whole else max(content.stored(length), 1)
