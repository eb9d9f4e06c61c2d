"""Groups of pictures that are decoded for some frames of a film, and the bytes of their packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streampack.films.boxes import FilmTable
from streampack.images.boxes import damage_named, packets_of, parts_around

#: Frames that are left out, at least, to seek.
_LEAST_SKIPPED = 64
#: Packets after which a decoder yields its first frame.
_MOST_LATE = 16


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


@damage_named()
def parts_of(table: FilmTable, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bytes [start, stop) of the packets that are decoded for frames, in order.

    Args: as of `groups_of`.

    Raises:
        UncountedError: the tables of the packets' places are damaged.
    """
    packets = packets_of(table.samples)
    is_read = np.zeros(len(packets), dtype=np.bool_)
    groups = groups_of(table, wanted)
    last = 0 if groups else int(table.packets[: wanted[-1] + 1].max())
    is_read[: last + _MOST_LATE] = True
    for group in groups:
        first = int(table.packets[group.start])
        is_read[first : first + group.packets] = True
    return parts_around(packets[is_read])
