"""A rank of a Lightning run, counting its training tokens: see tests/frameworks/test_frameworks.py.

    lightning_run.py FOLDER MAX_STEPS [CHECKPOINT]

Saves FOLDER/saved.ckpt and writes FOLDER/tokens-RANK.json: the tokens this rank has trained on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

from examples.lightning_datamodule import Bigrams, PackedDataModule
from streampack import PackedDataset, PackedLoader, TokenRules, sources


def main(folder: Path, max_steps: int, checkpoint: str | None) -> None:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    strategy = DDPStrategy(process_group_backend="gloo", broadcast_buffers=False)
    dataset = PackedDataset(
        sources.JSONL(str(folder / "documents.jsonl"), tokens="tokens"),
        seq_len=128, batch_size=1, lanes=2, token_rules=TokenRules(pad_id=0),
    )  # fmt: skip
    data, model = PackedDataModule(PackedLoader(dataset)), Bigrams()
    trainer = Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy if ranks > 1 else "auto",
        max_steps=max_steps, max_epochs=2 if checkpoint else 1, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    trainer.save_checkpoint(folder / "saved.ckpt")
    seen = int(model.seen[1:].sum())
    (folder / f"tokens-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [None])[0])
