"""Boxes of mp4 and mov files, and the tables of a track.

The file is a tree of boxes (ISO/IEC 14496-12): four bytes of size, four of kind, and the content.
`moov` has a table of all frames, and stands at the end of the file unless it was put first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from streampack.images.media_file import FIRST_BYTES, UncountedError

#: Bytes of a read behind the media's data, where `moov` and little else is expected.
_LAST_BYTES = 4 << 20
_MOST_MOOV_BYTES, _MOST_BOXES = 64 << 20, 1000
_FRAGMENTED = "is a fragmented mp4, and its head does not count the frames"

#: Kinds of the first box of mp4 and mov files.
_FIRST = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
#: Packets of a track, at most, of which each is located by itself.
_MOST_PACKETS = 1 << 22
#: Bytes between packets of a track, such as of another one, that are fetched with them.
_MOST_BETWEEN = 64 << 10

Read = Callable[[int, int], bytes]


@contextmanager
def damage_named() -> Iterator[None]:
    """Turn errors about damaged tables into `UncountedError`."""
    try:
        yield
    except (struct.error, ZeroDivisionError, OverflowError, IndexError) as error:
        raise UncountedError(f"has a damaged moov box ({error})") from error


def has_boxes(start: bytes) -> bool:
    """Return True for the first bytes of an mp4 or mov file."""
    return start[4:8] in _FIRST


@damage_named()
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
    boxes = [*_placed(moov)]
    if any(kind == b"mvex" for kind, *_ in boxes):
        raise UncountedError(_FRAGMENTED)
    if not (tracks := tracks_of(moov, handler)):
        raise UncountedError(f"has no track of kind {handler.decode()}")
    first, track = tracks[0]
    return track, [at + 4 for kind, at, _ in boxes if kind == b"trak" and at != first]


def tracks_of(moov: memoryview, handler: bytes) -> list[tuple[int, memoryview]]:
    """Return where the tracks with a handler begin in `moov`, and their contents."""
    return [
        (at, track)
        for kind, at, track in _placed(moov)
        if kind == b"trak" and bytes(child(track, b"mdia", b"hdlr")[8:12]) == handler
    ]


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


def packets_of(table: memoryview) -> NDArray[np.int64]:
    """Return where each packet of `stbl` begins and ends in the file, (packets, 2), in order."""
    sizes = _sizes(table)
    boxes = dict(inside(table))
    kind = ">u8" if b"co64" in boxes else ">u4"
    box = boxes[b"co64"] if b"co64" in boxes else child(table, b"stco")
    (chunks,) = struct.unpack_from(">I", box, 4)
    runs = child(table, b"stsc")
    (count,) = struct.unpack_from(">I", runs, 4)
    if 8 + chunks * int(kind[-1]) > len(box) or 8 + 12 * count > len(runs):
        raise UncountedError("has a table of places that is cut")
    offsets = np.frombuffer(box, kind, chunks, 8).astype(np.int64)
    firsts, each, _ = np.frombuffer(runs, ">u4", 3 * count, 8).reshape(-1, 3).astype(np.int64).T
    lengths = np.diff(np.append(firsts, chunks + 1))  # in chunks, of runs with as many packets each
    is_wrong = not count or firsts[0] != 1 or min(lengths.min(), each.min()) < 1
    if is_wrong or (lengths * each).sum() != len(sizes):
        raise UncountedError("has a table of places for another number of frames")
    packets = np.repeat(each, lengths)
    before = np.cumsum(sizes) - sizes
    chunk = np.repeat(np.arange(chunks), packets)
    begins = offsets[chunk] + before - before[np.cumsum(packets) - packets][chunk]
    return np.column_stack((begins, begins + sizes))


def _sizes(table: memoryview) -> NDArray[np.int64]:
    """Return the sizes of the packets in bytes."""
    box = child(table, b"stsz")
    _, same, count = struct.unpack_from(">III", box)
    if count > _MOST_PACKETS:
        raise UncountedError(f"has {count} packets")
    if same:
        return np.full(count, same, dtype=np.int64)
    return np.frombuffer(box, ">u4", count, 12).astype(np.int64)


def parts_around(packets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the bytes [start, stop) of packets (N, 2), in order, with little between them."""
    packets = packets[np.argsort(packets[:, 0], kind="stable")]
    stops = np.maximum.accumulate(packets[:, 1])
    begins = np.flatnonzero(np.append(True, packets[1:, 0] > stops[:-1] + _MOST_BETWEEN))
    ends = np.append(begins[1:], len(packets)) - 1
    return [*zip(packets[begins, 0].tolist(), stops[ends].tolist(), strict=True)]
