"""Reference implementations of the ordering algorithms: plain and slow."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hashed(tokens: list[int], dimension: int, ngrams: int) -> list[int]:
    counts: dict[int, int] = {}
    for n in range(1, ngrams + 1):
        for first in range(len(tokens) - n + 1):
            h = n
            for token in tokens[first : first + n]:
                h = mix((h + token) & MASK)
            counts[h] = counts.get(h, 0) + 1
    vector = [0] * dimension
    for h, count in counts.items():
        vector[h % dimension] += -count.bit_length() if h >> 63 else count.bit_length()
    return vector


def bm25(documents: list[list[int]], k1: float, b: float) -> list[dict[int, float]]:
    """The weight of each term of each document; sums of products are scores."""
    mean = sum(map(len, documents)) / len(documents)
    found = []
    for tokens in documents:
        weights = {}
        for term in tokens:
            have = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - have + 0.5) / (have + 0.5))
            c = tokens.count(term)
            saturated = c * (k1 + 1) / (c + k1 * (1 - b + b * len(tokens) / mean))
            weights[term] = math.sqrt(idf) * saturated
        found.append(weights)
    return found


def squared_cosine(a: list[int], b: list[int]) -> Fraction:
    """The sign of the cosine times its square: exact, and in the same order as cosines."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    length = sum(x * x for x in a) * sum(y * y for y in b)
    return Fraction(dot * abs(dot), length) if length else Fraction(0)


def neighbours(
    similarity: Any, k: int, threshold: Any
) -> tuple[list[int], list[int], list[list[int]]]:
    """Kept documents, the original of each duplicate (-1 if kept), neighbours of the kept ones."""
    count = len(similarity)
    kept: list[int] = []
    duplicate_of = []
    for i in range(count):
        twins = [j for j in kept if similarity[i][j] > threshold]
        duplicate_of.append(twins[0] if twins else -1)
        if not twins:
            kept.append(i)
    nearest = []
    for a in range(len(kept)):
        others = [b for b in range(len(kept)) if b != a]
        others.sort(key=lambda b: (-similarity[kept[a]][kept[b]], b))
        nearest.append(others[:k])
    return kept, duplicate_of, nearest


def path(nearest: list[list[int]], similarity: Any, shortest: int = 21) -> list[int]:
    edges: list[set[int]] = [set() for _ in nearest]
    for i, near in enumerate(nearest):
        for j in near:
            edges[i].add(j)
            edges[j].add(i)
    degree = [len(some) for some in edges]
    unvisited = set(range(len(nearest)))
    runs: list[list[int]] = []
    while unvisited:
        i = min(unvisited, key=lambda a: (degree[a], a))
        runs.append([])
        while True:
            runs[-1].append(i)
            unvisited.remove(i)
            open_edges = edges[i] & unvisited
            if not open_edges:
                break
            i = min(open_edges, key=lambda j: (-similarity[runs[-1][-1]][j], j))
    merge(runs, edges, similarity, shortest)
    return [i for run in runs for i in run]


def merge(runs: list[list[int]], edges: list[set[int]], similarity: Any, shortest: int) -> None:
    """Dissolve runs shorter than `shortest`, in place."""
    for run in runs:
        for i in list(run) if len(run) < shortest else []:
            others = [j for j in edges[i] if j not in run]
            if not others:
                continue
            target = min(others, key=lambda j: (-similarity[i][j], j))
            joined = next(some for some in runs if target in some)
            run.remove(i)
            at = joined.index(target)
            front, behind = joined[at - 1 : at] if at else [], joined[at + 1 : at + 2]
            sides = [
                max((similarity[i][j] for j in side if j in edges[i]), default=-3.0)
                for side in (front, behind)
            ]
            joined.insert(at if sides[0] > sides[1] else at + 1, i)


def limited_path(
    nearest: list[list[int]], similarity: Any, limit: float, k: int, lengths: list[int], row: int
) -> list[int]:
    """The walk in which documents above the limit are a row apart, without merged runs."""
    below = [[j for j in near if similarity[i][j] <= limit][:k] for i, near in enumerate(nearest)]
    above = {(i, j) for i, near in enumerate(nearest) for j in near if similarity[i][j] > limit}
    edges: list[set[int]] = [set() for _ in nearest]
    for i, near in enumerate(below):
        for j in near:
            edges[i].add(j)
            edges[j].add(i)
    found: list[int] = []

    def may_follow(j: int) -> bool:
        between = 0
        for i in reversed(found):
            if between >= row:
                return True
            if (i, j) in above or (j, i) in above:
                return False
            between += lengths[i]
        return True

    while len(found) < len(nearest):
        left = [i for i in range(len(nearest)) if i not in found]
        free = [j for j in left if may_follow(j)]
        linked = [j for j in free if found and j in edges[found[-1]]]
        if linked:
            last = found[-1]
            found.append(min(linked, key=lambda j: (-similarity[last][j], j)))
        else:
            found.append(min(free or left, key=lambda a: (len(edges[a]), a)))
    return found
