"""Which tokens of a document carry loss: from masks of 0 and 1, or from labels.

Labels are what trainers store: a token's own id where it is learnt, and -100 where not (it is the
model that shifts). A field "labels" holds labels. Any other says which by its values: labels have
others than 0 and 1, unless those are all the ids that a document has. Where there are several, a
token carries loss if all of them say so.
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


def _what_is_wrong(values: NDArray[Any], ids: NDArray[Any], name: str) -> str:
    """Of values (T,) that are neither labels nor, unless they are named so, a mask."""
    place = int(np.flatnonzero((values != IGNORED) & (values != ids))[0])
    rule = f"a label is the token's own id or {IGNORED} (it is the model that shifts)"
    label = f"has the label {values[place]} at token {place}, whose id is {ids[place]}; {rule}"
    if name == LABELS:
        return label
    other = int(np.flatnonzero((values != 0) & (values != 1))[0])
    return (
        f'has the value {values[other]} at token {other} in "{name}", so it is no mask of 0 and 1; '
        f"taken as labels, it {label}"
    )


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
    mask: NDArray[np.bool_] = values == 1
    strange = values != mask
    if values.dtype.kind == "b" or (name != LABELS and not strange.any()):
        return mask
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    labelled = np.full(len(offsets) - 1, name == LABELS)
    labelled[row[strange]] = True
    np.copyto(mask, values != IGNORED, where=labelled[row])
    for wrong in np.unique(row[mask & labelled[row] & (values != ids)]).tolist():
        part = slice(offsets[wrong], offsets[wrong + 1])
        reasons.setdefault(wrong, _what_is_wrong(values[part], ids[part], name))
    return mask
