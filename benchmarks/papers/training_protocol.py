"""The protocol of the training experiment: sizes, arms and seeds, fixed before a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from benchmarks.papers.training_corpus import Corpus
from streampack.packing import BestFitDecreasing, Concat, Packer, Pad, Seamless

__all__ = ["PRESETS", "TRAINING_SHARE", "Arm", "Attention", "Preset", "all_arms", "protocol_digest"]

Kind = Literal["Concat", "Pad", "BestFitDecreasing", "Seamless"]
PACKERS: tuple[Kind, ...] = ("Concat", "Pad", "BestFitDecreasing", "Seamless")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
TRAINING_SHARE = 0.1  # of the steps before a reading, over which training loss is averaged
Attention = Literal["document", "row"]
ATTENTIONS: tuple[Attention, ...] = ("document", "row")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of the experiment.

    Attributes:
        unit: what a document is, a "function" or a source "file"; corpus_bytes: of files, about.
        vocab_size: of the BPE.
        seq_len, rows: tokens per row, rows per batch; window_rows: look-ahead of the packers.
        width, layers, heads: of the model.
        learning_rate: after warmup_steps of linear growth; constant from there on.
        steps, tokens: where runs are compared: at this step, and at the first step behind which
            this many tokens of documents were learnt.
        seeds: of initialisation, order of documents and shuffling, a run each.
    """

    unit: Literal["function", "file"]
    corpus_bytes: int = 0
    vocab_size: int
    seq_len: int
    rows: int
    window_rows: int
    width: int
    layers: int
    heads: int
    learning_rate: float
    warmup_steps: int
    steps: int
    tokens: int
    seeds: tuple[int, ...]


PRESETS = {
    "cpu": Preset(
        unit="function",
        vocab_size=1024,
        seq_len=256,
        rows=4,
        window_rows=512,
        width=64,
        layers=2,
        heads=2,
        learning_rate=6e-3,
        warmup_steps=50,
        steps=1000,
        tokens=500_000,
        seeds=(0, 1, 2),
    ),
    "gpu": Preset(
        unit="file",
        corpus_bytes=256 << 20,
        vocab_size=16_384,
        seq_len=2048,
        rows=16,
        window_rows=512,
        width=512,
        layers=8,
        heads=8,
        learning_rate=6e-4,
        warmup_steps=200,
        steps=2000,
        tokens=40_000_000,
        seeds=(0, 1, 2),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to make rows: a packer, its atom in rows if it has one, and the attention."""

    packer: Kind
    attention: Attention
    factor: float | None = None

    @property
    def name(self) -> str:
        """As in the tables, without the attention."""
        return self.packer if self.factor is None else f"{self.packer} {self.factor:g} x"

    @property
    def said_attention(self) -> str:
        """ "either" where a row has one document, so that both give the same batches."""
        one = self.packer == "Pad" and self.factor is not None and self.factor >= 1
        return "either" if one else self.attention

    def build(self, seq_len: int) -> Packer:
        """The packer."""
        if self.packer == "BestFitDecreasing":
            return BestFitDecreasing(seq_len=seq_len)
        if self.packer == "Seamless":
            return Seamless(seq_len=seq_len)
        atom = None if self.factor is None else int(self.factor * seq_len)
        if self.packer == "Pad":
            return Pad(seq_len=seq_len, atom=atom)
        return Concat(seq_len=seq_len, atom=atom)


def all_arms() -> list[Arm]:
    """Every arm that is a run of its own.

    `Pad` with atoms of a row or more has one document in a row, so its batches are the same with
    either attention, and it runs once.
    """
    arms = []
    for attention in ATTENTIONS:
        for packer in PACKERS:
            for factor in FACTORS if packer in ("Concat", "Pad") else (None,):
                arm = Arm(packer=packer, attention=attention, factor=factor)
                if attention == "document" or arm.said_attention == "row":
                    arms.append(arm)
    return arms


def protocol_digest(preset: Preset, corpus: Corpus) -> str:
    """Of everything but the seeds that decides what a run gives."""
    settings = asdict(preset)
    del settings["seeds"]
    text = json.dumps([settings, corpus.digest, TRAINING_SHARE], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
