"""The protocol of the recall experiment: sizes, arms, seeds and comparisons, before any run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from benchmarks.papers.model import Size
from benchmarks.papers.recall import documents as _documents
from benchmarks.papers.recall.documents import VOCABULARY
from streampack.ordering import GroupBy
from streampack.packing import BestFitDecreasing, Buckets, Concat, Packer, Seamless

__all__ = [
    "ARMS",
    "COMPARISONS",
    "PRESET",
    "SEEDS",
    "Arm",
    "Comparison",
    "Preset",
    "digest",
    "planned",
]

Attention = Literal["document", "row"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of a run.

    Attributes:
        seq_len: of rows; batch_tokens: four of them.
        steps: of training; the learning rate grows over warmup_steps and falls linearly to 0 over
            the last `falling` share of them.
        event_weight: of the answers to events in the loss, which are few; of others 1.
        held_out: documents, rows or contexts of every measure; curve_every: steps of a point of
            the curve of the loss.
    """

    model: Size
    seq_len: int = 256
    batch_tokens: int = 1024
    steps: int = 600
    learning_rate: float = 0.005
    warmup_steps: int = 50
    falling: float = 0.4
    event_weight: float = 10.0
    held_out: int = 256
    curve_every: int = 50


PRESET = Preset(
    model=Size(
        vocab_size=VOCABULARY, width=64, layers=2, heads=4, expansion=2, smeared_keys=True,
        initial_std=0.1,
    )
)  # fmt: skip
SEEDS = (0, 1, 2, 3, 4)
_ROW = PRESET.seq_len


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to make rows, of one of the two corpora."""

    name: str
    corpus: Literal["facts", "groups"] = "facts"
    packer: Packer
    attention: Attention = "row"
    order: GroupBy | None = None


ARMS = (
    Arm(name="Concat", packer=Concat(seq_len=_ROW)),
    Arm(name="Concat, atom 64", packer=Concat(seq_len=_ROW, atom=_ROW // 4)),
    Arm(name="BestFitDecreasing", packer=BestFitDecreasing(seq_len=_ROW)),
    Arm(name="Seamless", packer=Seamless(seq_len=_ROW)),
    Arm(name="Buckets", packer=Buckets(seq_lens=(_ROW // 2, _ROW, 2 * _ROW))),
    Arm(name="Concat, documents apart", packer=Concat(seq_len=_ROW), attention="document"),
    Arm(name="groups, random order", corpus="groups", packer=Concat(seq_len=_ROW)),
    Arm(name="groups, related order", corpus="groups", packer=Concat(seq_len=_ROW),
        order=GroupBy("group")),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A measure of an arm minus a measure of an arm, seed by seed.

    Attributes:
        question: the question it answers.
        arm, measure: left side, named as in the results.
        to, to_measure: right side; None is the same measure.
    """

    question: str
    arm: str
    measure: str
    to: str
    to_measure: str | None = None


#: The primary comparisons; Holm's correction is over all of them.
COMPARISONS = (
    Comparison("rows that cut anywhere", "Concat", "alone", "BestFitDecreasing"),
    Comparison("atoms below a row", "Concat, atom 64", "alone", "Concat"),
    Comparison("overlap and dropping", "Seamless", "alone", "BestFitDecreasing"),
    Comparison("longer rows for longer documents", "Buckets", "alone", "BestFitDecreasing"),
    Comparison("case study: events that only best fit cuts", "Seamless", "events cut",
               "BestFitDecreasing"),
    Comparison("case study: events that it cuts, against others", "BestFitDecreasing",
               "events cut", "BestFitDecreasing", "events kept"),
    Comparison("related documents in front", "groups, related order", "others', behind related",
               "groups, random order"),
    Comparison("price of an unrelated document in front", "Concat", "behind", "Concat",
               "same, alone"),
    Comparison("attention over rows, an unrelated document in front", "Concat", "behind",
               "Concat, documents apart"),
)  # fmt: skip


def planned() -> list[tuple[Arm, int]]:
    """Every run, all arms of a seed before the next seed."""
    return [(arm, seed) for seed in SEEDS for arm in ARMS]


def digest(preset: Preset) -> str:
    """Return a digest of all settings that determine a run, but seeds and packers' revisions."""
    text = json.dumps([asdict(preset), _documents.settings(), [
        (arm.name, arm.corpus, type(arm.packer).__name__, arm.attention) for arm in ARMS
    ]])  # fmt: skip
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
