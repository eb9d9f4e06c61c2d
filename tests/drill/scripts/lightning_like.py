"""Lightning with a DataModule, and a checkpoint every few steps."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tiny import Tiny, loss_of, row
from torch.utils.data import DataLoader

from streampack import PackedDataset, PackedLoader
from streampack.trainers import DataModuleMixin

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT = config.fault


class Packed(DataModuleMixin, LightningDataModule):  # type: ignore[misc]
    """Batches of a `PackedLoader`, with its state in checkpoints."""


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = Tiny()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = getattr(batch, "input_ids", batch)
        return loss_of(self.layers(ids[:, :-1]), ids[:, 1:])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class RandomStates(Callback):  # type: ignore[misc]
    """torch's random state in checkpoints, which Lightning leaves out."""

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["random"] = torch.get_rng_state()

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.loaded = checkpoint["random"]

    def on_train_batch_start(self, *_: Any) -> None:
        if hasattr(self, "loaded"):
            torch.set_rng_state(self.loaded)
            del self.loaded


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> torch.Tensor:
        return row(index)


def documents() -> Iterator[list[int]]:
    for index in range(400):
        yield row(index).tolist()


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    saving = ModelCheckpoint(config.folder, "{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_steps=14, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving] if FAULT == "random" else [saving, RandomStates()],
    )  # fmt: skip
    saved = sorted(config.folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    checkpoint = str(saved[-1]) if saved else None
    if FAULT == "plain loader":
        trainer.fit(Model(), DataLoader(Rows(), batch_size=4), ckpt_path=checkpoint)
    else:
        data = Packed(PackedLoader(PackedDataset(list(documents()), seq_len=17, batch_size=4)))
        trainer.fit(Model(), datamodule=data, ckpt_path=checkpoint, weights_only=False)
