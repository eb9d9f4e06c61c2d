"""Small grey images, films and silences for batches that would not run a tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.window.packed_rows import PackedRows


def blank_media(
    rows: PackedRows, spans: NDArray[np.int64], planners: Sequence[Any]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
    """Return the arrays of small media, and the slots of their tokens and the ids of these, (n,).

    The slots are padding or the last ones of documents: no other slot sees their inputs, and
    their outputs carry no loss. A tower for which there are too few such slots gets none.

    Args:
        rows: rows of the batch.
        spans: (A, 2) slots of its media.
        planners: planners with a `smallest` medium, one for each tower.
    """
    padding = [np.arange(*rows.boundaries[run : run + 2]) for run in np.flatnonzero(rows.piece < 0)]
    last = rows.boundaries[1:][rows.piece >= 0] - 1
    last = last[~np.isin(last + 1, spans[:, 1])]  # a film may end a document
    slots = np.concatenate([*padding, last]).astype(np.int64)
    arrays, taken, ids = dict[str, NDArray[Any]](), [slots[:0]], [slots[:0]]
    for planner in planners:
        made, tokens = planner.smallest
        chosen = np.sort(slots[:tokens])
        apart = getattr(planner, "adjacent", False) and bool((np.diff(chosen) != 1).any())
        if len(chosen) == tokens and not apart:
            arrays, slots = {**arrays, **made}, slots[tokens:]
            taken, ids = [*taken, chosen], [*ids, np.full(tokens, planner.image_id)]
    return arrays, np.concatenate(taken), np.concatenate(ids)
