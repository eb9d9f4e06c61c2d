"""Runs with dealt lanes: shards that differ, alone and in mixtures, and many epochs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from streampack import PackedDataset, TokenRules, Topology, WindowConfig
from streampack.packing import BestFitDecreasing
from streampack.sources import Mixture
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.runs import PAD

LANES = 4


def shards(seed: int, count: int, documents: int, first: int = 0) -> list[list[Any]]:
    """Shards of so many documents, up to five times as long in one as in another.

    Their tokens are consecutive numbers.
    """
    numbers = np.random.default_rng(seed)
    typical = numbers.normal(2.5, 0.5, count)
    lengths = [np.exp(numbers.normal(mean, 0.8, documents)).astype(int) + 1 for mean in typical]
    found = [first + ids for ids in numbered_documents(np.concatenate(lengths).tolist())]
    return [found[i : i + documents] for i in range(0, len(found), documents)]


def num_tokens(of: list[list[Any]]) -> int:
    return sum(len(document) for shard in of for document in shard)


def mixed_shards(documents: int) -> dict[str, list[list[Any]]]:
    """Shards of three sources; the tokens of each begin at a million times its number."""
    return {
        name: shards(number + 1, count, documents, number * 1_000_000)
        for number, (name, count) in enumerate({"web": 16, "code": 9, "books": 3}.items())
    }


ALONE = shards(4, 20, 110)
SOURCES = mixed_shards(75)
#: As many shards with fewer documents.
SHORT_ALONE = shards(4, 20, 45)
SHORT_SOURCES = mixed_shards(30)
#: Arguments of `Mixture`.
MIXTURES: dict[str, dict[str, Any]] = {
    "by size": {},
    "by weights": {"weights": {"web": 0.3, "code": 0.3, "books": 0.4}},
    "until one ends": {"weights": {"web": 0.3, "code": 0.3, "books": 0.1}, "at_end": "stop"},
    "with an endless one": {"epochs": {"books": None}},
    "several epochs of one": {"epochs": {"books": 4}},
}


def dealt(topology: Topology | None = None, source: Any = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": 32,
        "batch_size": 2,
        "window": WindowConfig(rows=16),
        "lanes": LANES,
        "token_rules": TokenRules(pad_id=PAD),
    }
    source = source or MemorySource(ALONE, block_documents=16)
    return PackedDataset(source, topology=topology or Topology(), **{**values, **options})


def dealt_mixture(
    name: str, topology: Topology | None = None, of: Any = SOURCES, **options: Any
) -> PackedDataset:
    parts = {part: MemorySource(shard, block_documents=16) for part, shard in of.items()}
    mixture = Mixture(parts, **{"quantum_documents": 4, **MIXTURES[name]})
    return dealt(topology, mixture, **options)


def of_many_epochs(
    epochs: int, spread: float, seed: int, topology: Topology | None = None
) -> PackedDataset:
    numbers = np.random.default_rng(seed)
    typical = numbers.normal(3.0, spread, 3)
    lengths = [np.exp(numbers.normal(mean, 0.9, 20)).astype(int) + 1 for mean in typical]
    documents = numbered_documents(np.concatenate(lengths).tolist())
    source = MemorySource([documents[at : at + 20] for at in (0, 20, 40)], block_documents=8)
    options: dict[str, Any] = {"seq_len": 64, "window": WindowConfig(rows=8), "lanes": 3}
    return dealt(topology, source, epochs=epochs, **options)


def one_long_document(topology: Topology | None = None) -> PackedDataset:
    """A run with a document a hundred times as long as all others together, in six lanes."""
    documents = numbered_documents([7] * 50 + [20_000] + [9] * 50)
    source = MemorySource([documents[:50], documents[50:51], documents[51:]])
    return dealt(topology, source, window=WindowConfig(rows=10), lanes=6)


#: Sources of `endless`.
NAMES = ("a", "b", "c")


@cache
def _shards_by_name() -> dict[str, list[list[Any]]]:
    rng = np.random.default_rng(3)
    return {
        name: [
            [np.add(ids, 1_000_000 * number) for ids in numbered_documents(lengths.tolist())]
            for lengths in rng.integers(2, 3 * 32, (3, 120))
        ]
        for number, name in enumerate(NAMES)
    }


def endless(
    topology: Topology | None = None, weights: dict[str, float] | None = None, **options: Any
) -> PackedDataset:
    """A mixture of three sources without an end, each with its own tokens; six lanes."""
    parts = {name: MemorySource(of, block_documents=16) for name, of in _shards_by_name().items()}
    weights = weights or dict.fromkeys(NAMES, 1.0)
    mixture = Mixture(parts, weights=weights, quantum_documents=4)
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=32), "batch_size": 2, "epochs": None, "lanes": 6,
        "window": WindowConfig(rows=12), "token_rules": TokenRules(pad_id=PAD),
        "topology": topology or Topology(),
    }  # fmt: skip
    return PackedDataset(mixture, **{**values, **options})
