"""Groups of pictures that are decoded for some frames of a film, and the bytes of their packets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.films.boxes import FilmTable
from streampack.images.boxes import child, inside
from streampack.images.media_file import UncountedError

#: Frames that are left out, at least, to seek.
_LEAST_SKIPPED = 64
#: Packets after which a decoder yields its first frame.
_MOST_LATE = 16
#: Bytes between packets of a film, such as of its sound, that are fetched with them.
_MOST_BETWEEN = 64 << 10


class Group(NamedTuple):
    """Packets that are decoded one after the other, from a keyframe on.

    Attributes:
        start: index of the keyframe.
        wanted: indices of the frames to keep.
        packets: number of packets up to the last of these, in the order of decoding.
    """

    start: int
    wanted: list[int]
    packets: int


def groups_of(table: FilmTable, wanted: Sequence[int]) -> list[Group]:
    """Return the groups to decode for frames.

    Args:
        table: frames of a film.
        wanted: indices of frames, in rising order.

    Returns:
        No group if the film is to be decoded from its begin: there is little to leave out, or times
        repeat.
    """
    keys, shown = np.flatnonzero(table.is_key), table.shown
    if not len(keys) or keys[0] or not np.diff(shown).all():
        return []
    starts = keys[np.searchsorted(keys, wanted, side="right") - 1]
    skipped = np.maximum(starts - np.append(0, np.add(wanted[:-1], 1)), 0)
    if skipped.sum() < _LEAST_SKIPPED:
        return []
    groups: list[Group] = []
    for index, start, left_out in zip(wanted, starts.tolist(), skipped.tolist(), strict=True):
        if left_out or not groups:
            groups.append(Group(start, [], 0))
        begin, same, packets = groups[-1]
        packets = max(packets, int(table.packets[index] - table.packets[begin]) + 1)
        groups[-1] = Group(begin, [*same, index], packets)
    return groups


def parts_of(table: FilmTable, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bytes [start, stop) of the packets that are decoded for frames, in order.

    Args: as of `groups_of`.

    Raises:
        UncountedError: the tables of the packets' places are damaged.
    """
    try:
        places = _places(table.samples)
    except struct.error as error:
        raise UncountedError(f"has a damaged moov box ({error})") from error
    is_read = np.zeros(len(places), dtype=np.bool_)
    groups = groups_of(table, wanted)
    last = 0 if groups else int(table.packets[: wanted[-1] + 1].max())
    is_read[: last + _MOST_LATE] = True
    for group in groups:
        first = int(table.packets[group.start])
        is_read[first : first + group.packets] = True
    places = places[is_read]
    places = places[np.argsort(places[:, 0], kind="stable")]
    stops = np.maximum.accumulate(places[:, 1])
    begins = np.flatnonzero(np.append(True, places[1:, 0] > stops[:-1] + _MOST_BETWEEN))
    ends = np.append(begins[1:], len(places)) - 1
    return [*zip(places[begins, 0].tolist(), stops[ends].tolist(), strict=True)]


def _places(samples: memoryview) -> NDArray[np.int64]:
    """Return where each packet begins and ends in the file, (packets, 2), in their order."""
    sizes = _sizes(samples)
    boxes = dict(inside(samples))
    kind = ">u8" if b"co64" in boxes else ">u4"
    box = boxes[b"co64"] if b"co64" in boxes else child(samples, b"stco")
    (chunks,) = struct.unpack_from(">I", box, 4)
    runs = child(samples, b"stsc")
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


def _sizes(samples: memoryview) -> NDArray[np.int64]:
    """Return the sizes of the packets in bytes."""
    box = child(samples, b"stsz")
    _, same, count = struct.unpack_from(">III", box)
    if same:
        return np.full(count, same, dtype=np.int64)
    return np.frombuffer(box, ">u4", count, 12).astype(np.int64)
