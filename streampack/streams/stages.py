"""Block stages: what happens to a block between its source and the window, one after the other.

A run has a list of stages for every source of it, put together once, where the dataset is built:
`passed_through` passes a block through them. A capability adds a stage, and nothing here changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.sources.base import Block, Source
from streampack.sources.skips import Skips


class Place(NamedTuple):
    """Where a block is: its source and the number of that in a mixture, the run's seed, the epoch.

    Attributes:
        skips: what to do with broken content.
    """

    source: Source
    number: int
    seed: int
    epoch: int
    skips: Skips

    def name(self, origin: np.void) -> str:
        """A document in words."""
        of = f' of source "{self.skips.name}"' if self.skips.name else ""
        return self.source.document_name(origin) + of


class BlockStage(Protocol):
    """One thing that happens to a block; picklable, without state.

    It must do to a document what it does to it in any other block, or resuming would differ.
    """

    def __call__(self, block: Any, place: Place) -> Any:
        """The block after it. It may raise, or give documents to `place.skips` and leave them out."""

    def describe(self) -> Mapping[str, Any]:
        """JSON-able: what of it decides the batches, by the fields of a fingerprint."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The stages of a run.

    Attributes:
        stages: for every source of a mixture, or the only one.
    """

    stages: tuple[tuple[BlockStage, ...], ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)

    def of(self, number: int) -> tuple[BlockStage, ...]:
        """Those of a source; token ids as they are, checked, if nothing was put together."""
        return self.stages[number] if self.stages else IDS_AS_THEY_ARE

    def find(self, name: str) -> Any:
        """The first value of an attribute of that name among all stages; None without one."""
        every = (stage for own in self.stages for stage in own)
        found = next((found for stage in every if (found := getattr(stage, name, None))), None)
        return getattr(found, name, found)  # of the tokenizer of chats, what it encodes with

    def titles(self, kind: str = "") -> list[tuple[str, str]]:
        """The user's own stages, as (kind, name)."""
        own = self.of(0)
        return [title for stage in own if (title := getattr(stage, "title", None)) is not None]

    def describe(self) -> dict[str, Any]:
        """What all stages describe, of the first source."""
        return {**self.described_by(0), **self.described}

    def described_by(self, number: int) -> dict[str, Any]:
        """What the stages of a source describe."""
        return {
            name: value for stage in self.of(number) for name, value in stage.describe().items()
        }


def passed_through(stages: Sequence[BlockStage], block: Block, place: Place) -> Documents:
    """A block after all stages."""
    for stage in stages:
        block = stage(block, place)
    assert isinstance(block, Documents)
    return block


# ---------------------------------------------------------------------- stages of every run


@dataclass(frozen=True, slots=True)
class Numbered:
    """Documents carry the number of their source in their origin."""

    def __call__(self, block: Any, place: Place) -> Any:
        if not place.number or not len(block):
            return block
        origin = block.origin.copy()
        origin["source"] = place.number
        return replace(block, origin=origin)

    def describe(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class CheckedIds:
    """Documents that are ids already: without those of which one is not in the vocabulary."""

    vocab_size: int | None = None

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        low, high = int(documents.offsets[0]), int(documents.offsets[-1])
        if low == high:
            return documents
        tokens: NDArray[Any] = documents.tokens[low:high]
        highest = int(np.iinfo(tokens.dtype).max)
        limit = highest + 1 if self.vocab_size is None else self.vocab_size
        # What the dtype excludes is not looked for: a look at every token is a pass over memory.
        if (limit > highest or int(tokens.max()) < limit) and (
            tokens.dtype.kind == "u" or int(tokens.min()) >= 0
        ):
            return documents
        bad = (tokens < 0) | (tokens >= limit)
        where = np.searchsorted(documents.offsets, np.flatnonzero(bad) + low, side="right") - 1
        wrong = np.unique(where)
        reported: list[Any] = []
        for i in wrong.tolist():
            ids: NDArray[Any] = documents.document(i)
            origin = documents.origin[i]
            if origin.item() in reported[-1:]:
                continue  # of one record
            reported.append(origin.item())
            outside = int(ids[(ids < 0) | (ids >= limit)][0])
            what = f"and the vocabulary has {limit}" if outside >= 0 else "which is negative"
            place.skips.handle(
                place.source.broken_document(
                    int(origin["shard"]),
                    int(origin["index"]),
                    f"holds the token id {outside}, {what}",
                )
            )
        return without_records(documents, wrong)


@dataclass(frozen=True, slots=True)
class WithoutEmpty:
    """Empty documents are left out and counted."""

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        lengths = documents.lengths
        if len(lengths) == 0 or lengths.min() > 0:
            return documents
        kept = documents.take(np.flatnonzero(lengths > 0))
        place.skips.counts.empty_documents += len(documents) - len(kept)
        return kept


@dataclass(frozen=True, slots=True)
class Unsigned:
    """Ids are unsigned: none is negative by now. What nobody declared of fields is left out."""

    keeps_fields: bool = False

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not self.keeps_fields and (documents.token_fields or documents.document_fields):
            documents = replace(documents, token_fields={}, document_fields={})
        if documents.tokens.dtype == np.int32:
            documents = replace(documents, tokens=documents.tokens.view(np.uint32))
        return documents


@dataclass(frozen=True, slots=True)
class Apart:
    """The documents of which a source kept some together, because they are of one record."""

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        members = documents.members
        if members is None:
            return documents
        return members.documents[int(members.offsets[0]) : int(members.offsets[-1])]


IDS_AS_THEY_ARE: tuple[BlockStage, ...] = (
    Apart(), Numbered(), CheckedIds(), WithoutEmpty(), Unsigned(),
)  # fmt: skip


def without_records(documents: Documents, wrong: Any) -> Documents:
    """The documents without those (K,), and without what else their records hold."""
    lost = np.isin(documents.origin, documents.origin[wrong])
    return documents.take(np.flatnonzero(~lost))
