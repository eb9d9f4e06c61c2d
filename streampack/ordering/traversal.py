"""Walk through the neighbour graph, which visits every document once, next to related ones.

Steps:
  1. Undirected edges join two documents if one is among the other's neighbours.
  2. Start at the unvisited document with the fewest edges, ties by arrival. Edges are counted in
     the whole graph, so the counts do not change as documents are visited.
  3. Go to the unvisited neighbour of highest similarity, ties by arrival, until there is none;
     then return to step 2. The documents between two starts are a run.
  4. Short runs are merged into others (`merge_runs`).

With a limit of similarity (`Limit`), a document waits while it is too similar to one of the last
documents, within the tokens of a row:
  1. Neighbours above the limit are not edges; the k nearest of the others are.
  2. After a visit to a document, neighbours above the limit wait until a row's tokens have
     followed. Steps 2 and 3 pass over waiting documents, unless no others are left.
  3. Short runs are not merged, since that would join documents that had to wait.

Cost: O(N * k): each edge is visited a few times. Keeps every document. Documents that are too
similar are kept apart only if they are in each other's lists of neighbours.

Source: Algorithm 1 of "In-Context Pretraining: Language Modeling Beyond Document Boundaries", a
greedy path for the maximum travelling-salesman problem. Its pseudo-code takes the least similar
neighbour, and its text the most similar; this follows the text. The paper restarts at a random
document of least degree, this at the first one.
"Threshold Filtering Packing for Supervised Fine-Tuning: Training Related Samples within Packs"
(NAACL 2025) walks greedily too, and keeps documents out of a pack by a threshold of similarity.
Here the last tokens represent the pack, since rows are cut after the walk.
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
        offsets: (M + 1,) int64 offsets of the documents into the edges.
        neighbour, weight: (E,) other document of each edge, and its similarity.
    """

    offsets: NDArray[np.int64]
    neighbour: NDArray[Any]
    weight: NDArray[Any]


class Limit(NamedTuple):
    """Limit of the similarity of documents inside a row.

    Attributes:
        similarity: highest similarity allowed.
        k: edges per document to neighbours at or below the limit.
        lengths: (M,) tokens per document.
        row_tokens: tokens required between two documents above the limit.
    """

    similarity: float
    k: int
    lengths: NDArray[np.int64]
    row_tokens: int


@kernel
def merge_runs(
    path: NDArray[np.int64], run: NDArray[np.int64], graph: Graph, shortest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge short runs into others; return the new path (M,) int64 and each document's run (M,).

    A run is a stretch of the walk without a restart. The documents before and after a restart are
    unrelated, so with many short runs a row holds few related documents.

    Steps:
      1. Runs are processed in the order of the walk. A run with fewer than `SHORTEST` documents at
         that time is dissolved, document by document, in order.
      2. Each of its documents moves next to its most similar neighbour in another run, ties by
         arrival: before the neighbour if the graph has a higher similarity to the document there
         than to the one after it, else after it.
      3. A document without a neighbour in another run stays in its position.

    Cost: O(N * k): each edge is visited at most three times. Keeps every document.

    Source: the released code of "In-Context Pretraining: Language Modeling Beyond Document
    Boundaries" merges clusters of fewer than 21 documents into their neighbours' clusters, which
    the paper does not mention. Choosing the side is ours.

    Args:
        path: (M,) permutation of the documents.
        run: (M,) index of each document's run, ascending from 0 along the path.
        graph: the graph of the walk.
        shortest: runs of fewer documents are dissolved.
    """
    count = len(path)
    run = np.append(run, -1)  # the last entry is outside of the path
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
    for run_index in range(count):
        if size[run_index] >= shortest:
            continue
        i = heads[run_index]
        for m in range(size[run_index]):  # runs stay contiguous after joining others
            members[m] = i
            i = after[i]
        for i in members[: size[run_index]]:
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
    """Return the most similar neighbour of i in another run, or -1."""
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
    """Return the document after which to put i, so that it is next to its target, in its run."""
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
    ids: NDArray[np.int64],
    similarity: NDArray[np.float64],
    *,
    shortest_run: int = SHORTEST,
    limit: Limit | None = None,
) -> NDArray[np.int64]:
    """Visit M documents; return the order (M,) int64, a permutation of range(M).

    Args:
        ids: (M, k) neighbours, nearest first, padded with -1. With a limit there are more than k,
            since neighbours above the limit are needed too.
        similarity: (M, k) similarity of each edge, equal from both of its ends.
        shortest_run: runs of fewer documents are merged into others; 1 merges none.
        limit: limit of the similarity inside a row.
    """
    return walk_runs(ids, similarity, shortest_run=shortest_run, limit=limit)[0]


def walk_runs(
    ids: NDArray[Any],
    similarity: NDArray[Any],
    *,
    shortest_run: int = SHORTEST,
    limit: Limit | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Like `walk`, and return the offset (R,) int64 of each of its R runs in the order.

    The graph is held in the dtypes of `ids` and `similarity`: int32 and float32 halve its memory.
    """
    if limit is None:
        lengths, row_tokens = np.zeros(len(ids), dtype=np.int64), 0
        above = _build_graph(ids[:, :0], similarity[:, :0])
    else:
        lengths, row_tokens, shortest_run = limit.lengths, limit.row_tokens, 1
        over = similarity > limit.similarity
        above = _build_graph(np.where(over, ids, -1), similarity)
        order = np.argsort(over, axis=1, kind="stable")[:, : limit.k]
        ids = np.take_along_axis(np.where(over, -1, ids), order, axis=1)
        similarity = np.take_along_axis(similarity, order, axis=1)
    graph = _build_graph(ids, similarity)
    starts = np.argsort(np.diff(graph.offsets), kind="stable")
    followed = _follow(graph, starts, above, lengths, row_tokens)
    path, run = merge_runs(*followed, graph, shortest_run)
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
def _follow(
    graph: Graph,
    starts: NDArray[np.int64],
    above: Graph,
    lengths: NDArray[np.int64],
    row_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Visit every document; `starts` has all documents by number of edges, ties by arrival.

    The neighbours in `above` of a visited document wait until `row_tokens` have followed it.

    Returns the path and the index of each document's run.
    """
    offsets, neighbour, weight = graph
    count = len(starts)
    visited = np.zeros(count, dtype=np.bool_)
    path = np.empty(count, dtype=np.int64)
    run = np.empty(count, dtype=np.int64)
    waits = np.zeros(count, dtype=np.int64)  # position in tokens from which each may be visited
    position = np.empty(count, dtype=np.int64)
    position[starts] = np.arange(count)
    after = np.arange(1, count + 2)  # linked list of unvisited `starts`; the last is both ends
    before = np.arange(-1, count)
    after[count], before[0] = 0, count
    length = runs = tokens = 0
    while length < count:
        at = after[count]
        while at < count and waits[starts[at]] > tokens:
            at = after[at]
        i = starts[at if at < count else after[count]]
        runs += 1
        while i >= 0:
            visited[i] = True
            run[i] = runs - 1
            path[length] = i
            length += 1
            left, right = before[position[i]], after[position[i]]
            after[left], before[right] = right, left
            tokens += lengths[i]
            for e in range(above.offsets[i], above.offsets[i + 1]):
                waits[above.neighbour[e]] = tokens + row_tokens
            best = -1
            highest = -np.inf
            for e in range(offsets[i], offsets[i + 1]):
                j = neighbour[e]
                free = not visited[j] and waits[j] <= tokens
                if free and (weight[e] > highest or (weight[e] == highest and j < best)):
                    best = j
                    highest = weight[e]
            i = best
    return path, run
