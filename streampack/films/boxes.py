"""Frames, rate and size of an mp4 or mov film, from the tables of its `moov` box.

The file is a tree of boxes (ISO/IEC 14496-12): four bytes of size, four of kind, and the content.
`moov` has a table of all frames, and stands at the end of the file unless it was put first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.films.size import FilmSize
from streampack.images.media_file import FIRST_BYTES, UncountedError

#: Bytes of a read behind the film data, where `moov` and little else is expected.
_LAST_BYTES = 4 << 20
_MOST_MOOV_BYTES, _MOST_FRAMES, _MOST_BOXES = 64 << 20, 1 << 22, 1000
#: Share by which times in different tables may differ.
_TOLERANCE = 0.02
_FRAGMENTED = "is a fragmented mp4, and its head does not count the frames"

Read = Callable[[int, int], bytes]


class FilmTable(NamedTuple):
    """Frames of a film in the order in which they are shown.

    Attributes:
        size: size of the film.
        shown: (frames,) int64, time of each frame in ticks.
        is_key: (frames,) bool, True for frames at which decoding can begin.
    """

    size: FilmSize
    shown: NDArray[np.int64]
    is_key: NDArray[np.bool_]


def film_table(read: Read, num_bytes: int) -> FilmTable:
    """Return the size and frames of the first video track.

    Args:
        read: returns bytes [start, stop) of the file.
        num_bytes: size of the file.

    Raises:
        UncountedError: the file is damaged, fragmented, or has edits other than one cut.
    """
    try:
        return _in_moov(_moov(read, num_bytes))
    except (struct.error, ZeroDivisionError, OverflowError) as error:
        raise UncountedError(f"has a damaged moov box ({error})") from error


def _moov(read: Read, num_bytes: int) -> memoryview:
    """Return the content of `moov`, by two reads in the usual cases."""
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
            if end > len(data):
                begin, end, data = 0, end - begin, read(low + begin, low + end)
            return memoryview(data)[begin:end]
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


def _inside(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and content of the boxes in a box."""
    at = 0
    while at + 8 <= len(data):  # QuickTime ends some lists with four bytes of zeros
        kind, begin, end = _box(data, at, len(data))
        yield kind, data[begin:end]
        at = end


def _child(data: memoryview, *path: bytes) -> memoryview:
    for kind in path:
        child = next((content for each, content in _inside(data) if each == kind), None)
        if child is None:
            raise UncountedError(f"has no box {kind.decode()} in its video track")
        data = child
    return data


def _in_moov(moov: memoryview) -> FilmTable:
    kinds = [kind for kind, _ in _inside(moov)]
    if b"mvex" in kinds:
        raise UncountedError(_FRAGMENTED)
    for kind, track in _inside(moov):
        if kind == b"trak" and bytes(_child(track, b"mdia", b"hdlr")[8:12]) == b"vide":
            return _in_track(track, _child(moov, b"mvhd"))
    raise UncountedError("has no video track")


def _in_track(track: memoryview, movie: memoryview) -> FilmTable:
    table, head = _child(track, b"mdia", b"minf", b"stbl"), _child(track, b"tkhd")
    times = _runs(_child(table, b"stts"))
    frames, counted = int(times[:, 0].sum()), _count_of_sizes(table)
    if frames != counted or not 0 < frames <= _MOST_FRAMES:
        raise UncountedError(f"has times for {frames} frames and sizes for {counted}")
    ticks = int((times[:, 0] * times[:, 1]).sum())
    scale, duration = _clock(_child(track, b"mdia", b"mdhd"))
    movie_scale, _ = _clock(movie)
    if not ticks or times[:, 1].max() >= 1 << 31 or not scale or not movie_scale:
        raise UncountedError("has frames without a duration")
    shown, is_key = _shown(table, times), _keys(table, frames)
    _require_near(duration / scale, ticks / scale, frames, shown, scale)
    edits, lasts = _edits(track), _of_track(head) / movie_scale
    if edits is None:
        _require_near(lasts, ticks / scale, frames, shown, scale)
    else:
        start, length, whole = edits
        _require_near(lasts, whole / movie_scale, frames, shown[:1], scale)
        stop = start + (length * scale + movie_scale // 2) // movie_scale
        if (
            start + ticks // frames * 2 < 0
            or stop > (int(shown.max()) + ticks // frames * 3) * 1.02
        ):
            raise UncountedError("has a list of edits that shows more than the film")
        is_in = (shown >= start) & (shown < stop)
        shown, is_key = shown[is_in], is_key[is_in]
        if not len(shown):
            raise UncountedError("has a list of edits that shows no frame")
    height, width = _shape(_child(table, b"stsd"))
    if _is_on_its_side(head, movie):
        height, width = width, height
    rate = Fraction(counted * scale, ticks)  # as FFmpeg counts, also of films that are cut
    size = FilmSize(len(shown), height, width, rate.numerator, rate.denominator)
    order = np.argsort(shown, kind="stable")
    return FilmTable(size, shown[order], is_key[order])


def _keys(table: memoryview, frames: int) -> NDArray[np.bool_]:
    """Return which frames are keyframes by `stss`, without which all are."""
    for kind, box in _inside(table):
        if kind == b"stss":
            (count,) = struct.unpack_from(">I", box, 4)
            if 8 + 4 * count > len(box):
                raise UncountedError("has a table of keyframes that is cut")
            numbers = np.frombuffer(box, ">u4", count, 8)
            return np.isin(np.arange(1, frames + 1), numbers)
    return np.ones(frames, dtype=np.bool_)


def _clock(box: memoryview) -> tuple[int, int]:
    """Return the ticks per second and the duration in ticks of `mvhd` or `mdhd`; -1 is unknown."""
    scale, duration = (
        struct.unpack_from(">IQ", box, 20) if box[0] else struct.unpack_from(">II", box, 12)
    )
    return scale, -1 if duration >= (1 << 32) - 1 else duration


def _of_track(head: memoryview) -> int:
    duration: int
    (duration,) = struct.unpack_from(">Q" if head[0] else ">I", head, 28 if head[0] else 20)
    return -1 if duration >= (1 << 32) - 1 else duration


def _require_near(
    declared: float, seconds: float, frames: int, shown: NDArray[np.int64], scale: int
) -> None:
    """Raise `UncountedError` if a declared duration is known and not near to the frames'.

    Args:
        declared: seconds.
        seconds: sum of the frames' durations in the order of decoding.
        frames: number of frames.
        shown: (frames,) times at which they are shown, in ticks.
        scale: ticks per second.
    """
    whole = float(shown.max() - shown.min()) / scale + seconds / frames
    near = (abs(declared - each) <= max(2 / frames, _TOLERANCE) * each for each in (seconds, whole))
    if declared > 0 and not any(near):
        raise UncountedError(f"declares {declared:.6g} seconds, and its frames take {seconds:.6g}")


def _runs(box: memoryview, signed: bool = False) -> NDArray[np.int64]:
    """Return the (N, 2) runs of `stts` or `ctts`: a count of frames and a value for each."""
    (count,) = struct.unpack_from(">I", box, 4)
    if 8 + 8 * count > len(box):
        raise UncountedError("has a table of times that is cut")
    runs = np.frombuffer(box, ">u4", 2 * count, 8).reshape(-1, 2)
    values = runs[:, 1].view(">i4") if signed else runs[:, 1]
    return np.column_stack((runs[:, 0].astype(np.int64), values.astype(np.int64)))


def _count_of_sizes(table: memoryview) -> int:
    """Return the number of frames by their table of sizes."""
    count: int
    for kind, box in _inside(table):
        if kind in (b"stsz", b"stz2"):
            _, same, count = struct.unpack_from(">III", box)
            bits = (same & 255) if kind == b"stz2" else 0 if same else 32
            if 12 + count * bits // 8 > len(box):
                raise UncountedError("has a table of sizes that is cut")
            return count
    raise UncountedError("has no box stsz in its video track")


def _edits(track: memoryview) -> tuple[int, int, int] | None:
    """Return the begin of the shown part, its length, and that with delays; or None.

    The begin is in ticks of the track, the lengths in ticks of the movie.

    Raises:
        UncountedError: there are several parts, or a speed.
    """
    lists = [edts for kind, edts in _inside(track) if kind == b"edts"]
    box = _child(lists[0], b"elst") if lists else memoryview(b"")
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


def _shown(table: memoryview, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each frame is shown, in ticks, in the order of decoding."""
    shown: NDArray[np.int64] = np.cumsum(np.append(0, np.repeat(times[:, 1], times[:, 0])))[:-1]
    for kind, box in _inside(table):
        if kind == b"ctts":
            runs = _runs(box, signed=True)
            if int(runs[:, 0].sum()) != len(shown):
                raise UncountedError("has delays for another number of frames")
            shown += np.repeat(runs[:, 1], runs[:, 0])
    return shown


def _shape(box: memoryview) -> tuple[int, int]:
    """Return the height and width of all sample entries in `stsd`."""
    shapes = {struct.unpack_from(">HH", entry, 24) for _, entry in _inside(box[8:])}
    if len(shapes) != 1:
        raise UncountedError(f"has frames of {len(shapes)} sizes")
    ((width, height),) = shapes
    if not width or not height:
        raise UncountedError(f"has frames of {width} x {height} pixels")
    return height, width


def _is_on_its_side(head: memoryview, movie: memoryview) -> bool:
    """Return True if `tkhd` turns the film by a quarter.

    Raises:
        UncountedError: the film is turned by another angle, or mirrored.
    """
    turns = []
    for box, at in ((head, 52 if head[0] else 40), (movie, 48 if movie[0] else 36)):
        a, b, _, c, d = struct.unpack_from(">5i", box, at)
        turns.append(np.array([[a, b], [c, d]], dtype=np.float64) / (1 << 16))
    turn = turns[0] @ turns[1]
    if np.linalg.det(turn) <= 0 or (np.abs(turn[:, 0] * turn[:, 1]) > 1e-6).any():
        raise UncountedError("is mirrored, or turned by an angle other than quarters")
    return bool(turn[0, 0] == 0)
