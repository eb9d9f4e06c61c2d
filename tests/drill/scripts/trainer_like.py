"""The Trainer of transformers on a map-style dataset, in two epochs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tiny import Tiny, loss_of, row
from transformers import Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT = config.fault


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = Tiny()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(input_ids)
        return {"loss": loss_of(logits[:, :-1], labels[:, 1:]), "logits": logits}


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": row(index), "labels": row(index)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(0)
    arguments = TrainingArguments(
        output_dir=str(config.output_dir), per_device_train_batch_size=4, num_train_epochs=1.5,
        save_steps=4, learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True,
        logging_strategy="no", ignore_data_skip=FAULT == "no skip",
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Rows())
    # A folder of a save that was killed has no trainer_state.json, which is written last.
    states = config.output_dir.glob("checkpoint-*/trainer_state.json")
    saved = sorted((state.parent for state in states), key=lambda folder: int(folder.name[11:]))
    trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
