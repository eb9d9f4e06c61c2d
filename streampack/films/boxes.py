"""Frames, rate and size of an mp4 or mov film, from the tables of its `moov` box."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.films.size import FilmSize
from streampack.images.boxes import (
    child,
    clock_of,
    count_of_sizes,
    damage_named,
    edits_of,
    inside,
    require_near,
    runs_of,
    track_duration,
    track_of,
)
from streampack.images.media_file import UncountedError

_MOST_FRAMES = 1 << 22


class FilmTable(NamedTuple):
    """Frames of a film in the order in which they are shown.

    Attributes:
        size: size of the film.
        shown: (frames,) int64, time of each frame in ticks.
        is_key: (frames,) bool, True for frames at which decoding can begin.
        packets: (frames,) int64, number of each frame's packet in the order of decoding.
        samples: content of `stbl`, with the sizes and places of the packets.
        others: places in the file of the kinds of the other tracks.
    """

    size: FilmSize
    shown: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    packets: NDArray[np.int64]
    samples: memoryview
    others: list[int]


@damage_named()
def film_table(begin: int, moov: memoryview, *, trimmed: bool = False) -> FilmTable:
    """Return the size and frames of the first video track.

    Args:
        begin, moov: result of `moov_of`.
        trimmed: take a list of edits at its word that ends before the last frame. A wrong clock
            looks the same; FFmpeg shows the same frames in both cases.

    Raises:
        UncountedError: the file is damaged, fragmented, or has edits other than a cut of its begin
            (or, if `trimmed`, of its end).
    """
    track, others = track_of(moov, b"vide")
    table = _in_track(track, child(moov, b"mvhd"), trimmed)
    return table._replace(others=[begin + each for each in others])


def _in_track(track: memoryview, movie: memoryview, trimmed: bool) -> FilmTable:
    table, head = child(track, b"mdia", b"minf", b"stbl"), child(track, b"tkhd")
    times = runs_of(child(table, b"stts"))
    frames, counted = int(times[:, 0].sum()), count_of_sizes(table)
    if frames != counted or not 0 < frames <= _MOST_FRAMES:
        raise UncountedError(f"has times for {frames} frames and sizes for {counted}")
    ticks = int((times[:, 0] * times[:, 1]).sum())
    scale, duration = clock_of(child(track, b"mdia", b"mdhd"))
    movie_scale, _ = clock_of(movie)
    if not ticks or times[:, 1].max() >= 1 << 31 or not scale or not movie_scale:
        raise UncountedError("has frames without a duration")
    shown, is_key, packets = _shown(table, times), _keys(table, frames), np.arange(frames)
    first, last, longest = int(shown.min()), int(shown.max()), int(times[:, 1].max())
    is_even = bool((times[:-1, 1] == longest).all()) and (times[-1, 0] == 1 or len(times) == 1)
    if is_even and (np.diff(np.sort(shown)) != longest).any():
        raise UncountedError("has frames of even durations at uneven times")
    end = max(last + longest, first + ticks)
    spans = (ticks, end, end - first, last - first, last if is_even else ticks)
    # Which duration the last of uneven frames has is told in different ways.
    rounding = 1 + (0.01 * longest if is_even else longest)
    require_near(duration, scale, spans, rounding)
    rounding += 2 * scale / movie_scale
    edits, lasts = edits_of(track), track_duration(head)
    if edits is None:
        require_near(lasts, movie_scale, spans, rounding, scale)
    else:
        start, length, whole = edits
        require_near(lasts, movie_scale, (whole,), 2 + 0.1 * ticks / frames * movie_scale / scale)
        stop = start + (length * scale + movie_scale // 2) // movie_scale
        # A clock or time that lies would leave out frames, too, so it must end with the film.
        is_whole = last < stop <= end + rounding and not first < start <= first + rounding
        packets = np.flatnonzero((shown >= start) & (shown < stop))
        if not len(packets) or not (trimmed or is_whole):
            raise UncountedError("has a list of edits that ends elsewhere than its frames")
    height, width = _shape(child(table, b"stsd"))
    if _is_on_its_side(head, movie):
        height, width = width, height
    rate = Fraction(counted * scale, ticks)  # as FFmpeg counts, also of films that are cut
    size = FilmSize(len(packets), height, width, rate.numerator, rate.denominator)
    packets = packets[np.argsort(shown[packets], kind="stable")]
    return FilmTable(size, shown[packets], is_key[packets], packets, table, [])


def _keys(table: memoryview, frames: int) -> NDArray[np.bool_]:
    """Return which frames are keyframes by `stss`, without which all are."""
    for kind, box in inside(table):
        if kind == b"stss":
            (count,) = struct.unpack_from(">I", box, 4)
            if 8 + 4 * count > len(box):
                raise UncountedError("has a table of keyframes that is cut")
            numbers = np.frombuffer(box, ">u4", count, 8)
            return np.isin(np.arange(1, frames + 1), numbers)
    return np.ones(frames, dtype=np.bool_)


def _shown(table: memoryview, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each frame is shown, in ticks, in the order of decoding."""
    shown: NDArray[np.int64] = np.cumsum(np.append(0, np.repeat(times[:, 1], times[:, 0])))[:-1]
    for kind, box in inside(table):
        if kind == b"ctts":
            runs = runs_of(box, signed=True)
            if int(runs[:, 0].sum()) != len(shown):
                raise UncountedError("has delays for another number of frames")
            shown += np.repeat(runs[:, 1], runs[:, 0])
    return shown


def _shape(box: memoryview) -> tuple[int, int]:
    """Return the height and width of all sample entries in `stsd`."""
    shapes = {struct.unpack_from(">HH", entry, 24) for _, entry in inside(box[8:])}
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
