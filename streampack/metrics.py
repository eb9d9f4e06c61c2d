"""Metrics: what was delivered, and where the time went; counts that add up over lanes and ranks."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from streampack.packing.plan import Composition

if TYPE_CHECKING:
    from streampack.packing.packer import Packer

#: Bytes that this process fetched from remote stores, in any thread, and no lane has counted yet.
fetched: deque[int] = deque()
os.register_at_fork(after_in_child=fetched.clear)


@dataclass(slots=True)
class LaneTimes:
    """What lanes spent: seconds by stage, and bytes. Add two with ``+``.

    Attributes:
        read_s: waiting for storage, or for what another thread or process decodes.
        decode_s: processor time in the source: decompressing, decoding and parsing.
        prepare_s: tokenizing, checks and hooks.
        order_s: ordering windows of documents by similarity.
        pack_s: filling and planning the window.
        gather_s: copying rows out of the window.
        fetched_bytes: from remote stores; read ahead for other lanes of the process, too.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    prepare_s: float = 0.0
    order_s: float = 0.0
    pack_s: float = 0.0
    gather_s: float = 0.0
    fetched_bytes: int = 0

    def __add__(self, other: LaneTimes) -> LaneTimes:
        return LaneTimes(*map(add, _seconds(self), _seconds(other)))

    def __sub__(self, other: LaneTimes) -> LaneTimes:
        return LaneTimes(*map(sub, _seconds(self), _seconds(other)))

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """A context that adds the time of its block to `stage`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - began)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context whose time is that of reading and decoding."""
        began = time.thread_time()
        with self.measure("read_s"):
            yield
        spent = time.thread_time() - began
        self.read_s -= spent
        self.decode_s += spent
        while fetched:
            self.fetched_bytes += fetched.popleft()


class SourceCounts(NamedTuple):
    """What was delivered of a source of a mixture.

    Attributes:
        tokens: delivered; documents: those of which something was, with their first piece.
        loss_tokens: labels that are not -100.
        expected_tokens: what its weight asked for, of the tokens of all sources so far.
    """

    tokens: int = 0
    documents: int = 0
    loss_tokens: int = 0
    expected_tokens: float = 0.0


class SourceTotals(dict[str, SourceCounts]):
    """`SourceCounts` by the names of the sources. Add two with ``+``."""

    def __add__(self, other: SourceTotals) -> SourceTotals:
        none = SourceCounts()
        return SourceTotals(
            (name, SourceCounts(*map(add, self.get(name, none), other.get(name, none))))
            for name in {**self, **other}
        )

    def largest_deviation(self) -> float | None:
        """The largest difference between observed and expected shares; None if there are none."""
        tokens = sum(counts.tokens for counts in self.values())
        if not tokens:
            return None
        return max(abs(own.tokens - own.expected_tokens) for own in self.values()) / tokens


@dataclass(slots=True, repr=False)
class Metrics:
    """Totals over the batches that the loop has consumed. Add two with ``+``.

    Attributes:
        batches: batches consumed; empty_batches: those of them that hold padding only, from lanes
            that ran dry before others; composition: what the rows of the rest hold; empty_slots:
            what the empty ones have room for.
        left: what ``end="stop"`` left in the lanes; stepped_over: what `PackedLoader.skip` did.
        loss_tokens: labels that are not -100.
        empty_documents: documents without a token, left out; eos_in_texts: end-of-document ids
            inside texts, which wrote that special token; skipped: broken documents or shards that
            `on_error="skip"` stepped over; duplicates: near-duplicates that `order` dropped,
            and duplicate_tokens: their tokens.
        sources: of a mixture, `SourceCounts` by the names of the sources.
        wait_s: seconds the loop waited in `next()` for a batch, all stages together.
        times: seconds the lanes spent by stage, in this process or in workers; the longest of
            them names what to speed up when `wait_s` is large.
    """

    batches: int = 0
    empty_batches: int = 0
    composition: Composition = field(default_factory=Composition)
    empty_slots: int = 0
    left: Composition = field(default_factory=Composition)
    stepped_over: Composition = field(default_factory=Composition)
    empty_documents: int = 0
    eos_in_texts: int = 0
    skipped: int = 0
    duplicates: int = 0
    duplicate_tokens: int = 0
    loss_tokens: int = 0
    sources: SourceTotals = field(default_factory=SourceTotals)
    wait_s: float = 0.0
    times: LaneTimes = field(default_factory=LaneTimes)

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*map(add, _totals(self), _totals(other)))

    def __repr__(self) -> str:
        """The counts that are not zero by their attributes, and `utilisation`."""
        counts = zip(_COUNTS, attrgetter(*_COUNTS)(self), strict=True)
        shown = [f"{name}={value:,}" for name, value in counts if value]
        return f"Metrics({', '.join([*shown, f'utilisation={self.utilisation:.4f}'])})"

    @property
    def tokens(self) -> int:
        """Tokens of documents in the batches, repeated ones included."""
        return self.composition.placed

    @property
    def shared_tokens(self) -> int:
        """In trees (``layout="tree"``), tokens of sequences whose slot is another one's too."""
        return self.composition.shared

    @property
    def documents(self) -> int:
        """Documents of which the batches hold something."""
        return self.composition.documents

    @property
    def utilisation(self) -> float:
        """The share of all slots that held a token, those of empty batches counted."""
        composition = self.composition
        slots = composition.slots + self.empty_slots
        return 1.0 - (composition.padding + self.empty_slots) / slots if slots else 0.0

    @property
    def loss_dropped_ratio(self) -> float:
        """Labels that no row holds over all labels that came in."""
        total = self.loss_tokens + self.composition.loss_dropped
        return self.composition.loss_dropped / total if total else 0.0

    def lost_in_words(self, packer: Packer, of: str) -> str:
        """The shares of tokens and loss tokens that no row holds, "of the run", and a remedy."""
        found = self.composition
        way, remedy = f'overflow="{packer.overflow}"', ' Longer rows or overflow="split" keep them.'
        if packer.overflow == "split":
            way, remedy = type(packer).__name__, ""
        elif packer.capacity:
            remedy = " Longer rows or a larger capacity keep them."
        documents = found.documents + found.documents_lost
        return (
            f"{found.dropped_ratio:.1%} of the tokens {of} and {self.loss_dropped_ratio:.1%} of "
            f"the loss tokens are in no row ({way}, rows of {packer.seq_lens[-1]}): "
            f"{found.documents_cropped:,} of {documents:,} documents lost some, "
            f"{found.documents_lost:,} of these all, and {found.documents_unlearnt:,} keep no loss "
            f"token.{remedy}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Flat names and numbers, for a logger; of a mixture also ``tokens/NAME`` and so on."""
        composition = self.composition
        return {
            "batches": self.batches,
            "empty_batches": self.empty_batches,
            "tokens": self.tokens,
            "documents": self.documents,
            "shared_tokens": self.shared_tokens,
            "loss_tokens": self.loss_tokens,
            "tokens_dropped": composition.dropped,
            "loss_tokens_dropped": composition.loss_dropped,
            "documents_cropped": composition.documents_cropped,
            "documents_lost": composition.documents_lost,
            "documents_unlearnt": composition.documents_unlearnt,
            "utilisation": self.utilisation,
            "row_utilisation": composition.utilisation,
            "padding_ratio": composition.padding_ratio,
            "truncation_ratio": composition.truncation_ratio,
            "dropped_ratio": composition.dropped_ratio,
            "loss_dropped_ratio": self.loss_dropped_ratio,
            "mean_context": composition.mean_context,
            "tokens_left": self.left.placed,
            "documents_left": self.left.documents,
            "tokens_stepped_over": self.stepped_over.placed,
            "documents_stepped_over": self.stepped_over.documents,
            "empty_documents": self.empty_documents,
            "eos_in_texts": self.eos_in_texts,
            "skipped": self.skipped,
            "duplicates": self.duplicates,
            "duplicate_tokens": self.duplicate_tokens,
            **{
                f"{what}/{name}": count
                for name, counts in self.sources.items()
                for what, count in counts._asdict().items()
            },
            "wait_s": self.wait_s,
            **{f.name: getattr(self.times, f.name) for f in fields(LaneTimes)},
        }


#: What `Metrics` shows of itself, as paths of attributes.
_COUNTS = (
    "batches", "empty_batches", "tokens", "shared_tokens", "documents", "loss_tokens",
    "composition.dropped", "composition.documents_cropped", "composition.documents_lost",
    "composition.loss_dropped", "composition.documents_unlearnt", "left.placed", "left.documents",
    "stepped_over.placed", "stepped_over.documents", "empty_documents", "eos_in_texts", "skipped",
    "duplicates", "duplicate_tokens",
)  # fmt: skip
_seconds = attrgetter(*(f.name for f in fields(LaneTimes)))
_totals = attrgetter(*(f.name for f in fields(Metrics)))
