"""The transformers Trainer on packed batches, stopped and resumed.

    python examples/hf_trainer.py [FOLDER]
    torchrun --nproc-per-node 2 examples/hf_trainer.py FOLDER

`TrainerMixin` makes it exact: the Trainer gets the batches of the `PackedLoader` as they are, every
checkpoint holds the loader's state, and the loader continues from it. Training ends after
`max_steps`, because a stream has no length.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from streampack import PackedDataset, PackedLoader, TokenRules, sources
from streampack.trainers import TrainerMixin

VOCABULARY = 128


# On CPU ranks the Trainer calls its device "cpu:0", which torch does not find in a checkpoint.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, tag: storage if tag.startswith("cpu:") else None
)


class PackedTrainer(TrainerMixin, Trainer):  # type: ignore[misc]
    """A Trainer that takes its batches from a `PackedLoader`."""


def make_trainer(
    folder: Path,
    corpus: Any,
    *,
    max_steps: int,
    save_steps: int,
    kind: Any = PackedTrainer,
    eval_dataset: Any = None,
) -> Any:
    """A tiny Llama and its loader."""
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=max_steps,
        save_steps=save_steps,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",  # others depend on max_steps, which differs below
        use_cpu=True,
        ddp_backend="gloo" if torch.distributed.is_torchelastic_launched() else None,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    dataset = PackedDataset(
        corpus, seq_len=64, batch_size=2, lanes=4, token_rules=TokenRules(pad_id=0, eos_id=0)
    )
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(config)
    loader = PackedLoader(dataset)
    return kind(model=model, args=args, loader=loader, eval_dataset=eval_dataset)


def write_corpus(folder: Path, documents: int) -> Any:
    """Token ids as JSON lines: document i repeats the id ``1 + i % 127``."""
    lines = [json.dumps({"tokens": [1 + i % 127] * (1 + i * 7 % 60)}) for i in range(documents)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "documents.jsonl"
    mine = folder / f"documents-{os.getpid()}"  # ranks write the same, and none sees half of it
    mine.write_text("\n".join(lines) + "\n")
    mine.replace(path)
    return sources.JSONL(str(path), tokens="tokens")


def main(folder: Path) -> None:
    """Train 8 steps at a stretch; train 4, start anew from the checkpoint, train 4: the same."""
    torch.set_num_threads(1)
    corpus = write_corpus(folder / "corpus", 600)
    whole = make_trainer(folder / "whole", corpus, max_steps=8, save_steps=100)
    whole.train()
    first = make_trainer(folder / "parts", corpus, max_steps=4, save_steps=4)
    first.train()
    second = make_trainer(folder / "parts", corpus, max_steps=8, save_steps=100)
    second.train(resume_from_checkpoint=str(folder / "parts" / "checkpoint-4"))
    pairs = zip(whole.model.parameters(), second.model.parameters(), strict=True)
    apart = max(float((a - b).detach().abs().max()) for a, b in pairs)
    tokens = second.loader.metrics().composition.placed
    print(f"8 steps against 4 and 4: weights differ by {apart:.1e}; {tokens} tokens since resuming")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
