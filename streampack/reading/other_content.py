"""What a file is that is read as text by its name, and is not text in UTF-8."""

from __future__ import annotations

from typing import NamedTuple

from streampack.storage.decompression import CODEC_OF_ENDING, codec_of

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
