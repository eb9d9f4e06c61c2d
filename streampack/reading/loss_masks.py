"""Which tokens of a document carry loss: from a mask of 0 and 1, or from labels.

Labels are what trainers store: a token's own id where it is learnt, and -100 where not (it is the
model that shifts). A column may hold either, and says which by its values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.reading.records import BrokenDocumentError

__all__ = ["IGNORED", "mask_of", "mask_of_labels", "masks_of_rows"]

#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def mask_of(values: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.bool_]:
    """(T,) True where a token carries loss.

    Args:
        values: (T,) booleans, or whole numbers: 0 and 1, or labels.
        ids: (T,) the document's.

    Raises:
        BrokenDocumentError: they are neither, or may be both.
    """
    if values.dtype.kind == "b":
        return values.astype(np.bool_)
    if ((values != 0) & (values != 1)).any():
        return mask_of_labels(values, ids)
    if (values == 0).any() and np.array_equal(values, ids):
        raise BrokenDocumentError(
            "has a loss mask that equals its ids, all of which are 0 and 1, so it may be labels"
        )
    return values.astype(np.bool_)


def mask_of_labels(labels: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.bool_]:
    """(T,) True where a label (T,) is the token's own id, False where it is -100.

    Raises:
        BrokenDocumentError: one is neither.
    """
    mask: NDArray[np.bool_] = labels != IGNORED
    wrong = np.flatnonzero(mask & (labels != ids))
    if len(wrong):
        place = int(wrong[0])
        raise BrokenDocumentError(
            f"has the label {labels[place]} at token {place}, whose id is {ids[place]}; a label is "
            f"the token's own id or {IGNORED} (it is the model that shifts)"
        )
    return mask


def masks_of_rows(
    values: NDArray[Any], ids: NDArray[Any], offsets: NDArray[np.int64], reasons: dict[int, str]
) -> NDArray[np.bool_]:
    """`mask_of` of N documents end to end.

    Args:
        values: (T,) as for `mask_of`.
        ids: (T,)
        offsets: (N + 1,) of the documents.
        reasons: gets what is wrong with a document, by its number.
    """
    mask: NDArray[np.bool_] = values == 1
    if values.dtype.kind == "b":
        return mask
    unsure = (values != mask) | (values == ids)  # no 0 or 1, or the token's own id
    for row in np.unique(np.searchsorted(offsets, np.flatnonzero(unsure), "right") - 1).tolist():
        part = slice(offsets[row], offsets[row + 1])
        try:
            mask[part] = mask_of(values[part], ids[part])
        except BrokenDocumentError as reason:
            reasons.setdefault(row, str(reason))
    return mask
