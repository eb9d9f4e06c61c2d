"""torchtitan's dataloader of texts, and a `PackedLoader` in its place, without the trainer.

The change: `dataloader=PackedDataLoader.Config(source=...)` in the job's config; the class is
`examples/torchtitan_loader.py`. torchtitan's `Trainer` wants an accelerator, so the steps are made
here: its batches, its checkpoint (torch's distributed one), a tiny Llama.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from datasets import Dataset
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets import DatasetConfig, text_datasets

from examples.clients.common import ROWS, SAVED_AFTER, SEQ_LEN, STEPS, Corpus, Side, tiny_llama
from examples.torchtitan_loader import PackedDataLoader
from streampack import TokenRules


class TinyTokenizer(BaseTokenizer):
    """The corpus's, as torchtitan calls one."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__()
        self.of = corpus.tokenizer

    def encode(self, text: str, add_bos: bool = False, add_eos: bool = False) -> list[int]:
        """The ids of a text; torchtitan asks for both ends, and this vocabulary has one."""
        return [*self.of.encode(text), *([self.of.eos_token_id] if add_eos else [])]

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        return str(self.of.decode(ids))

    def get_vocab_size(self) -> int:
        """The number of ids."""
        return len(self.of)


@dataclass
class Training:
    """A model and its optimizer in a checkpoint."""

    model: Any
    optimizer: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the state by names, as a checkpoint may be read in any order."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Both."""
        set_state_dict(
            self.model, self.optimizer,
            model_state_dict=state["model"], optim_state_dict=state["optimizer"],
        )  # fmt: skip


def run(corpus: Corpus, make_loader: Any, *, resume: bool) -> list[float]:
    """Return the losses of a whole run, or of one resumed from its state after `SAVED_AFTER`."""
    model, loader = tiny_llama(), make_loader()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    state = {"training": Training(model, optimizer), "dataloader": loader}
    done, found = 0, []
    if resume:
        dcp.load(state, checkpoint_id=corpus.folder / "torchtitan")
        done = SAVED_AFTER
    for inputs, labels in islice(loader, STEPS - done):
        logits = model(inputs["input"], position_ids=inputs["positions"], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        if done + len(found) == SAVED_AFTER:
            dcp.save(state, checkpoint_id=corpus.folder / "torchtitan")
    return found


def sides(corpus: Corpus) -> dict[str, Side]:
    """Both."""
    text_datasets.DATASETS["corpus"] = DatasetConfig(
        path="", loader=lambda path: Dataset.from_dict({"text": corpus.texts}),
        sample_processor=lambda sample: sample["text"],
    )  # fmt: skip
    job: dict[str, Any] = {
        "dp_world_size": 1, "dp_rank": 0, "tokenizer": TinyTokenizer(corpus),
        "seq_len": SEQ_LEN, "local_batch_size": ROWS,
    }  # fmt: skip
    its_own = text_datasets.HuggingFaceTextDataLoader
    options = {
        "tokenizer": corpus.tokenizer_file, "token_rules": TokenRules(eos_id=0), "epochs": 1
    }  # fmt: skip

    def joined() -> Any:
        return its_own(its_own.Config(dataset="corpus", infinite=False), **job)

    def packed() -> Any:
        return PackedDataLoader(
            PackedDataLoader.Config(source=corpus.files, options=options), **job
        )

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = {
        "joined rows": Side(*corpus.joined_epoch(), *runs(corpus, joined)),
        "streampack": Side(*corpus.packed_epoch(), *runs(corpus, packed)),
    }
    dist.destroy_process_group()
    return found


def runs(corpus: Corpus, make_loader: Any) -> list[list[float]]:
    """The losses of a run, and of one that resumes."""
    return [run(corpus, make_loader, resume=resume) for resume in (False, True)]
