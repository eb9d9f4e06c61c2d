"""Counts of the tokens of marked documents over an epoch, ranks and a resume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.checking.faults import FaultLog
from streampack.checking.marked import MarkedDocuments
from streampack.checking.reading import NO_TARGET, View


class Coverage:
    """Times that each token of the documents was delivered and learnt.

    A token may be the input of a slot, the target of one, or both; a row that is cut into inputs
    and targets has its last token only as a target.
    """

    def __init__(self, documents: MarkedDocuments) -> None:
        self.documents = documents
        self.as_input = np.zeros(documents.num_tokens, dtype=np.int64)
        self.as_target = np.zeros(documents.num_tokens, dtype=np.int64)

    def add(self, view: View) -> None:
        """Count the tokens of a batch."""
        self._count(view.tokens, self.as_input)
        if view.targets is not None:
            self._count(view.targets, self.as_target)

    def copy(self) -> Coverage:
        """Return the same counts, independent of later ones."""
        other = Coverage(self.documents)
        other.as_input, other.as_target = self.as_input.copy(), self.as_target.copy()
        return other

    def __add__(self, other: Coverage) -> Coverage:
        total = self.copy()
        total.as_input += other.as_input
        total.as_target += other.as_target
        return total

    @property
    def times(self) -> NDArray[np.int64]:
        """(tokens,) int64, times that each token was delivered."""
        return np.maximum(self.as_input, self.as_target)

    def _count(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        tokens = self.documents.token_of(ids[ids != NO_TARGET])
        np.add.at(counts, tokens[tokens >= 0], 1)


@dataclass(frozen=True)
class Loss:
    """Tokens that an epoch lost.

    Attributes:
        documents: number of documents.
        tokens: number of their tokens.
        delivered: tokens delivered at least once.
        learnable: tokens that should carry loss; the first one of a document cannot.
        learnt: tokens of these that were a target.
    """

    documents: int
    tokens: int
    delivered: int
    learnable: int
    learnt: int


def loss_of(coverage: Coverage) -> Loss:
    """Return how many tokens an epoch delivered and learnt."""
    documents = coverage.documents
    _, offset, carries = documents.place_of(np.arange(documents.num_tokens))
    learnable = carries & (offset > 0)
    return Loss(
        documents=len(documents),
        tokens=documents.num_tokens,
        delivered=int((coverage.times > 0).sum()),
        learnable=int(learnable.sum()),
        learnt=int((learnable & (coverage.as_target > 0)).sum()),
    )


def check_epoch(by_rank: list[Coverage], log: FaultLog) -> None:
    """Add documents that came twice or never over an epoch, on one rank or over all."""
    documents = by_rank[0].documents
    of_token = documents.place_of(np.arange(documents.num_tokens))[0]
    total = np.sum([coverage.times for coverage in by_rank], axis=0)
    ranks = np.sum([coverage.times > 0 for coverage in by_rank], axis=0)
    twice = np.any([coverage.times > 1 for coverage in by_rank], axis=0)
    _add(log, "documents-on-two-ranks", of_token[ranks > 1], documents)
    _add(log, "documents-twice", of_token[twice], documents)
    check_missing(total, documents, log, "documents-missing", "tokens-missing")


def check_missing(
    times: NDArray[np.int64], documents: MarkedDocuments, log: FaultLog, whole: str, holes: str
) -> None:
    """Add documents that never came, and tokens that never came before others that did.

    Tokens missing at the end of a document are truncation, which is only a figure of the report.
    """
    of_token, offset, _ = documents.place_of(np.arange(len(times)))
    delivered = np.bincount(of_token, times > 0, minlength=len(documents))
    _add(log, whole, np.flatnonzero(delivered == 0), documents)
    last = np.full(len(documents), -1, dtype=np.int64)
    np.maximum.at(last, of_token[times > 0], offset[times > 0])
    first = documents.lengths.copy()
    np.minimum.at(first, of_token[times > 0], offset[times > 0])
    missing = (times == 0) & (offset < last[of_token]) & (offset > first[of_token])
    _add(log, holes, of_token[missing], documents)


def _add(log: FaultLog, kind: str, numbers: NDArray[np.int64], documents: MarkedDocuments) -> None:
    numbers = np.unique(numbers)
    if len(numbers):
        shown = ", ".join(map(str, numbers[:5].tolist()))
        share = len(numbers) / len(documents)
        log.add(kind, count=len(numbers), detail=f"documents {shown}: {share:.1%} of all")
