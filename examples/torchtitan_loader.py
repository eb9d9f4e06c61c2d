"""Your own trainer: torchtitan's dataloader on top of a `PackedLoader`.

    python examples/torchtitan_loader.py

A trainer needs three things of a loader: arguments (ranks and sizes), a batch in the trainer's own
form, and a state for its checkpoint. `PackedDataLoader` has the three for torchtitan.
Copy it into your code, and change `microbatch` where your version of torchtitan, or your trainer,
takes something else. In a job's config, ``dataloader=PackedDataLoader.Config(source=...)`` is all.
Here the trainer's part is done by hand, with torchtitan installed or not, through a real
distributed checkpoint.

torchtitan finds documents by positions that are 0, so its attention backend must be one with masks
("flex" or "varlen").
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from streampack import DistributedState, PackedBatch, PackedDataset, PackedLoader, Topology


def _base() -> Any:
    """torchtitan's `BaseDataLoader`, of 0.3 or of its main branch; without it, a class alone."""
    for name in ("torchtitan.components.data.loader", "torchtitan.components.dataloader"):
        try:
            return importlib.import_module(name).BaseDataLoader
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("torchtitan"):
                raise

    class WithoutTorchtitan:
        class Config:
            pass

    return WithoutTorchtitan


_Base: Any = _base()


def microbatch(batch: PackedBatch, *, flat: bool, one_dict: bool) -> Any:
    """Return the input of torchtitan's trainer: int64 tensors, with labels for the next token.

    Args:
        batch: with labels that are not shifted, as all batches.
        flat: (T,), as its main branch takes them; otherwise (rows, seq_len), as 0.3 does.
        one_dict: a dictionary of "input", "labels", "positions", "padding_mask" and
            "num_valid_tokens", as the main branch takes since September 2026 (its #4398, #4572,
            #4649); otherwise ``({"input", "positions"}, labels)``.
    """
    shape = (-1,) if flat else (batch.rows, batch.seq_len)
    inputs = {"input": batch.input_ids.view(shape), "positions": batch.position_ids.view(shape)}
    labels = batch.next_tokens().view(shape)
    if not one_dict:
        return inputs, labels
    padding = batch.padding_mask.view(shape)
    counted = {"padding_mask": padding, "num_valid_tokens": batch.num_loss_tokens}
    return {**inputs, "labels": labels, **counted}


class PackedDataLoader(_Base):  # type: ignore[misc]
    """torchtitan's dataloader of packed documents, as its trainer builds it."""

    @dataclass(kw_only=True, slots=True)
    class Config(_Base.Config):  # type: ignore[misc]
        """Settings of the loader.

        Attributes:
            source: a source, a path, or whatever `PackedDataset` takes.
            options: its other arguments; ``epochs`` is None unless given, since torchtitan ends
                by its own number of steps.
            num_workers: worker processes.
            one_dict: the form of a batch, see `microbatch`.
        """

        source: Any = None
        options: dict[str, Any] = field(default_factory=dict)
        num_workers: int = 0
        one_dict: bool = False

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **sizes: Any) -> None:
        self._flat = "num_tokens_per_batch" in sizes
        if self._flat:  # the main branch
            seq_len = sizes["max_context_length"]
            rows = sizes["num_tokens_per_batch"] // seq_len
        else:  # 0.3
            seq_len, rows = sizes["seq_len"], sizes["local_batch_size"]
        dataset = PackedDataset(
            config.source,
            topology=Topology(rank=dp_rank, world_size=dp_world_size),
            **{"epochs": None, **config.options, "seq_len": seq_len, "batch_size": rows},
        )
        self._one_dict = config.one_dict
        self._loader = PackedLoader(dataset, num_workers=config.num_workers)
        self._state = DistributedState(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield microbatch(batch, flat=self._flat, one_dict=self._one_dict)

    def state_dict(self) -> dict[str, Any]:
        """One entry, the same on all ranks: a run may go on on another number of them."""
        return self._state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after a checkpoint; torchtitan passes nothing where it has no data state."""
        if state_dict:
            self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """Nothing is left open after an iterator."""


def main() -> None:
    """Take batches, save, take some more; load, and take the same once more."""
    documents = [[1 + i % 63] * (1 + i * 7 % 60) for i in range(300)]
    config = PackedDataLoader.Config(source=documents, options={"lanes": 1})
    shape = {"max_context_length": 64, "num_tokens_per_batch": 256}
    job: dict[str, Any] = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, **shape}
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
