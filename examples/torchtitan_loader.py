"""torchtitan: its dataloader on top of a `PackedLoader`.

    python examples/torchtitan_loader.py

In a job's config, ``dataloader=PackedDataLoader.Config(source=..., options={...})`` is all; the
trainer builds it with its data-parallel degree and rank, and checkpoints it. Here the same is done
by hand, with torchtitan installed or not, through a real distributed checkpoint.

torchtitan finds documents by positions that are 0, so its attention backend must be one with masks
("flex" or "varlen").
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from streampack.trainers.torchtitan import PackedDataLoader


def main() -> None:
    """Take batches, save, take some more; load, and take the same again."""
    documents = [[1 + i % 63] * (1 + i * 7 % 60) for i in range(300)]
    config = PackedDataLoader.Config(source=documents, options={"lanes": 1})
    shape = {"max_context_length": 64, "num_tokens_per_batch": 256}
    job: dict[str, Any] = {"dp_world_size": 1, "dp_rank": 0, **shape}
    loader = PackedDataLoader(config, **job)
    batches = iter(loader)
    for _ in range(5):
        inputs, labels = next(batches)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"dataloader": loader}, checkpoint_id=folder)
        expected = [next(batches) for _ in range(5)]
        again = PackedDataLoader(config, **job)
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
