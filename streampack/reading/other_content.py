"""What a file is that is read as text by its name, and is not text in UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from streampack.storage.decompression import CODEC_OF_ENDING, sniff_codec

_NAMES = {"gz": "gzip", "zstd": "zstd", "bz2": "bzip2"}


class OtherContent(NamedTuple):
    """What it is, after "it": "is gzip"; and what to do, a clause as well."""

    what: str
    remedy: str


def other_content(path: Path, *, packed: bool) -> OtherContent | None:
    """What the first bytes of a file say that it is; None if they may be text in UTF-8.

    Args:
        path: of the file.
        packed: True if compressed files are read under names that say so.
    """
    if (codec := sniff_codec(path)) is not None:
        ending = next(end for end, known in CODEC_OF_ENDING.items() if known == codec)
        name = f'Add "{ending}" to its name' if packed else "Unpack it"
        return OtherContent(f"is {_NAMES[codec]}", name)
    with open(path, "rb") as file:
        return other_than_text(file.read(4))


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
