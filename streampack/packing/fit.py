"""The greedy kernel: items in a given order into bins, first-fit or best-fit.

Steps, for every item in order: find an open bin with room for it, else open a new one.
  - first-fit: the earliest opened bin with room;
  - best-fit: the bin that is left with least room, ties to the earliest opened.
Bins are grouped by their room, in one pairing heap per room, which gives the earliest opened one.
For best-fit a bitmap of the rooms in use finds the smallest that suffices. For first-fit the
earliest bins of all rooms that suffice are compared, whole blocks of rooms at once.

Cost per item: the heap, which is constant unless many bins have the same room, and a search: for
best-fit through O(capacity / 4096) words, for first-fit through O(block + capacity / block)
numbers, many of them per instruction. What is searched is small (a few bytes per token of capacity)
and stays in the cache, however many bins there are. Memory: O(items + capacity). Nothing is thrown
away.

Sources: D. S. Johnson, "Near-optimal bin packing algorithms" (1973); M. Fredman, R. Sedgewick,
D. Sleator, R. Tarjan, "The pairing heap" (1986).

A set of small integers as a bitmap of two levels, for compiled code.

Bit i of `words` says that i is in the set; bit w of `groups` that words[w] is not zero. Finding the
next member takes a few instructions for sets below 4096 and one more per 4096 above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streampack._jit import kernel


@intrinsic  # type: ignore[untyped-decorator]
def _lowest_bit(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero uint64 (the machine's own instruction)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _leading_zeros(typingctx: Any, word: Any) -> Any:
    """Zeros above the highest set bit of a non-zero uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@kernel
def _index_of_lowest_bit(word: np.uint64) -> int:
    return np.int64(_lowest_bit(word))  # type: ignore[call-arg, return-value]


@kernel
def _index_of_highest_bit(word: np.uint64) -> int:
    return 63 - np.int64(_leading_zeros(word))  # type: ignore[call-arg, return-value]


@kernel
def new_bitmap(size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The empty set of integers below `size`: words and groups."""
    words = np.zeros((size + 63) // 64, dtype=np.uint64)
    groups = np.zeros(len(words) // 64 + 1, dtype=np.uint64)
    return words, groups


@kernel
def set_bit(words: NDArray[np.uint64], groups: NDArray[np.uint64], i: int) -> None:
    """Add i."""
    words[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    groups[i >> 12] |= np.uint64(1) << np.uint64((i >> 6) & 63)


@kernel
def clear_bit(words: NDArray[np.uint64], groups: NDArray[np.uint64], i: int) -> None:
    """Remove i."""
    words[i >> 6] &= ~(np.uint64(1) << np.uint64(i & 63))
    if words[i >> 6] == 0:
        groups[i >> 12] &= ~(np.uint64(1) << np.uint64((i >> 6) & 63))


@kernel
def next_set(words: NDArray[np.uint64], groups: NDArray[np.uint64], least: int) -> int:
    """The smallest member >= least, or -1."""
    w = least >> 6
    if w >= len(words):
        return -1
    word = (words[w] >> np.uint64(least & 63)) << np.uint64(least & 63)
    if word != 0:
        return (w << 6) + _index_of_lowest_bit(word)
    w += 1
    g = w >> 6
    if g >= len(groups):
        return -1
    group = (groups[g] >> np.uint64(w & 63)) << np.uint64(w & 63)
    while group == 0:
        g += 1
        if g >= len(groups):
            return -1
        group = groups[g]
    w = (g << 6) + _index_of_lowest_bit(group)
    return (w << 6) + _index_of_lowest_bit(words[w])


@kernel
def previous_set(words: NDArray[np.uint64], groups: NDArray[np.uint64], most: int) -> int:
    """The largest member <= most, or -1; `most` is below the bitmap's size."""
    w = most >> 6
    word = words[w] & (~np.uint64(0) >> np.uint64(63 - (most & 63)))
    if word != 0:
        return (w << 6) + _index_of_highest_bit(word)
    g = w >> 6
    group = groups[g] & ((np.uint64(1) << np.uint64(w & 63)) - np.uint64(1))
    while group == 0:
        g -= 1
        if g < 0:
            return -1
        group = groups[g]
    w = (g << 6) + _index_of_highest_bit(group)
    return (w << 6) + _index_of_highest_bit(words[w])


_BLOCK = 6  # rooms per block, as a power of two


@kernel
def greedy_fit(
    sizes: NDArray[np.integer[Any]],
    capacity: int,
    least_room: int,
    best: bool,
    align: int,
    bins: NDArray[np.integer[Any]],
    links: NDArray[np.int32],
) -> int:
    """Assign items to bins.

    Args:
        sizes: (M,) integers, each in [1, capacity], in the order in which they are placed.
        capacity: room of an empty bin.
        least_room: an open bin is considered only if it has at least this much room left.
        best: best-fit if True, first-fit if False.
        align: an item takes up the next multiple of this.
        bins: (M,), filled with the bin of every item, numbered in order of opening.
        links: (3 * M or more,) memory to use.

    Returns:
        The number of bins.
    """
    items = len(sizes)
    child, sibling = links[:items], links[items : 2 * items]
    if best:
        return _best_fit(sizes, capacity, least_room, align, bins, child, sibling)
    rooms = links[2 * items : 3 * items]
    return _first_fit(sizes, capacity, least_room, align, bins, child, sibling, rooms)


@kernel
def _first_fit(
    sizes: NDArray[np.integer[Any]],
    capacity: int,
    least_room: int,
    align: int,
    bins: NDArray[np.integer[Any]],
    child: NDArray[np.int32],
    sibling: NDArray[np.int32],
    rooms: NDArray[np.int32],
) -> int:
    """`rooms` are those of every open bin."""
    none = np.int32(2**31 - 1)  # above every bin, so that minima need no test
    blocks = (capacity >> _BLOCK) + 1
    head = np.full(blocks << _BLOCK, none, dtype=np.int32)  # earliest opened bin of each room
    lowest = np.full(blocks, none, dtype=np.int32)  # the same of each block of rooms
    count = 0
    for i in range(len(sizes)):
        size = _aligned(sizes[i], align)
        need = max(size, least_room)
        block = need >> _BLOCK
        chosen = min(
            _minimum(head[need : (block + 1) << _BLOCK], none), _minimum(lowest[block + 1 :], none)
        )
        if chosen == none:
            chosen = np.int32(count)
            count += 1
            room = capacity
        else:
            room = int(rooms[chosen])
            root = _pop(child, sibling, chosen)
            head[room] = none if root < 0 else root
            block = room >> _BLOCK
            if lowest[block] == chosen:
                lowest[block] = _minimum(head[block << _BLOCK : (block + 1) << _BLOCK], none)
        bins[i] = chosen
        left = room - size
        if left > 0:
            rooms[chosen] = left
            child[chosen] = -1
            sibling[chosen] = -1
            head[left] = chosen if head[left] == none else _meld(child, sibling, head[left], chosen)
            lowest[left >> _BLOCK] = min(lowest[left >> _BLOCK], chosen)
    return count


@kernel
def _minimum(values: NDArray[np.int32], least: np.int32) -> np.int32:
    for k in range(len(values)):  # compiled to vector instructions
        least = min(least, values[k])
    return least


@kernel
def _aligned(size: Any, align: int) -> Any:
    return -(-np.int64(size) // align) * align if align > 1 else np.int64(size)


@kernel
def _best_fit(
    sizes: NDArray[np.integer[Any]],
    capacity: int,
    least_room: int,
    align: int,
    bins: NDArray[np.integer[Any]],
    child: NDArray[np.int32],
    sibling: NDArray[np.int32],
) -> int:
    head = np.full(capacity + 1, -1, dtype=np.int32)  # earliest opened bin of each room
    words, groups = new_bitmap(capacity + 1)  # bit r: some bin has room r
    count = 0
    for i in range(len(sizes)):
        size = _aligned(sizes[i], align)
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
def _meld(child: NDArray[np.int32], sibling: NDArray[np.int32], a: Any, b: Any) -> Any:
    """Join two heaps by their roots; the earlier opened bin (the smaller number) is the root."""
    if b < a:
        a, b = b, a
    sibling[b] = child[a]
    child[a] = b
    return a


@kernel
def _pop(child: NDArray[np.int32], sibling: NDArray[np.int32], root: Any) -> Any:
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
