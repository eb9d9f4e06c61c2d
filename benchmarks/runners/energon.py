"""Megatron-Energon's packing: its `PackingDataset` with a knapsack in numpy.

Energon leaves the choice of packs to a function of the user's; this one is the greedy knapsack of
its documentation's kind (fill each pack with the longest sample that still fits), with sorted
lengths and a binary search instead of Python lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.protocol import SEQ_LEN, Counts, Timed

__all__ = ["EnergonPacking"]

BUFFER = 10_000


class EnergonPacking(Timed):
    """`PackingDataset` over documents in memory."""

    label = "Megatron-Energon, packing"
    environment = "energon"
    settings = f"buffer_size={BUFFER:,}, numpy knapsack, no sample encoder"
    delivers = "ids, positions, cu_seqlens: 6 bytes per slot"

    def prepare(self) -> None:
        """Documents no longer than a row (longer ones are cut: the knapsack needs them to fit)."""
        self.pieces = [
            document[start : start + SEQ_LEN]
            for document in self.workload.documents
            for start in range(0, len(document), SEQ_LEN)
        ]
        self.ramp = np.arange(SEQ_LEN, dtype=np.int32)

    def batches(self) -> Iterator[Any]:
        """One packed row at a time."""
        from megatron.energon import SavableDataset, WorkerConfig
        from megatron.energon.wrappers import PackingDataset

        pieces = self.pieces

        class InMemory(SavableDataset[Any]):  # type: ignore[misc]
            def __iter__(self) -> Iterator[Any]:
                yield from pieces

            def len_worker(self, worker_idx: int | None = None) -> int:
                return len(pieces)

            def worker_has_samples(self) -> bool:
                return True

            def reset_state_own(self) -> None:
                pass

            def config(self) -> dict[str, Any]:
                return {}

        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = PackingDataset(
            InMemory(config),
            buffer_size=min(BUFFER, len(pieces)),
            pre_packer=knapsack,
            final_packer=self.join,
            worker_config=config,
        )
        config.worker_activate(0)
        try:
            yield from dataset
        finally:
            config.worker_deactivate()

    def join(self, pack: list[Any]) -> Any:
        """One row: ids, position ids, cu_seqlens."""
        ids = np.zeros(SEQ_LEN, dtype=np.uint16)
        positions = np.zeros(SEQ_LEN, dtype=np.int32)
        ends = np.zeros(len(pack) + 1, dtype=np.int32)
        np.cumsum([len(piece) for piece in pack], out=ends[1:])
        np.concatenate(pack, out=ids[: ends[-1]])
        for i, piece in enumerate(pack):
            positions[ends[i] : ends[i + 1]] = self.ramp[: len(piece)]
        return _Row((ids, positions, ends))

    def check(self) -> Counts:
        """Every token once."""
        rows = tokens = checksum = 0
        for ids, _, ends in self.batches():
            rows += 1
            tokens += int(ends[-1])
            checksum += int(ids[: ends[-1]].sum(dtype=np.int64))
        lengths = self.workload.lengths
        cut = int((lengths > SEQ_LEN).sum())
        counts = Counts(rows * SEQ_LEN, tokens, len(lengths), cut, checksum)
        self.expect_all(counts)
        return counts


class _Row(tuple[Any, ...]):
    """A tuple that may carry the restore key that Energon puts on samples."""


def knapsack(samples: list[Any]) -> list[list[Any]]:
    """Fill each pack with the longest sample that still fits."""
    lengths = np.array([len(sample) for sample in samples])
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order].tolist()
    numbers = order.tolist()
    packs = []
    from bisect import bisect_right

    while ascending:
        room, pack = SEQ_LEN, []
        while room > 0:
            place = bisect_right(ascending, room) - 1
            if place < 0:
                break
            room -= ascending.pop(place)
            pack.append(samples[numbers.pop(place)])
        packs.append(pack)
    return packs
