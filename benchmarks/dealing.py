"""Evenness of an epoch's end, with lanes cut equally once and with dealt lanes.

    python -m benchmarks.dealing [--ranks 8 64] [--batches 200] [--only NAME ...]
    python -m benchmarks.dealing --small

Each corpus is read, packed and counted through a `PackedLoader`, without tokens: documents have a
size in bytes, by which the line is cut, and a length in tokens, which nobody knows before it is
read. Prints the share of the batches of a finite run that are empty, and by how many steps the run
is above the steps that its batches would need if any rank could take any of them. One rank runs all
lanes here: which steps more ranks would take follows from the numbers of the batches.

With --small: the steps of one epoch over few conversations, in as many lanes as the run would
choose, beside the steps after planning them all at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, Topology
from streampack.documents.blocks import Documents, make_origin
from streampack.packing import BestFitDecreasing
from streampack.run.plan import RunPlan
from streampack.sources import Mixture
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest
from streampack.sources.sharded import ShardedSource

SEQ_LEN, ROWS = 2048, 8
LANES = {1: 12, 8: 48, 64: 64}  # by ranks
SHARD_DOCUMENTS = 500

#: A shard: (N,) tokens and (N,) bytes of its documents.
Shard = tuple[NDArray[np.int64], NDArray[np.int64]]


class Sizes(ShardedSource):
    """Documents of given lengths, with one token throughout."""

    tokenized = True

    def __init__(self, shards: list[Shard]) -> None:
        super().__init__()
        self.lengths = [lengths for lengths, _ in shards]
        self.starts = [np.concatenate([[0], np.cumsum(sizes)]) for _, sizes in shards]

    def list_shards(self) -> Manifest:
        """Shards of so many bytes."""
        sizes = np.array([starts[-1] for starts in self.starts], dtype=np.int64)
        return Manifest([f"shard-{i}" for i in range(len(sizes))], sizes, sizes)

    def estimate_tokens(self) -> int:
        """Four bytes per token."""
        return self.manifest.weight // 4

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Documents, int, int]]:
        """Yield the documents with their first byte in [low, high)."""
        starts = self.starts[shard]
        first, stop = (int(n) for n in np.searchsorted(starts[:-1], [low, high]))
        if position is not None:
            first = max(first, position)
        while first < stop:
            end = min(first + self.reading.documents_per_block, stop)
            offsets = np.concatenate([[0], np.cumsum(self.lengths[shard][first:end])])
            origin = make_origin(shard, np.arange(first, end))
            documents = Documents(np.zeros(offsets[-1], dtype=np.uint16), offsets, origin)
            yield documents, end, high if end == stop else max(low, int(starts[end]))
            first = end


def shards(
    count: int,
    *,
    between: float,
    within: float,
    density: float,
    noise: float,
    longest: int = 8192,
    documents: int = SHARD_DOCUMENTS,
) -> list[Shard]:
    """Shards of documents with lognormal lengths and bytes per token.

    Args:
        count: of shards.
        between: deviation of the shards' typical log length; within: of documents in a shard.
        density: deviation of the shards' log bytes per token; noise: of documents in a shard.
        longest: maximum length of a document.
        documents: of a shard.
    """
    numbers = np.random.default_rng(count)
    made = []
    for _ in range(count):
        typical = numbers.normal(6.0, between)
        lengths = np.exp(numbers.normal(typical, within, documents)).astype(np.int64) + 1
        lengths = np.minimum(lengths, longest)
        per_token = 4 * np.exp(numbers.normal(0, density) + numbers.normal(0, noise, len(lengths)))
        made.append((lengths, (lengths * per_token).astype(np.int64) + 20))
    return made


def one_sorted(count: int) -> list[Shard]:
    """One shard, its documents sorted by length."""
    made = shards(count, between=0, within=1.0, density=0, noise=0.15)
    lengths, sizes = (np.concatenate(parts) for parts in zip(*made, strict=True))
    order = np.argsort(lengths, kind="stable")
    return [(lengths[order], sizes[order])]


def one_large(count: int) -> list[Shard]:
    """One shard that is half of the corpus, others that differ, and one with a single document."""
    rest = shards(count // 2, between=0.3, within=0.9, density=0.3, noise=0.15)
    large = shards(count - count // 2, between=0, within=0.9, density=0, noise=0.15)
    lengths, sizes = (np.concatenate(parts) for parts in zip(*large, strict=True))
    return [*rest, (lengths, sizes), (lengths[:1], sizes[:1])]


def mixed(count: int, books: int, **options: Any) -> Mixture:
    """Three sources with unlike shards; `books` of each 20 shards belong to the smallest."""
    sizes = {"web": 20 - 6 - books, "code": 6, "books": books}
    sources = {
        name: Sizes(shards(max(count * n // 20, 1), between=0.4, within=0.9, density=d, noise=0.15))
        for (name, n), d in zip(sizes.items(), (0.2, 0.4, 0.0), strict=True)
    }
    return Mixture(sources, **options)


CORPORA: dict[str, Callable[[int], Source]] = {
    "shards alike": lambda n: Sizes(shards(n, between=0, within=0.9, density=0, noise=0.15)),
    "shards differ in length and bytes per token": lambda n: Sizes(
        shards(n, between=0.6, within=0.9, density=0.3, noise=0.15)
    ),
    "shards differ fourfold in bytes per token": lambda n: Sizes(
        shards(n, between=0, within=0.9, density=0.6, noise=0.15)
    ),
    "one shard, sorted by length": lambda n: Sizes(one_sorted(n)),
    "one shard is half of it, one has one document": lambda n: Sizes(one_large(n)),
    "mixture, equal weights": lambda n: mixed(n, 2, weights={"web": 1, "code": 1, "books": 1}),
    "mixture, a twentieth of it four times": lambda n: mixed(n, 1, epochs={"books": 4}),
}


def loader_of(source: Source, lanes: int, *, dealt: bool) -> PackedLoader:
    """A run over a source."""
    dataset = PackedDataset(
        source, seq_len=SEQ_LEN, batch_size=ROWS, lanes=lanes, topology=Topology()
    )
    if not dealt:
        config = replace(dataset.plan.config, dealing=None)
        plan = RunPlan.of(config, dataset.topology)
        dataset._continue_from(plan, plan.start())
    return PackedLoader(dataset)


def steps_of(source: Source, lanes: int, ranks: int, *, dealt: bool) -> tuple[int, int]:
    """Return the number of a run's steps, and of its batches that are not empty."""
    batches = loader_of(source, lanes, dealt=dealt)
    steps = [(batch.step * lanes + batch.lane) // ranks for batch in batches if batch.num_documents]
    return len(set(steps)), len(steps)


def small_corpora() -> list[list[str]]:
    """Rows of a table: conversations, ranks, lanes, steps if planned all at once, and steps."""
    found = []
    packer = BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop")
    for count in (500, 5_000, 50_000):
        ((lengths, sizes),) = shards(
            1, between=0, within=0.9, density=0, noise=0.3, documents=count, longest=SEQ_LEN
        )
        rows = packer.plan(lengths, final=True, seed=0).num_rows
        for ranks in (1, 8, 64):
            source = Sizes([(lengths, sizes)])
            chosen = PackedDataset(
                source, seq_len=SEQ_LEN, batch_size=ROWS, topology=Topology(0, ranks)
            )
            lanes = chosen.plan.config.lanes
            steps, _ = steps_of(source, lanes, ranks, dealt=True)
            offline = -(-rows // (ROWS * ranks))
            found.append([f"{count:,}", str(ranks), str(lanes), f"{offline:,}", f"{steps:,}"])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How even the end of an epoch is.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--batches", type=int, nargs="+", default=[200], help="of a lane")
    parser.add_argument("--only", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        heads = ["conversations", "ranks", "lanes", "steps, planned at once", "steps"]
        print_table("Small corpora", heads, small_corpora())
        return
    rows = []
    for name in options.only:
        for ranks in options.ranks:
            lanes = LANES.get(ranks, ranks)
            for batches in options.batches:
                tokens = lanes * batches * SEQ_LEN * ROWS
                source = CORPORA[name](max(tokens // (SHARD_DOCUMENTS * 600), 1))
                once, filled = steps_of(source, lanes, ranks, dealt=False)
                share = 1 - filled / (once * ranks)
                dealt, filled = steps_of(source, lanes, ranks, dealt=True)
                needed = -(-filled // ranks)
                figures = [
                    f"{dealt - needed}",
                    f"{share:.2%}",
                    f"{1 - filled / (dealt * ranks):.2%}",
                ]
                rows.append([name, str(ranks), str(lanes), f"{dealt:,}", *figures])
    heads = ["corpus", "ranks", "lanes", "steps", "above", "cut once", "dealt"]
    print_table("Empty batches", heads, rows)


if __name__ == "__main__":
    main()
