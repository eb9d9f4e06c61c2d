"""The stages of every run, for documents of token ids."""

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
    """Write the index of the source into the origin of documents."""

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
    """Reject documents of token ids with an id outside the vocabulary."""

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
        # Ids that the dtype excludes need no check, which would be a pass over memory.
        if (limit > highest or int(tokens.max()) < limit) and (
            tokens.dtype.kind == "u" or int(tokens.min()) >= 0
        ):
            return documents
        from streampack.sources.broken import broken_document

        bad = (tokens < 0) | (tokens >= limit)
        where = np.searchsorted(documents.offsets, np.flatnonzero(bad) + low, side="right") - 1
        wrong = np.unique(where)
        reported: list[Any] = []
        for i in wrong.tolist():
            ids: NDArray[Any] = documents.document(i)
            origin = documents.origin[i]
            if origin.item() in reported[-1:]:
                continue  # the record is reported already
            reported.append(origin.item())
            outside = int(ids[(ids < 0) | (ids >= limit)][0])
            what = f"and the vocabulary has {limit}" if outside >= 0 else "which is negative"
            shard, index = int(origin["shard"]), int(origin["index"])
            reason = f"holds the token id {outside}, {what}"
            place.skips.handle(broken_document(place.source, shard, index, reason))
        return without_records(documents, wrong)


@dataclass(frozen=True, slots=True)
class WithoutEmpty:
    """Drop empty documents and count them."""

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
    """Convert ids, which are checked by now, to an unsigned dtype; drop undeclared fields."""

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
    """Ungroup documents that a source kept together as one record."""

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
    """Return the documents without the `wrong` ones (K,) and without the rest of their records."""
    lost = np.isin(documents.origin, documents.origin[wrong])
    return documents.take(np.flatnonzero(~lost))
