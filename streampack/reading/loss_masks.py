"""Which tokens of a document carry loss: from masks of 0 and 1, or from labels.

Labels are what trainers store: a token's own id where it is learnt, and -100 where not (it is the
model that shifts). They are in fields whose names end in "labels"; any other is a mask. Where there
are several, a token carries loss if all of them say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LABELS = "labels"
#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def joint_mask(masks: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_] | None:
    """(T,) True where all masks (T,) are; None if there is none."""
    found = list(masks)
    return np.logical_and.reduce(found) if found[1:] else next(iter(found), None)


def masks_of_rows(
    values: NDArray[Any],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    name: str,
    reasons: dict[int, str],
) -> NDArray[np.bool_]:
    """(T,) True where a token of N documents end to end carries loss.

    Args:
        values: (T,) booleans, or whole numbers: 0 and 1, or labels.
        ids: (T,) the documents'.
        offsets: (N + 1,) of the documents.
        name: of the field.
        reasons: gets what is wrong with a document, by its number.
    """
    labels = name.endswith(LABELS) and values.dtype.kind != "b"
    mask: NDArray[np.bool_] = values != IGNORED if labels else values == 1
    wrong = mask & (values != ids) if labels else ~mask & (values != 0)
    places = np.flatnonzero(wrong)
    rows, first = np.unique(np.searchsorted(offsets, places, "right") - 1, return_index=True)
    for row, place in zip(rows.tolist(), places[first].tolist(), strict=True):
        at, value = place - int(offsets[row]), values[place]
        reasons.setdefault(
            row,
            f"has the label {value} at token {at}, whose id is {ids[place]}; a label is the "
            f"token's own id or {IGNORED} (it is the model that shifts)"
            if labels
            else f'has the value {value} at token {at} in "{name}", so it is no mask of 0 and 1; '
            f'fields of labels have names that end in "{LABELS}"',
        )
    return mask
