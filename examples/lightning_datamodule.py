"""Lightning: a DataModule with the data's position in checkpoints: pip install lightning.

    python examples/lightning_datamodule.py

Lightning takes batches one ahead of the training step; by `DataModuleMixin` a checkpoint holds the
place after the batch of the last step.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology
from streampack.trainers import DataModuleMixin

VOCABULARY = 64


class PackedDataModule(DataModuleMixin, LightningDataModule):  # type: ignore[misc]
    """Packed batches; saved and restored with the Trainer's checkpoints."""


class Bigrams(LightningModule):  # type: ignore[misc]
    """A model that knows nothing but the token before; `seen` counts the training tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))
        self.register_buffer("seen", torch.zeros(VOCABULARY, dtype=torch.int64))

    def training_step(self, batch: PackedBatch, batch_idx: int) -> torch.Tensor:
        """The mean over the batch's loss tokens."""
        self.seen += torch.bincount(batch.input_ids.view(-1), minlength=VOCABULARY)
        return batch.loss(self.layers(batch.input_ids))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def make_data() -> PackedDataModule:
    """Documents of one id each."""
    documents = [[1 + i % 63] * (1 + i * 7 % 60) for i in range(400)]
    dataset = PackedDataset(documents, seq_len=128, lanes=1, topology=Topology())
    return PackedDataModule(PackedLoader(dataset))


def make_trainer(max_steps: int) -> Any:
    """A Trainer that is silent and on the CPU."""
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=max_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main(folder: Path) -> None:
    """12 steps at a stretch; 5, a checkpoint, and 7 by a new Trainer: the same."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    whole = Bigrams()
    parts = copy.deepcopy(whole)
    resumed = copy.deepcopy(whole)
    make_trainer(12).fit(whole, datamodule=make_data())
    first = make_trainer(5)
    first.fit(parts, datamodule=make_data())
    first.save_checkpoint(folder / "five.ckpt")
    make_trainer(12).fit(
        resumed, datamodule=make_data(), ckpt_path=folder / "five.ckpt", weights_only=False
    )
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    apart = max(float((a - b).detach().abs().max()) for a, b in pairs)
    same = torch.equal(whole.seen, resumed.seen)
    print(f"12 steps against 5 and 7: weights differ by {apart:.1e}; the same tokens: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
