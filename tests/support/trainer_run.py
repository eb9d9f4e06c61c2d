"""A rank of a Trainer's run, counting its training tokens: see tests/frameworks/test_trainer.py.

    trainer_run.py FOLDER MAX_STEPS SAVE_STEPS [CHECKPOINT]

Writes counts-RANK-MAX_STEPS.json: how many tokens of each id this rank has trained on; and checks
that an evaluation by all ranks gives the loss that this one finds by itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from examples.hf_trainer import VOCABULARY, PackedTrainer, make_trainer, write_corpus
from streampack import PackedDataset, Topology

DOCUMENTS = 303  # which give each rank an even number of batches: a step takes two


class CountingTrainer(PackedTrainer):
    counts = torch.zeros(VOCABULARY, dtype=torch.int64)

    def training_step(self, model: Any, inputs: Any, *arguments: Any) -> Any:
        assert inputs["input_ids"].shape == (1, 128)
        self.counts += torch.bincount(inputs["input_ids"].view(-1), minlength=VOCABULARY)
        return super().training_step(model, inputs, *arguments)


def held_out(topology: Topology | None = None) -> PackedDataset:
    documents = [[1 + i % 70] * (3 + i * i % 61) for i in range(99)]
    return PackedDataset.evaluation(documents, seq_len=64, batch_size=2, topology=topology)


def assert_evaluation(trainer: Any) -> None:
    found, total, tokens = trainer.evaluate(held_out())["eval_loss"], 0.0, 0
    model = trainer.model.eval()
    for batch in held_out(Topology()):
        with torch.no_grad():
            loss = batch.loss(model(**batch.hf(model=model)).logits)
        total, tokens = total + float(loss) * batch.num_loss_tokens, tokens + batch.num_loss_tokens
    assert abs(found - total / tokens) < 1e-4, (found, total / tokens)


def main(folder: Path, max_steps: int, save_steps: int, checkpoint: str | None) -> None:
    torch.set_num_threads(1)
    corpus = write_corpus(folder / "corpus", DOCUMENTS)
    trainer = make_trainer(
        folder / "run", corpus, max_steps=max_steps, save_steps=save_steps, kind=CountingTrainer
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    assert_evaluation(trainer)
    path = folder / f"counts-{os.environ['RANK']}-{max_steps}.json"
    path.write_text(json.dumps(trainer.counts.tolist()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), (sys.argv[4:] or [None])[0])
