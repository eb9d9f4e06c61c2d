"""Small runs in which every token can be traced, and the identities of their batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch

from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.documents import Documents
from streampack.packing import BestFitDecreasing, Packer
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest
from streampack.trees.batch import TreeBatch
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents

SEQ_LEN = 32
LENGTHS = heavy_tailed(250, seed=11)
DOCUMENTS = numbered_documents(LENGTHS)
PAD = 4_000_000


def make_dataset(packer: Packer | None = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": packer or BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "lanes": 6,
        "topology": Topology(),
        "token_rules": TokenRules(pad_id=PAD, eos_id=PAD + 1),
    }
    source = MemorySource([DOCUMENTS[:95], DOCUMENTS[95:]], block_documents=9)
    return PackedDataset(source, **{**values, **options})


def identity(batch: PackedBatch) -> tuple[int, int, list[int], list[int]]:
    tensors = (batch.slot, batch.tout) if isinstance(batch, TreeBatch) else (batch.cu_seqlens,)
    ends = [end for tensor in tensors for end in tensor.ravel().tolist()]
    return batch.lane, batch.step, batch.input_ids.ravel().tolist(), ends


def identities(batches: Any) -> list[tuple[int, int, list[int], list[int]]]:
    """Return the identities of the batches that hold documents."""
    return [identity(batch) for batch in batches if batch.num_documents]


def filled(found: list[Any]) -> list[Any]:
    """Identities of batches, without batches of padding alone."""
    return [one for one in found if set(one[2]) != {PAD}]


def tokens_of(batches: Any) -> list[int]:
    ids = torch.cat([batch.input_ids.ravel() for batch in batches])
    return sorted(ids[ids < PAD].tolist())


def gone_on(
    first: PackedLoader, taken: int, second: PackedLoader, allow: Collection[str] = ()
) -> list[PackedBatch]:
    """Return `taken` batches of the first loader and all of the second, resumed after them."""
    batches = list(islice(first, taken))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())), allow=allow)
    return [*batches, *second]


def child_processes() -> list[int]:
    import multiprocessing

    return [p.pid for p in multiprocessing.active_children() if p.pid]


class EqualShards(MemorySource):
    """Every shard weighs the same, whatever it holds, so lanes are as unequal as shards are.

    With as many lanes as shards, each lane is one shard.
    """

    WEIGHT = 1 << 10  # of a shard

    def list_shards(self) -> Manifest:
        weights = np.full(len(self.shards), self.WEIGHT, dtype=np.int64)
        return replace(super().list_shards(), weights=weights)

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Documents, int, int]]:
        count = len(self.shards[shard])  # document k lies at k * WEIGHT / count
        start, stop = (-(-n * count // self.WEIGHT) for n in (low, high))
        for block, end, _ in super().read_shard(shard, start, stop, position, skips):
            yield block, end, min(end * self.WEIGHT // count, high)


def uneven(topology: Topology, lanes: int = 12, **options: Any) -> PackedDataset:
    """Lanes of very unequal numbers of batches, some of none: each is one of 12 shards."""
    documents = numbered_documents([7, 30, 12, 5, 21, 3, 17] * 40)
    bounds = [0, 60, 61, 100, 180, 181, 182, 183, 200, 240, 270, 279, 280]
    source = EqualShards([documents[a:b] for a, b in pairwise(bounds)])
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=32),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "token_rules": TokenRules(pad_id=4_000_000),
    }
    return PackedDataset(source, lanes=lanes, topology=topology, **{**values, **options})


def in_order(ranks: list[list[Any]]) -> list[Any]:
    """The ranks' batches as one sequence, each step's ranks in turn."""
    assert len({len(batches) for batches in ranks}) == 1, "a rank had more steps than another"
    return [batch for step in zip(*ranks, strict=True) for batch in step]
