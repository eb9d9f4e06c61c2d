"""The transformers Trainer: padded and truncated documents, and packed ones.

The change: `TrainerMixin` before `Trainer`, and `loader=` in place of `train_dataset` and collator.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from examples.clients.common import ROWS, SAVED_AFTER, SEQ_LEN, STEPS, Corpus, Side, tiny_llama
from streampack import PackedLoader
from streampack.trainers import TrainerMixin


class PackedTrainer(TrainerMixin, Trainer):  # type: ignore[misc]
    """A Trainer on a `PackedLoader`."""


def settings(corpus: Corpus) -> dict[str, Any]:
    """Return `TrainingArguments` settings for both sides and for TRL."""
    return {
        "output_dir": str(corpus.folder / "run"), "max_steps": STEPS, "save_steps": SAVED_AFTER,
        "learning_rate": 1e-3, "lr_scheduler_type": "constant", "logging_steps": 1, "seed": 0,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "log_level": "error",
    }  # fmt: skip


def losses(trainer: Any) -> list[float]:
    """Return the losses of the steps that a Trainer has logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train(make: Any, corpus: Corpus) -> tuple[list[float], list[float]]:
    """Return the losses of a run, and of a run that resumes after step `SAVED_AFTER`."""
    whole, again = make(), make()
    for trainer in (whole, again):
        trainer.remove_callback(PrinterCallback)
    whole.train()
    again.train(resume_from_checkpoint=str(corpus.folder / f"run/checkpoint-{SAVED_AFTER}"))
    return losses(whole), losses(again)[SAVED_AFTER:]


def before(corpus: Corpus) -> Side:
    """A document per row, cut to the row's length and padded to the longest of its batch."""
    rows = Dataset.from_dict({"input_ids": [ids[:SEQ_LEN] for ids in corpus.documents]})

    def make() -> Any:
        collator = DataCollatorForLanguageModeling(corpus.tokenizer, mlm=False)
        args = TrainingArguments(**settings(corpus), per_device_train_batch_size=ROWS)
        return Trainer(tiny_llama(), args, collator, train_dataset=rows)

    batches = list(make().get_train_dataloader())
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    slots = sum(batch["input_ids"].numel() for batch in batches)
    return Side(corpus.tokens, len(batches), tokens, slots, 0, *train(make, corpus))


def after(corpus: Corpus) -> Side:
    """Packed rows."""

    def make() -> Any:
        args = TrainingArguments(**settings(corpus))
        return PackedTrainer(model=tiny_llama(), args=args, loader=PackedLoader(corpus.dataset()))

    return Side(*corpus.packed_epoch(), *train(make, corpus))


def sides(corpus: Corpus) -> dict[str, Side]:
    """Return both sides."""
    return {"padding": before(corpus), "streampack": after(corpus)}
