"""Loss tokens of every document, a document field for `Balance("loss")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.stages.preparation import Preparation
    from streampack.stages.recipe import Recipe

#: Document field with the number of a document's loss tokens.
LOSS_TOKENS = "loss tokens"


@dataclass(frozen=True, slots=True)
class CountedLoss:
    """Count the loss tokens of each document's first `seq_len` tokens.

    Args:
        seq_len: tokens of a row, to which longer documents are truncated.
        skipped: tokens at the beginning of a document that have no label: 1, because nothing comes
            before the first token, or 0 if documents of a row attend to one another.
    """

    seq_len: int
    skipped: int

    def describe(self) -> Mapping[str, Any]:
        """Return nothing, because the packer's choice implies the stage."""
        return {}

    def __call__(self, documents: Documents, place: Any) -> Documents:
        """Return the documents with the field."""
        start = np.minimum(documents.offsets[:-1] + self.skipped, documents.offsets[1:])
        stop = np.minimum(documents.offsets[:-1] + self.seq_len, documents.offsets[1:])
        count = stop - start
        if documents.loss_mask is not None:
            before = np.zeros(len(documents.loss_mask) + 1, dtype=np.int64)
            np.cumsum(documents.loss_mask, out=before[1:])
            count = before[stop] - before[start]
        fields = {**documents.document_fields, LOSS_TOKENS: np.maximum(count, 0)}
        return replace(documents, document_fields=fields)


def count_loss_tokens(recipe: Recipe) -> None:
    """Add the stage, once masks are final and other undeclared fields are dropped.

    The field is not declared, so it is no part of batches or of the fingerprint.

    Raises:
        ConfigError: documents have a field of this name, or trees share tokens.
    """
    if LOSS_TOKENS in recipe.fields.document:
        raise ConfigError(
            f'Balance("loss") makes a document field "{LOSS_TOKENS}", which must not be declared.',
            "Give the field another name.",
            setting="choice",
        )
    if recipe.given["layout"] is not None:
        raise ConfigError(
            f'Balance("loss") counts tokens of documents, got layout={recipe.given["layout"]!r}.',
            'Use choice=Balance("attention").',
            setting="choice",
        )
    recipe.add("units", _stage(recipe.packer.seq_lens[-1], recipe.attention))


def recounted(preparation: Preparation, seq_len: int, attention: str) -> Preparation:
    """Return the stages with the count of a run with these settings, whatever they count now."""
    stages = [
        (
            *(each for each in stages if not isinstance(each, CountedLoss)),
            _stage(seq_len, attention),
        )
        for stages in preparation.stages
    ]
    return replace(preparation, stages=tuple(stages))


def _stage(seq_len: int, attention: str) -> CountedLoss:
    return CountedLoss(seq_len, 0 if attention == "row" else 1)
