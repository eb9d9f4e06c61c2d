"""Composition: what rows are made of, as counts that add up over plans, lanes and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, attrgetter


@dataclass(slots=True)
class Composition:
    """Counts over packed rows. Add two with ``+``; ratios are properties.

    Attributes:
        rows: rows; slots: tokens they have room for.
        segments: document pieces placed; placed: their tokens, repeated ones included.
        repeated: tokens placed a second time (overlap); inserted_eos: EOS added by the packer.
        dropped: tokens no row holds.
        documents: documents of which something was placed.
        documents_cut: those in more than one segment; documents_cropped: those that lost tokens
            (lost whole ones included); documents_lost: those lost whole.
        context_sum: for every placed token, the tokens of its document before it in its segment.
    """

    rows: int = 0
    slots: int = 0
    segments: int = 0
    placed: int = 0
    repeated: int = 0
    inserted_eos: int = 0
    dropped: int = 0
    documents: int = 0
    documents_cut: int = 0
    documents_cropped: int = 0
    documents_lost: int = 0
    context_sum: int = 0

    def __add__(self, other: Composition) -> Composition:
        return Composition(*map(add, _counts(self), _counts(other)))

    @property
    def padding(self) -> int:
        """Slots that hold neither a document's token nor an inserted EOS."""
        return self.slots - self.placed - self.inserted_eos

    @property
    def padding_ratio(self) -> float:
        """Padding over all slots."""
        return self.padding / self.slots if self.slots else 0.0

    @property
    def utilisation(self) -> float:
        """1 - padding ratio."""
        return 1.0 - self.padding_ratio

    @property
    def truncation_ratio(self) -> float:
        """Documents cut into more than one segment, over documents."""
        return self.documents_cut / self.documents if self.documents else 0.0

    @property
    def loss_ratio(self) -> float:
        """Documents that lost tokens, over documents (those lost whole included in both)."""
        total = self.documents + self.documents_lost
        return self.documents_cropped / total if total else 0.0

    @property
    def concatenation_ratio(self) -> float:
        """Documents per row, as in "Bucket Pre-training is All You Need"."""
        return self.documents / self.rows if self.rows else 0.0

    @property
    def segments_per_row(self) -> float:
        """Segments per row."""
        return self.segments / self.rows if self.rows else 0.0

    @property
    def dropped_ratio(self) -> float:
        """Dropped tokens over all tokens that came in."""
        total = self.placed - self.repeated + self.dropped
        return self.dropped / total if total else 0.0

    @property
    def repetition_ratio(self) -> float:
        """Repeated tokens over placed tokens."""
        return self.repeated / self.placed if self.placed else 0.0

    @property
    def mean_context(self) -> float:
        """Tokens of the same document before a token in its segment, on average."""
        tokens = self.placed + self.inserted_eos
        return self.context_sum / tokens if tokens else 0.0


_counts = attrgetter(*Composition.__slots__)
