"""Merging runs: documents of short runs of a walk go beside their nearest ones in other runs.

A run is what the walk visits without starting again. Where it starts again the next document has
nothing to do with the one before, so many short runs tear a row into strangers.

Steps:
  1. Runs are taken in the order of the walk. One that has fewer than `SHORTEST` documents when its
     turn comes is dissolved, document by document, in order.
  2. Each of its documents looks for its most similar neighbour in another run, ties by arrival, and
     is put beside it: before it if the graph says that it is more similar to the document there
     than to the one after it, and after it if not.
  3. A document without a neighbour in another run stays where it is.

Cost: O(N * k): each edge is looked at three times at most. Keeps every document.

Source: the released code of "In-Context Pretraining: Language Modeling Beyond Document Boundaries"
merges clusters of fewer than 21 documents into those of their neighbours; the paper does not say
so. Choosing the side is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

SHORTEST = 21


@kernel
def merge_runs(
    path: NDArray[np.int64],
    run: NDArray[np.int64],
    offsets: NDArray[np.int64],
    neighbour: NDArray[Any],
    weight: NDArray[Any],
    shortest: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path (M,) int64 with its short runs dissolved, and the run (M,) of each document now.

    Args:
        path: (M,) a permutation of the documents.
        run: (M,) the number of each document's run, from 0 up along the path.
        offsets: (M + 1,) int64; neighbour, weight: the undirected graph, see `traversal`.
        shortest: runs of fewer documents are dissolved.
    """
    count = len(path)
    run = np.append(run, -1)  # the last stands before the first document and after the last one
    before = np.empty(count + 1, dtype=np.int64)
    after = np.empty(count + 1, dtype=np.int64)
    size = np.zeros(count, dtype=np.int64)
    heads = np.full(count, -1, dtype=np.int64)
    last = count
    for i in path:
        before[i], after[last] = last, i
        last = i
        if size[run[i]] == 0:
            heads[run[i]] = i
        size[run[i]] += 1
    before[count], after[last] = last, count
    members = np.empty(shortest, dtype=np.int64)
    for own in range(count):
        if size[own] >= shortest:
            continue
        i = heads[own]
        for m in range(size[own]):  # a run lies together in the path, whatever joined it
            members[m] = i
            i = after[i]
        for i in members[: size[own]]:
            target = _nearest(i, run, offsets, neighbour, weight)
            if target >= 0:
                after[before[i]], before[after[i]] = after[i], before[i]
                left = _left_of(i, target, before, after, run, offsets, neighbour, weight)
                right = after[left]
                before[i], after[i], after[left], before[right] = left, right, i, i
                run[i] = run[target]
                size[run[target]] += 1
    i = count
    merged = np.empty(count, dtype=np.int64)
    for p in range(count):
        i = after[i]
        merged[p] = i
    return merged, run[:count]


@kernel
def _nearest(
    i: int,
    run: NDArray[np.int64],
    offsets: NDArray[np.int64],
    neighbour: NDArray[Any],
    weight: NDArray[Any],
) -> int:
    """The most similar neighbour of i in another run, -1 if there is none."""
    best = -1
    highest = -np.inf
    for e in range(offsets[i], offsets[i + 1]):
        j = neighbour[e]
        if run[j] != run[i] and (weight[e] > highest or (weight[e] == highest and j < best)):
            best = j
            highest = weight[e]
    return best


@kernel
def _left_of(
    i: int,
    target: int,
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    run: NDArray[np.int64],
    offsets: NDArray[np.int64],
    neighbour: NDArray[Any],
    weight: NDArray[Any],
) -> int:
    """Behind which document i is put so that it lies beside its target and in the same run."""
    left = before[target]
    if run[left] != run[target]:
        return target
    to_left = -np.inf
    to_right = -np.inf
    for e in range(offsets[i], offsets[i + 1]):
        if neighbour[e] == left:
            to_left = weight[e]
        if neighbour[e] == after[target] and run[after[target]] == run[target]:
            to_right = weight[e]
    return left if to_left > to_right else target
