"""Which tokens of a document are padding: those of which its attention mask is 0.

Tokenizers that pad (`padding="max_length"`) write such masks beside the ids. Padding lies at either
end of a document, and is left out of it with whatever belongs to its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.documents.ragged import offsets_of
from streampack.reading.loss_masks import joint_mask, masks_of_rows

ATTENTION_MASK = "attention_mask"


def kept_tokens(
    values: NDArray[Any], offsets: NDArray[np.int64], reasons: dict[int, str]
) -> NDArray[np.bool_] | None:
    """(T,) False where a token of N documents end to end is padding; None if none is.

    Args:
        values: (T,) attention masks, 0 and 1.
        offsets: (N + 1,) of the documents.
        reasons: gets what is wrong with a document, by its number.
    """
    kept: NDArray[np.bool_] = values == 1
    if kept.all():
        return None
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for wrong in np.unique(row[~kept & (values != 0)]).tolist():
        reasons.setdefault(wrong, f'has values other than 0 and 1 in "{ATTENTION_MASK}"')
    begins = kept & np.append(True, ~kept[:-1] | (row[1:] != row[:-1]))
    for wrong in np.flatnonzero(np.bincount(row[begins], minlength=len(offsets) - 1) > 1).tolist():
        reasons.setdefault(
            wrong,
            f'has zeros between ones in "{ATTENTION_MASK}", and padding lies at the ends of a '
            "document",
        )
    return kept


def with_masks(
    documents: Documents, masks: Mapping[str, NDArray[Any]]
) -> tuple[Documents, dict[int, str]]:
    """N documents end to end with the masks and labels of their T tokens, and without padding.

    Args:
        documents: in an array of T tokens, without loss masks.
        masks: by the name of the field, (T,) values: attention masks, loss masks or labels.

    Returns:
        All of them, and what is wrong with some, by their numbers.
    """
    reasons: dict[int, str] = {}
    ids, offsets = documents.tokens, documents.offsets
    names = [name for name in masks if name != ATTENTION_MASK]
    found = (masks_of_rows(masks[name], ids, offsets, name, reasons) for name in names)
    attended = masks.get(ATTENTION_MASK)
    kept = None if attended is None else kept_tokens(attended, offsets, reasons)
    return without_padding(replace(documents, loss_mask=joint_mask(found)), kept), reasons


def without_padding(documents: Documents, kept: NDArray[np.bool_] | None) -> Documents:
    """The documents, in an array of T tokens, of which those are left that are `kept` (T,)."""
    if kept is None:
        return documents
    return replace(
        documents,
        tokens=documents.tokens[kept],
        offsets=offsets_of(kept.astype(np.int64))[documents.offsets],
        loss_mask=None if documents.loss_mask is None else documents.loss_mask[kept],
        token_fields={name: values[kept] for name, values in documents.token_fields.items()},
    )
