"""The stages of every run: of documents that are token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents

if TYPE_CHECKING:
    from streampack.stages.base import BlockStage, Place


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
