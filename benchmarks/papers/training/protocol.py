"""The protocol of the GPU experiment: sizes, arms, seeds and what is compared, before any run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from benchmarks.papers.model import Size
from benchmarks.papers.training.corpus import Corpus
from streampack import SimilarityOrder
from streampack.packing import BestFitDecreasing, Buckets, Concat, Packer, Seamless

__all__ = ["ARMS", "COMPARISONS", "PRESETS", "Arm", "Preset", "digest", "planned"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of the experiment.

    Attributes:
        corpus_bytes: of files, about; seq_len, batch_size: tokens per row, rows of it per batch.
        size: of the model; its vocab_size is the BPE's.
        tokens: of documents that a run learns, repeated ones counted, padding not.
        learning_rate: after linear growth over the first 2 % of the tokens; it falls to 0 over
            the last 40 %.
        probes: documents or prompts of every probe, at most.
        seeds: of initialisation, order of documents and packers, a run of every arm each.
    """

    corpus_bytes: int
    size: Size
    seq_len: int
    batch_size: int
    tokens: int
    learning_rate: float
    probes: int
    seeds: tuple[int, ...]


PRESETS = {
    "gpu": Preset(
        corpus_bytes=192 << 20,
        size=Size(vocab_size=16_384, width=512, layers=12, heads=8),
        seq_len=2048,
        batch_size=16,
        tokens=40_000_000,
        learning_rate=1e-3,
        probes=256,
        seeds=(0, 1, 2, 3),
    ),
    "rehearsal": Preset(
        corpus_bytes=8 << 20,
        size=Size(vocab_size=2048, width=64, layers=6, heads=2),
        seq_len=256,
        batch_size=8,
        tokens=400_000,
        learning_rate=3e-3,
        probes=32,
        seeds=(0,),
    ),
}
ARMS = ("Concat", "Concat, similar", "BestFitDecreasing", "Seamless", "Buckets")
#: (arm, measure, arm it is compared with), on Holm's list.
COMPARISONS = (
    ("BestFitDecreasing", "alone", "Concat"),
    ("Seamless", "alone", "BestFitDecreasing"),
    ("Buckets", "alone", "BestFitDecreasing"),
    ("Concat, similar", "alone", "Concat"),
    ("BestFitDecreasing", "copied", "Concat"),
    ("Concat, similar", "gain from a related document", "Concat"),
    ("Concat, similar", "gain from 8 examples", "Concat"),
    ("Buckets", "price of an unrelated document", "Concat"),
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to make rows; attention is over the row in all of them."""

    name: str
    seq_len: int

    @property
    def packer(self) -> Packer:
        """With the arm's row lengths."""
        if self.name == "BestFitDecreasing":
            return BestFitDecreasing(seq_len=self.seq_len)
        if self.name == "Seamless":
            return Seamless(seq_len=self.seq_len)
        if self.name == "Buckets":
            return Buckets(seq_lens=(self.seq_len // 2, self.seq_len, 2 * self.seq_len))
        return Concat(seq_len=self.seq_len)

    @property
    def order(self) -> SimilarityOrder | None:
        """Related documents side by side, in one arm."""
        return SimilarityOrder() if self.name == "Concat, similar" else None


def planned(preset: Preset) -> list[tuple[Arm, int]]:
    """Every run, all arms of a seed before the next seed."""
    return [
        (Arm(name=name, seq_len=preset.seq_len), seed) for seed in preset.seeds for name in ARMS
    ]


def digest(preset: Preset, corpus: Corpus) -> str:
    """Of everything but seeds and packers' revisions that decides what a run gives."""
    settings = asdict(preset)
    del settings["seeds"]
    text = json.dumps([settings, ARMS, corpus.digest], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
