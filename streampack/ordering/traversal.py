"""The walk through the neighbour graph: related documents one after the other, each once.

Steps:
  1. Undirected edges join two documents if one is among the other's neighbours.
  2. Start at the unvisited document with the fewest edges, ties by arrival. Edges are counted in
     the whole graph, so the numbers do not change as documents are visited.
  3. Go to the unvisited neighbour of highest similarity, ties by arrival, until there is none;
     then start again (2). What lies between two starts is a run.
  4. Short runs are merged into others (`merge_runs`).

Cost: O(N * k): each edge is looked at a few times. Keeps every document.

Source: Algorithm 1 of "In-Context Pretraining: Language Modeling Beyond Document Boundaries", a
greedy path for the maximum travelling-salesman problem. Its pseudo-code takes the least similar
neighbour, and its text the most similar; this follows the text. The paper starts again at a random
document of least degree, this at the first one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

SHORTEST = 21


class Graph(NamedTuple):
    """Undirected edges of M documents.

    Attributes:
        offsets: (M + 1,) int64, where the edges of each document begin.
        neighbour, weight: (E,) the other document of each edge, and their similarity.
    """

    offsets: NDArray[np.int64]
    neighbour: NDArray[Any]
    weight: NDArray[Any]


@kernel
def merge_runs(
    path: NDArray[np.int64], run: NDArray[np.int64], graph: Graph, shortest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path (M,) int64 with its short runs dissolved, and the run (M,) of each document now.

    A run is what the walk visits without starting again. Where it starts again the next document
    has nothing to do with the one before, so many short runs tear a row into strangers.

    Steps:
      1. Runs are taken in the order of the walk. One that has fewer than `SHORTEST` documents when
         its turn comes is dissolved, document by document, in order.
      2. Each of its documents looks for its most similar neighbour in another run, ties by arrival,
         and is put beside it: before it if the graph says that it is more similar to the document
         there than to the one after it, and after it if not.
      3. A document without a neighbour in another run stays where it is.

    Cost: O(N * k): each edge is looked at three times at most. Keeps every document.

    Source: the released code of "In-Context Pretraining: Language Modeling Beyond Document
    Boundaries" merges clusters of fewer than 21 documents into those of their neighbours; the paper
    does not say so. Choosing the side is ours.

    Args:
        path: (M,) a permutation of the documents.
        run: (M,) the number of each document's run, from 0 up along the path.
        graph: that was walked.
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
            target = _nearest(i, run, graph)
            if target >= 0:
                after[before[i]], before[after[i]] = after[i], before[i]
                left = _left_of(i, target, before, after, run, graph)
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
def _nearest(i: int, run: NDArray[np.int64], graph: Graph) -> int:
    """The most similar neighbour of i in another run, -1 if there is none."""
    offsets, neighbour, weight = graph
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
    graph: Graph,
) -> int:
    """Behind which document i is put so that it lies beside its target and in the same run."""
    offsets, neighbour, weight = graph
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


def walk(
    ids: NDArray[np.int64], similarity: NDArray[np.float64], *, shortest_run: int = SHORTEST
) -> NDArray[np.int64]:
    """The order (M,) int64 in which M documents are visited: a permutation of range(M).

    Args:
        ids: (M, k) neighbours of each, -1 where there are fewer than k.
        similarity: (M, k) of each edge; must be the same from both of its ends.
        shortest_run: runs of fewer documents are merged into others; 1 leaves all as they are.
    """
    return walk_runs(ids, similarity, shortest_run=shortest_run)[0]


def walk_runs(
    ids: NDArray[Any], similarity: NDArray[Any], *, shortest_run: int = SHORTEST
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `walk`, and where each of its R runs begins in the order, (R,) int64.

    The graph is held in the dtypes of `ids` and `similarity`: int32 and float32 halve its memory.
    """
    graph = _build_graph(ids, similarity)
    starts = np.argsort(np.diff(graph.offsets), kind="stable")
    path, run = merge_runs(*_follow(graph, starts), graph, shortest_run)
    return path, np.flatnonzero(np.diff(run[path], prepend=-1))


@kernel
def _build_graph(ids: NDArray[Any], similarity: NDArray[Any]) -> Graph:
    count, k = ids.shape
    mutual = np.zeros((count, k), dtype=np.bool_)
    offsets = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        for n in range(k):
            j = ids[i, n]
            if j < 0:
                continue
            for m in range(k):
                if ids[j, m] == i:
                    mutual[i, n] = True
                    break
            offsets[i + 1] += 1
            if not mutual[i, n]:
                offsets[j + 1] += 1
    for i in range(count):
        offsets[i + 1] += offsets[i]
    neighbour = np.empty(offsets[count], dtype=ids.dtype)
    weight = np.empty(offsets[count], dtype=similarity.dtype)
    end = offsets[:-1].copy()
    for i in range(count):
        for n in range(k):
            j = ids[i, n]
            if j < 0:
                continue
            neighbour[end[i]] = j
            weight[end[i]] = similarity[i, n]
            end[i] += 1
            if not mutual[i, n]:
                neighbour[end[j]] = i
                weight[end[j]] = similarity[i, n]
                end[j] += 1
    return Graph(offsets, neighbour, weight)


@kernel
def _follow(graph: Graph, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Visit every document; `starts` holds them all by number of edges, ties by arrival.

    Returns the path and the number of each document's run.
    """
    offsets, neighbour, weight = graph
    visited = np.zeros(len(starts), dtype=np.bool_)
    path = np.empty(len(starts), dtype=np.int64)
    run = np.empty(len(starts), dtype=np.int64)
    length = 0
    runs = 0
    for start in starts:
        i = start
        runs += not visited[start]
        while i >= 0 and not visited[i]:
            visited[i] = True
            run[i] = runs - 1
            path[length] = i
            length += 1
            best = -1
            highest = -np.inf
            for e in range(offsets[i], offsets[i + 1]):
                j = neighbour[e]
                if not visited[j] and (weight[e] > highest or (weight[e] == highest and j < best)):
                    best = j
                    highest = weight[e]
            i = best
    return path, run
