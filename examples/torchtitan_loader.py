"""torchtitan: its dataloader contract on top of a `PackedLoader`.

    python examples/torchtitan_loader.py

torchtitan's trainer iterates ``({"input", "positions"}, labels)`` and checkpoints the dataloader as
a `Stateful`. With torchtitan installed, derive the class from its `BaseDataLoader` and set
`dataloader` in the job's config to its `Config`; the trainer then builds it with its data-parallel
degree and rank. Without, the same class runs here, through a real distributed checkpoint.

torchtitan finds documents by positions that are 0, so its attention backend must be one with masks
("flex" or "varlen"). Runs should be endless (``epochs=None``): it ends by its own number of steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from streampack import DistributedState, PackedDataset, PackedLoader, Topology


class PackedTitanLoader:
    """What `torchtitan.components.dataloader.BaseDataLoader` asks for.

    Args:
        corpus: a source, a path, or whatever `PackedDataset` takes.
        dp_world_size, dp_rank: as the trainer passes them.
        seq_len: tokens per row.
        num_tokens_per_batch: T; a batch has as many slots, always.
        flat: (T,) tensors, as torchtitan after 0.3 wants them, or (rows, seq_len), as 0.3 does.
    """

    def __init__(
        self,
        corpus: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        num_tokens_per_batch: int,
        flat: bool = True,
        **options: Any,
    ) -> None:
        dataset = PackedDataset(
            corpus,
            seq_len=seq_len,
            batch_tokens=num_tokens_per_batch,
            epochs=None,
            topology=Topology(rank=dp_rank, world_size=dp_world_size),
            **options,
        )
        self._loader = PackedLoader(dataset)
        self._state = DistributedState(self._loader)
        self._flat = flat

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for batch in self._loader:
            yield batch.torchtitan(flat=self._flat)

    def state_dict(self) -> dict[str, Any]:
        """One entry, the same on all ranks: a run may go on on another number of them."""
        return self._state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torchtitan passes nothing where a checkpoint has no data state."""
        if state_dict:
            self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """Nothing is left open behind an iterator."""


def main() -> None:
    """Take batches, save, take some more; load, and take the same again."""
    documents = [[1 + i % 63] * (1 + i * 7 % 60) for i in range(300)]
    shape = {"seq_len": 64, "num_tokens_per_batch": 256, "lanes": 1}
    job: dict[str, Any] = {"dp_world_size": 1, "dp_rank": 0, **shape}
    loader = PackedTitanLoader(documents, **job)
    batches = iter(loader)
    for _ in range(5):
        inputs, labels = next(batches)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"dataloader": loader}, checkpoint_id=folder)
        expected = [next(batches) for _ in range(5)]
        again = PackedTitanLoader(documents, **job)
        dcp.load({"dataloader": again}, checkpoint_id=folder)
    found = [batch for batch, _ in zip(again, range(5), strict=False)]
    same = all(
        torch.equal(a[1], b[1]) and torch.equal(a[0]["input"], b[0]["input"])
        for a, b in zip(expected, found, strict=True)
    )
    print(f"input {tuple(inputs['input'].shape)}, labels {tuple(labels.shape)}; resumed: {same}")


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    main()
    dist.destroy_process_group()
