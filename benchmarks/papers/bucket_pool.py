"""The published form of Buckets: algorithm 1 over a pool that is filled after each row.

    python -m benchmarks.papers.bucket_pool [--documents 1000000] [--seed 0]

"Beyond Fixed Length: Bucket Pre-training is All You Need" (IJCAI 2025, arXiv 2407.07495v2) prints
the inputs of its two algorithms: documents, buckets, a padding threshold P and a pool size S, and
"generate a bucket", which takes the pool and returns a row and the pool without its documents. The
steps in between are inferred: a row is composed as in the first version, from the documents in the
pool, and then the pool is filled up to S documents in order of arrival.

The script fits lengths to the fixed rows of the first version's table (see `buckets`), draws them
in random order and prints the three ratios for several S and P, beside the published 0.12 % of
padding, 0.28 % of cut documents and 2.81 documents per row. Half a minute for a million documents.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.buckets import draw
from streampack import WindowConfig
from streampack._jit import kernel
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import Buckets, Plan
from streampack.packing.bitmap import clear_bit, new_bitmap, next_set, set_bit

SEQ_LENS = (1024, 2048, 4096, 8192, 16384)
PUBLISHED = (0.12, 0.28, 2.81)  # padding and cut documents in percent, documents per row
SHORTEST = (0, 50, 105)  # tokens
POOLS = (1_000, 10_000, 100_000)
THRESHOLDS = (0.05, 0.2)
SAMPLE = 8192  # documents that a run measures shares on
BATCH_TOKENS = 65_536


def plan_pool(
    lengths: NDArray[np.int64], seq_lens: tuple[int, ...], threshold: float, pool_documents: int
) -> Plan:
    """Compose rows from a pool of at most `pool_documents` documents, filled after each row.

    Args:
        lengths: (N,) int64, tokens per document, in order of arrival.
        seq_lens: the buckets, tokens per row, ascending.
        threshold: share of a row that may be padding.
        pool_documents: documents in the pool; with N or more this is `Buckets.plan`.
    """
    sizes = np.array(seq_lens, dtype=np.int64)
    offsets, bucket, document, start, stop = _compose(lengths, sizes, threshold, pool_documents)
    return Plan.plain(offsets, sizes[bucket], document, start, stop, np.zeros_like(lengths))


@kernel
def _compose(
    lengths: NDArray[np.int64], sizes: NDArray[np.int64], threshold: float, pool: int
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]:
    """Return row offsets, the bucket of every row, and the segments' document, start and stop."""
    largest = sizes[-1]
    count = len(lengths)
    # A document is on the shelf of its remaining tokens, at most `largest` (longer: on the last).
    after = np.full(count, -1, dtype=np.int64)
    before = np.full(count, -1, dtype=np.int64)
    first = np.full(largest + 2, -1, dtype=np.int64)
    last = np.full(largest + 2, -1, dtype=np.int64)
    longest_first = new_bitmap(largest + 2)
    shortest_first = new_bitmap(largest + 2)
    left = lengths.copy()
    bound = 2 * count + lengths.sum() // largest + 1
    offsets = np.zeros(bound + 1, dtype=np.int64)
    bucket = np.empty(bound, dtype=np.int64)
    document = np.empty(bound, dtype=np.int64)
    start = np.empty(bound, dtype=np.int64)
    stop = np.empty(bound, dtype=np.int64)
    arrived = 0
    held = 0
    rows = 0
    k = 0
    while True:
        while arrived < count and held < pool:
            d = arrived
            arrived += 1
            if left[d] > 0:
                held += 1
                _add(d, min(left[d], largest + 1), first, last, after, before)
                set_bit(longest_first, largest + 1 - min(left[d], largest + 1))
                set_bit(shortest_first, min(left[d], largest + 1))
        if held == 0:
            break
        longest = largest + 1 - next_set(longest_first, 0)
        b = min(np.searchsorted(sizes, longest), len(sizes) - 1)
        room = sizes[b]
        empty = True
        while room > 0:
            if empty and longest > largest:
                d = _longest_of(first[largest + 1], after, left)
                size = largest
            else:
                place = next_set(longest_first, largest + 1 - room)
                if place < 0:
                    break
                d = first[largest + 1 - place]
                size = left[d]
            held -= _take(
                d, size, largest, left, first, last, after, before, longest_first, shortest_first
            )
            document[k], start[k] = d, lengths[d] - left[d] - size
            stop[k] = start[k] + size
            k += 1
            room -= size
            empty = False
        if room / sizes[b] > threshold:
            shelf = next_set(shortest_first, 0)
            if shelf >= 0:
                d = last[shelf]
                held -= _take(
                    d, room, largest, left, first, last, after, before,
                    longest_first, shortest_first,
                )  # fmt: skip
                document[k], start[k] = d, lengths[d] - left[d] - room
                stop[k] = start[k] + room
                k += 1
        bucket[rows] = b
        rows += 1
        offsets[rows] = k
    return offsets[: rows + 1], bucket[:rows], document[:k], start[:k], stop[:k]


@kernel
def _longest_of(d: int, after: NDArray[np.int64], left: NDArray[np.int64]) -> int:
    """Return the longest document of a shelf that begins with d; of equals the first."""
    longest = d
    while d >= 0:
        if left[d] > left[longest] or (left[d] == left[longest] and d < longest):
            longest = d
        d = after[d]
    return longest


@kernel
def _add(
    d: int,
    shelf: int,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    after: NDArray[np.int64],
    before: NDArray[np.int64],
) -> None:
    """Put a document on a shelf, in order of arrival."""
    previous = last[shelf]
    while previous > d:
        previous = before[previous]
    following = after[previous] if previous >= 0 else first[shelf]
    before[d], after[d] = previous, following
    if previous >= 0:
        after[previous] = d
    else:
        first[shelf] = d
    if following >= 0:
        before[following] = d
    else:
        last[shelf] = d


@kernel
def _take(
    d: int,
    size: int,
    largest: int,
    left: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    after: NDArray[np.int64],
    before: NDArray[np.int64],
    longest_first: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    shortest_first: tuple[NDArray[np.uint64], NDArray[np.uint64]],
) -> int:
    """Remove `size` tokens of a document from the pool; return 1 if it is used up, else 0."""
    shelf = min(left[d], largest + 1)
    if before[d] >= 0:
        after[before[d]] = after[d]
    else:
        first[shelf] = after[d]
    if after[d] >= 0:
        before[after[d]] = before[d]
    else:
        last[shelf] = before[d]
    if first[shelf] < 0:
        clear_bit(longest_first, largest + 1 - shelf)
        clear_bit(shortest_first, shelf)
    left[d] -= size
    if left[d] == 0:
        return 1
    shelf = min(left[d], largest + 1)
    _add(d, shelf, first, last, after, before)
    set_bit(longest_first, largest + 1 - shelf)
    set_bit(shortest_first, shelf)
    return 0


def print_ratios(plan: Plan, lengths: NDArray[np.int64], *cells: object) -> None:
    """Print the ratios of a plan and their distance from the published ones."""
    got = plan.metrics(lengths)
    ours = 100 * got.padding_ratio, 100 * got.truncation_ratio, got.concatenation_ratio
    distance = " ".join(f"{a - b:+.2f}" for a, b in zip(ours, PUBLISHED, strict=True))
    ratios = f"{ours[0]:.3f} % | {ours[1]:.2f} % | {ours[2]:.2f}"
    print(f"| {' | '.join(map(str, cells))} | {ratios} | {distance} |")


def print_corpus(lengths: NDArray[np.int64], shortest: int) -> None:
    """Print a row for each pool and threshold, and one for the window of a lane."""
    for pool in (*POOLS, len(lengths)):
        for threshold in THRESHOLDS:
            plan = plan_pool(lengths, SEQ_LENS, threshold, pool)
            name = "all" if pool == len(lengths) else f"{pool:,}"
            print_ratios(plan, lengths, shortest, name, threshold)
    packer = Buckets(seq_lens=SEQ_LENS).with_sample(lengths[:SAMPLE])
    online = stream_plan(lengths, packer, WindowConfig(), batch_tokens=BATCH_TOKENS)
    print_ratios(online, lengths, shortest, "our window", packer.padding_threshold)


def main() -> None:
    """Draw lengths, plan and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(
        "| shortest document | pool S | threshold P | padding | cut | documents per row "
        "| from the published |\n|---|---|---|---|---|---|---|"
    )
    for shortest in SHORTEST:
        lengths = draw(arguments.documents, arguments.seed, shortest)
        print_corpus(lengths, shortest)


if __name__ == "__main__":
    main()
