"""Greedy kernel: places items in a given order into bins, by first-fit or best-fit.

Steps, for every item in order: find an open bin with room for it, else open a new one.
  - first-fit: the earliest opened bin with room;
  - best-fit: the bin left with least room, ties to the earliest opened.
Bins are grouped by their room, in one pairing heap per room, which gives the earliest opened one.
For best-fit a bitmap of the rooms in use finds the smallest that suffices. For first-fit the
earliest bins of all rooms that suffice are compared, whole blocks of rooms at once.

Cost per item: the heap, which is constant unless many bins have the same room, and a search: for
best-fit through O(capacity / 4096) words, for first-fit through O(block + capacity / block)
numbers, many of them per instruction. The searched arrays are small (a few bytes per token of
capacity) and stay in the cache for any number of bins. Memory: O(items + capacity). Nothing is
thrown away.

Sources: D. S. Johnson, "Near-optimal bin packing algorithms" (1973); M. Fredman, R. Sedgewick,
D. Sleator, R. Tarjan, "The pairing heap" (1986).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.packing.bitmap import clear_bit, new_bitmap, next_set, set_bit

_BLOCK = 6  # log2 of the rooms per block
_NONE = np.int32(2**31 - 1)  # above every bin index, so that minima need no test


@kernel
def greedy_fit(
    sizes: NDArray[np.integer[Any]],
    capacity: int,
    least_room: int,
    align: int,
    bins: NDArray[np.integer[Any]],
    links: NDArray[np.int32],
    rooms: NDArray[np.int32] | None,
) -> int:
    """Assign items to bins; first-fit and best-fit are compiled separately.

    Args:
        sizes: (M,) integers, each in [1, capacity], in placement order.
        capacity: room of an empty bin.
        least_room: an open bin is considered only if it has at least this much room left.
        align: an item occupies the next multiple of this.
        bins: (M,) output, the bin of every item, numbered in order of opening.
        links: (2 * M or more,) working memory.
        rooms: (M or more,) working memory of first-fit; None for best-fit.

    Returns:
        The number of bins.
    """
    items = len(sizes)
    child, sibling = links[:items], links[items : 2 * items]
    blocks = (capacity >> _BLOCK) + 1
    head = np.full(blocks << _BLOCK, _NONE, dtype=np.int32)  # earliest opened bin of each room
    lowest = np.full(blocks, _NONE, dtype=np.int32)  # the same of each block of rooms
    in_use = new_bitmap(capacity + 1)  # rooms that some bin has
    count = 0
    for i in range(len(sizes)):
        size = int(sizes[i])
        if align > 1:
            size = -(-size // align) * align
        need = max(size, least_room)
        if rooms is None:
            room = next_set(in_use, need)
            chosen = count if room < 0 else int(head[room])
        else:
            earliest = _earliest(head, lowest, need)
            chosen = count if earliest == _NONE else int(earliest)
            room = -1 if earliest == _NONE else int(rooms[chosen])
        if room < 0:
            count += 1
            room = capacity
        else:
            root = _pop(child, sibling, chosen)
            head[room] = _NONE if root < 0 else root
            if rooms is None:
                if root < 0:
                    clear_bit(in_use, room)
            elif lowest[room >> _BLOCK] == chosen:
                block = room >> _BLOCK
                lowest[block] = _minimum(head[block << _BLOCK : (block + 1) << _BLOCK])
        bins[i] = chosen
        left = room - size
        if left > 0:
            child[chosen] = -1
            sibling[chosen] = -1
            root = head[left]
            head[left] = chosen if root == _NONE else _meld(child, sibling, root, chosen)
            if rooms is None:
                set_bit(in_use, left)
            else:
                rooms[chosen] = left
                lowest[left >> _BLOCK] = min(lowest[left >> _BLOCK], chosen)
    return count


@kernel
def _earliest(head: NDArray[np.int32], lowest: NDArray[np.int32], need: int) -> np.int32:
    """Return the earliest opened bin with at least `need` room, or `_NONE`."""
    block = (need >> _BLOCK) + 1
    return min(_minimum(head[need : block << _BLOCK]), _minimum(lowest[block:]))


@kernel
def _minimum(values: NDArray[np.int32]) -> np.int32:
    least = _NONE
    for k in range(len(values)):  # compiled to vector instructions
        least = min(least, values[k])
    return least


@kernel
def _meld(child: NDArray[np.int32], sibling: NDArray[np.int32], a: Any, b: Any) -> Any:
    """Join two heaps by their roots; the earlier opened bin (the smaller index) is the root."""
    if b < a:
        a, b = b, a
    sibling[b] = child[a]
    child[a] = b
    return a


@kernel
def _pop(child: NDArray[np.int32], sibling: NDArray[np.int32], root: Any) -> Any:
    """Remove the root; return the new root or -1. Children are melded in pairs, then together."""
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
