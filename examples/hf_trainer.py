"""The transformers Trainer on packed batches, stopped and resumed.

    python examples/hf_trainer.py [FOLDER]
    torchrun --nproc-per-node 2 examples/hf_trainer.py FOLDER

Three things make it exact:

- `get_train_dataloader` returns the `PackedLoader` as it is. The Trainer's own method, and
  `accelerator.prepare`, would split the batches of each rank over the ranks once more.
- Every checkpoint holds the loader's state, one small file per rank.
- The loader goes on from that file, so ``ignore_data_skip=True``: the Trainer must not skip again.

`max_steps` says how long to train, because a stream has no length. The same class works on TRL's
`SFTTrainer`, with ``dataset_kwargs={"skip_prepare_dataset": True}`` in its `SFTConfig`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from streampack import PackedDataset, PackedLoader, TokenRules, sources

VOCABULARY = 128


# On CPU ranks the Trainer calls its device "cpu:0", which torch does not find in a checkpoint.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, tag: storage if tag.startswith("cpu:") else None
)


class PackedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that takes its batches from a `PackedLoader` with ``output="hf"``."""

    def __init__(self, *, loader: PackedLoader, **arguments: Any) -> None:
        self.loader = loader
        super().__init__(**arguments)
        self.add_callback(SaveLoader(loader))

    def get_train_dataloader(self) -> Any:
        """The loader itself."""
        return self.loader

    def get_batch_samples(self, *arguments: Any) -> Any:
        """As `Trainer.get_batch_samples`; where all ranks' lanes are dry, 0 / 1 and not 0 / 0."""
        samples, num_items = super().get_batch_samples(*arguments)
        return samples, num_items if num_items is None else num_items.clamp(min=1)

    def train(self, resume_from_checkpoint: Any = None, **arguments: Any) -> Any:
        """As `Trainer.train`; the loader goes on from the checkpoint, too."""
        if resume_from_checkpoint is not None:
            path = loader_file(Path(resume_from_checkpoint), self.args.process_index)
            self.loader.load_state_dict(json.loads(path.read_text()))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **arguments)


class SaveLoader(TrainerCallback):  # type: ignore[misc]
    """Puts the loader's state of each rank into the Trainer's checkpoints."""

    def __init__(self, loader: PackedLoader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state behind the last batch of the step that was just made."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)  # ranks other than 0 may be first
        loader_file(folder, args.process_index).write_text(json.dumps(self.loader.state_dict()))


def loader_file(checkpoint: Path, rank: int) -> Path:
    """Where a checkpoint keeps the loader's state of a rank."""
    return checkpoint / f"loader-{rank}.json"


def make_trainer(
    folder: Path, corpus: Any, *, max_steps: int, save_steps: int, kind: Any = PackedTrainer
) -> Any:
    """A tiny Llama and its loader."""
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=max_steps,
        save_steps=save_steps,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",  # others depend on max_steps, which differs below
        ignore_data_skip=True,
        use_cpu=True,
        ddp_backend="gloo" if torch.distributed.is_torchelastic_launched() else None,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    dataset = PackedDataset(
        corpus, seq_len=64, batch_tokens=128, lanes=4, token_rules=TokenRules(pad_id=0, eos_id=0)
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
    loader = PackedLoader(dataset, output="hf", model=model)
    return kind(model=model, args=args, loader=loader)


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
