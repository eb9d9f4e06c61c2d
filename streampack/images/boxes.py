"""Boxes of mp4 and mov files, and the tables of a track.

The file is a tree of boxes (ISO/IEC 14496-12): four bytes of size, four of kind, and the content.
`moov` has a table of all frames, and stands at the end of the file unless it was put first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streampack.images.media_file import FIRST_BYTES, UncountedError

#: Bytes of a read behind the media's data, where `moov` and little else is expected.
_LAST_BYTES = 4 << 20
_MOST_MOOV_BYTES, _MOST_BOXES = 64 << 20, 1000
_FRAGMENTED = "is a fragmented mp4, and its head does not count the frames"

Read = Callable[[int, int], bytes]


def moov_of(read: Read, num_bytes: int) -> tuple[int, memoryview]:
    """Return where the content of `moov` begins, and it, by two reads in the usual cases."""
    low, at = 0, 0
    data = read(0, min(FIRST_BYTES, num_bytes))
    for _ in range(_MOST_BOXES):
        if at + 8 > num_bytes:
            break
        if at + 16 > low + len(data) < num_bytes:
            low, data = at, read(at, min(at + _LAST_BYTES, num_bytes))
        kind, begin, end = _box(memoryview(data), at - low, num_bytes - low)
        if kind == b"moov":
            if end - begin > _MOST_MOOV_BYTES:
                raise UncountedError(f"has a moov box of {end - begin} bytes")
            at = low + begin
            if end > len(data):
                begin, end, data = 0, end - begin, read(at, low + end)
            return at, memoryview(data)[begin:end]
        if kind == b"moof":
            raise UncountedError(_FRAGMENTED)
        at = low + end
    raise UncountedError("has no moov box, so it is cut or no mp4")


def _box(data: memoryview, at: int, stop: int) -> tuple[bytes, int, int]:
    """Return the kind of the box at `at`, and where its content begins and ends."""
    size, kind = struct.unpack_from(">I4s", data, at)
    begin = at + 8
    if size == 1:
        (size,) = struct.unpack_from(">Q", data, begin)
        begin += 8
    end = at + size if size else stop
    if not begin <= end <= stop:
        raise UncountedError(f"has a box {bytes(kind)!r} that ends outside the file or its parent")
    return bytes(kind), begin, end


def inside(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and content of the boxes in a box."""
    for kind, _, content in _placed(data):
        yield kind, content


def _placed(data: memoryview) -> Iterator[tuple[bytes, int, memoryview]]:
    """Yield the kind of each box in a box, where it begins there, and its content."""
    at = 0
    while at + 8 <= len(data):  # QuickTime ends some lists with four bytes of zeros
        kind, begin, end = _box(data, at, len(data))
        yield kind, at, data[begin:end]
        at = end


def child(data: memoryview, *path: bytes) -> memoryview:
    """Return the content of the first box at a path; raise `UncountedError` without it."""
    for kind in path:
        content = next((content for each, content in inside(data) if each == kind), None)
        if content is None:
            raise UncountedError(f"has no box {kind.decode()} in its track")
        data = content
    return data


def track_of(moov: memoryview, handler: bytes) -> tuple[memoryview, list[int]]:
    """Return the first track with a handler, b"vide" or b"soun", and the places of the others.

    A place is where b"trak", its kind, stands in `moov`.

    Raises:
        UncountedError: there is no such track, or the file is fragmented.
    """
    boxes, first, others = [*_placed(moov)], None, []
    if any(kind == b"mvex" for kind, *_ in boxes):
        raise UncountedError(_FRAGMENTED)
    for kind, at, track in boxes:
        if kind != b"trak":
            continue
        if first is None and bytes(child(track, b"mdia", b"hdlr")[8:12]) == handler:
            first = track
        else:
            others.append(at + 4)
    if first is None:
        raise UncountedError(f"has no track of kind {handler.decode()}")
    return first, others


def clock_of(box: memoryview) -> tuple[int, int]:
    """Return the ticks per second and the duration in ticks of `mvhd` or `mdhd`; -1 is unknown."""
    scale, duration = (
        struct.unpack_from(">IQ", box, 20) if box[0] else struct.unpack_from(">II", box, 12)
    )
    return scale, -1 if duration >= (1 << 32) - 1 else duration


def track_duration(head: memoryview) -> int:
    """Return the duration in `tkhd`, in ticks of the movie; -1 is unknown."""
    duration: int
    (duration,) = struct.unpack_from(">Q" if head[0] else ">I", head, 28 if head[0] else 20)
    return -1 if duration >= (1 << 32) - 1 else duration


def require_near(
    declared: int, scale: int, spans: Sequence[int], rounding: float, own_scale: int = 0
) -> None:
    """Raise `UncountedError` if a declared duration is known and is no span of the track.

    Args:
        declared: duration in ticks of `scale`.
        spans: durations of the track, as different programs count them.
        rounding: ticks by which they may differ.
        own_scale: ticks per second of these; 0 means `scale`.
    """
    ticks = declared if not own_scale else declared * own_scale / scale
    if declared > 0 and all(abs(ticks - span) > rounding for span in spans):
        seconds = spans[0] / (own_scale or scale)
        raise UncountedError(f"declares {declared / scale:.6g} seconds, and has {seconds:.6g}")


def runs_of(box: memoryview, signed: bool = False) -> NDArray[np.int64]:
    """Return the (N, 2) runs of `stts` or `ctts`: a count of frames and a value for each."""
    (count,) = struct.unpack_from(">I", box, 4)
    if 8 + 8 * count > len(box):
        raise UncountedError("has a table of times that is cut")
    runs = np.frombuffer(box, ">u4", 2 * count, 8).reshape(-1, 2)
    values = runs[:, 1].view(">i4") if signed else runs[:, 1]
    return np.column_stack((runs[:, 0].astype(np.int64), values.astype(np.int64)))


def count_of_sizes(table: memoryview) -> int:
    """Return the number of frames by their table of sizes."""
    count: int
    for kind, box in inside(table):
        if kind in (b"stsz", b"stz2"):
            _, same, count = struct.unpack_from(">III", box)
            bits = (same & 255) if kind == b"stz2" else 0 if same else 32
            if 12 + count * bits // 8 > len(box):
                raise UncountedError("has a table of sizes that is cut")
            return count
    raise UncountedError("has no box stsz in its track")


def edits_of(track: memoryview) -> tuple[int, int, int] | None:
    """Return the begin of the shown part, its length, and that with delays; or None.

    The begin is in ticks of the track, the lengths in ticks of the movie.

    Raises:
        UncountedError: there are several parts, or a speed.
    """
    lists = [edts for kind, edts in inside(track) if kind == b"edts"]
    box = child(lists[0], b"elst") if lists else memoryview(b"")
    if not box:
        return None
    (count,) = struct.unpack_from(">I", box, 4)
    form, size = (">QqI", 20) if box[0] else (">IiI", 12)
    if 8 + size * count > len(box):
        raise UncountedError("has a list of edits that is cut")
    parts = [struct.unpack_from(form, box, 8 + size * i) for i in range(count)]
    shown = [part for part in parts if part[1] != -1]  # -1 delays the film
    if any(rate != 1 << 16 for _, _, rate in parts) or len(shown) > 1:
        raise UncountedError(f"has a list of {len(shown)} edits, which repeat or change its frames")
    whole = sum(length for length, _, _ in parts)
    return (shown[0][1], shown[0][0], whole) if shown else (0, 0, whole)
