"""Block stage that encodes texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampack.documents.blocks import Documents, Texts
from streampack.stages.base import Place
from streampack.tokenization.short_texts import short_texts
from streampack.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def with_fields_of(texts: Texts, documents: Documents) -> Documents:
    """Return the documents made of some of the texts, with the texts' fields."""
    if not texts.document_fields:
        return documents
    kept = np.isin(texts.origin["index"], documents.origin["index"])
    fields = {name: values[kept] for name, values in texts.document_fields.items()}
    return replace(documents, document_fields=fields)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encode texts to documents with the same document fields."""

    tokenizer: Tokenizer

    def describe(self) -> Mapping[str, Any]:
        return {"tokenizer": self.tokenizer.fingerprint}

    def __call__(self, block: Texts, place: Place) -> Documents:
        texts = short_texts(place.source, block, place.skips)
        documents = self.tokenizer.encode(texts, place.skips, place.source.document_name)
        self._count_eos(documents, place)
        return with_fields_of(block, documents)

    def _count_eos(self, documents: Documents, place: Place) -> None:
        """Count EOS tokens inside texts, and log the first one."""
        tokenizer = self.tokenizer
        if tokenizer.eos_id is None or tokenizer.splits_special_tokens:
            return
        positions = np.flatnonzero(documents.tokens == tokenizer.eos_id)
        inside = positions[~np.isin(positions + 1, documents.offsets)]
        if len(inside) == 0:
            return
        if place.skips.counts.eos_in_texts == 0:
            i = int(np.searchsorted(documents.offsets, inside[0], side="right")) - 1
            logger.warning(
                "%s writes %s, which becomes the end of a document inside it (metrics: "
                'eos_in_texts counts them). TokenRules(special_tokens_in_text="split") makes '
                "ordinary text of special tokens in texts.",
                place.name(documents.origin[i]),
                tokenizer.token(tokenizer.eos_id),
            )
        place.skips.counts.eos_in_texts += len(inside)
