"""litgpt's pretraining: rows of joined documents in a data module, and a `PackedLoader` in one.

The change: `train_dataloader` returns a `PackedLoader`. litgpt takes rows of ids, one longer than
the model's block, and learns all of them, so rows are read as one sequence (`attention="row"`).
"""

from __future__ import annotations

import csv
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from litgpt import Config, Tokenizer
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from litgpt.pretrain import setup
from torch.utils.data import DataLoader

from examples.clients.common import ROWS, SAVED_AFTER, SEQ_LEN, STEPS, Corpus, Side
from streampack import PackedLoader


class Module(DataModule):
    """A data module of one loader, which also evaluates."""

    def __init__(self, make_loader: Any) -> None:
        super().__init__()
        self.make_loader = make_loader

    def connect(
        self, tokenizer: Tokenizer | None = None, batch_size: int = 1, max_seq_length: int = 1
    ) -> None:
        """Sizes are the loader's own."""

    def train_dataloader(self) -> Any:
        """Rows of `SEQ_LEN` + 1 ids."""
        return self.make_loader()

    def val_dataloader(self) -> Any:
        """The same."""
        return self.make_loader()


def train(make_loader: Any, folder: Path) -> tuple[list[float], list[float]]:
    """Return the losses of a run, and of a run that resumes after step `SAVED_AFTER`.

    litgpt puts its loader into the checkpoint. Of one without a state that is the whole object,
    which torch refuses to load: none are resumed.
    """
    whole = losses(make_loader, folder, resume=False)
    try:
        return whole, losses(
            make_loader, folder, resume=folder / f"step-{SAVED_AFTER:08d}" / "lit_model.pth"
        )
    except pickle.UnpicklingError:
        return whole, []


def losses(make_loader: Any, folder: Path, *, resume: Path | bool) -> list[float]:
    """Return the losses of one run, as litgpt logs them."""
    sys.argv[1:] = ["tiny"]  # litgpt saves its settings as its command line gives them
    setup(
        "tiny",
        Config(
            name="tiny", block_size=SEQ_LEN, vocab_size=2000, n_layer=2, n_head=4, n_embd=64
        ),
        out_dir=folder,
        precision="32-true",
        resume=resume,
        data=Module(make_loader),
        train=TrainArgs(
            save_interval=SAVED_AFTER, log_interval=1, global_batch_size=ROWS,
            micro_batch_size=ROWS, max_tokens=STEPS * ROWS * SEQ_LEN, lr_warmup_steps=0,
            min_lr=1e-3, tie_embeddings=False, max_norm=1.0,
        ),
        eval=EvalArgs(interval=10**6, max_iters=1, initial_validation=False),
        devices=1,
        logger_name="csv",
        seed=0,
    )  # fmt: skip
    logs = max(folder.glob("logs/csv/version_*/metrics.csv"), key=lambda file: file.stat().st_mtime)
    with logs.open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


def sides(corpus: Corpus) -> dict[str, Side]:
    """Return both sides."""

    def joined() -> Any:
        ids = torch.tensor([token for document in corpus.documents for token in document])
        rows = ids[: len(ids) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].view(-1, SEQ_LEN + 1)
        generator = torch.Generator().manual_seed(0)
        return DataLoader(list(rows), ROWS, shuffle=True, generator=generator, drop_last=True)  # type: ignore[arg-type]

    def packed() -> PackedLoader:
        dataset = corpus.dataset(SEQ_LEN + 1, attention="row")
        return PackedLoader(dataset, transform=lambda batch: batch.input_ids)

    before = corpus.joined_epoch(SEQ_LEN + 1)
    after = corpus.packed_epoch(SEQ_LEN + 1, attention="row")
    return {
        "joined rows": Side(*before, *train(joined, corpus.folder / "joined")),
        "streampack": Side(*after, *train(packed, corpus.folder / "packed")),
    }
