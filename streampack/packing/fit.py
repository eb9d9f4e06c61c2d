"""The greedy kernel: items in a given order into bins, first-fit or best-fit.

Steps, for every item in order: find an open bin with room for it, else open a new one.
  - first-fit: the earliest opened bin with room, by a tournament tree over the bins' room;
  - best-fit: the bin left with least room, ties to the earliest opened. Bins are kept by their
    room: a bitmap of the rooms in use finds the smallest that suffices, and a pairing heap per
    room gives the earliest opened of its bins.

Cost: O(log bins) per item; best-fit is O(capacity / 4096) for the search plus the heap, which
is constant unless many bins share one room. Memory: O(items + capacity). Nothing is thrown away.

Sources: D. S. Johnson, "Near-optimal bin packing algorithms" (1973); M. Fredman, R. Sedgewick,
D. Sleator, R. Tarjan, "The pairing heap" (1986).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.bitmap import clear_bit, new_bitmap, next_set, set_bit

__all__ = ["greedy_fit"]


@kernel
def greedy_fit(
    sizes: NDArray[np.int64], capacity: int, least_room: int, best: bool
) -> tuple[NDArray[np.int64], int]:
    """Assign items to bins.

    Args:
        sizes: (M,) int64, each in [1, capacity], in the order in which they are placed.
        capacity: room of an empty bin.
        least_room: an open bin is considered only if it has at least this much room left.
        best: best-fit if True, first-fit if False.

    Returns:
        (M,) int64 bin of every item, numbered in order of opening, and the number of bins.
    """
    bins = np.empty(len(sizes), dtype=np.int64)
    if best:
        count = _best_fit(sizes, capacity, least_room, bins)
    else:
        count = _first_fit(sizes, capacity, least_room, bins)
    return bins, count


@kernel
def _first_fit(
    sizes: NDArray[np.int64], capacity: int, least_room: int, bins: NDArray[np.int64]
) -> int:
    leaves = 1
    while leaves < len(sizes):
        leaves *= 2
    # Bins that are not open yet stand in the tree with full room, so opening one is finding it.
    room = np.full(2 * leaves, capacity, dtype=np.int64)
    count = 0
    for i in range(len(sizes)):
        need = max(sizes[i], least_room)
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < need:
                node += 1
        bins[i] = node - leaves
        count = max(count, node - leaves + 1)
        room[node] -= sizes[i]
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return count


@kernel
def _best_fit(
    sizes: NDArray[np.int64], capacity: int, least_room: int, bins: NDArray[np.int64]
) -> int:
    head = np.full(capacity + 1, -1, dtype=np.int32)  # earliest opened bin of each room
    words, groups = new_bitmap(capacity + 1)  # bit r: some bin has room r
    child = np.empty(len(sizes), dtype=np.int32)
    sibling = np.empty(len(sizes), dtype=np.int32)
    count = 0
    for i in range(len(sizes)):
        size = sizes[i]
        room = next_set(words, groups, max(size, least_room))
        if room < 0:
            chosen = count
            count += 1
            room = capacity
        else:
            chosen = head[room]
            head[room] = _pop(child, sibling, chosen)
            if head[room] < 0:
                clear_bit(words, groups, room)
        bins[i] = chosen
        left = room - size
        if left > 0:
            child[chosen] = -1
            sibling[chosen] = -1
            head[left] = chosen if head[left] < 0 else _meld(child, sibling, head[left], chosen)
            set_bit(words, groups, left)
    return count


@kernel
def _meld(child: NDArray[np.int32], sibling: NDArray[np.int32], a: int, b: int) -> int:
    """Join two heaps by their roots; the earlier opened bin (the smaller number) is the root."""
    if b < a:
        a, b = b, a
    sibling[b] = child[a]
    child[a] = b
    return a


@kernel
def _pop(child: NDArray[np.int32], sibling: NDArray[np.int32], root: int) -> int:
    """Remove the root; returns the new root or -1. Children are melded in pairs, then together."""
    pairs = -1
    node = child[root]
    while node >= 0:
        other = sibling[node]
        sibling[node] = -1
        following = -1
        if other >= 0:
            following = sibling[other]
            sibling[other] = -1
            node = _meld(child, sibling, node, other)
        sibling[node] = pairs
        pairs = node
        node = following
    if pairs < 0:
        return -1
    root = pairs
    node = sibling[root]
    sibling[root] = -1
    while node >= 0:
        following = sibling[node]
        sibling[node] = -1
        root = _meld(child, sibling, root, node)
        node = following
    return root
