"""Measure how many pairs of documents stay above a limit of similarity, and log it.

A walk keeps documents apart only if they are in each other's lists of neighbours, and if others are
left to put between them. In a library of much alike files many pairs stay above the limit.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from streampack.notices import is_first
from streampack.ordering.neighbours import squared_norms
from streampack.ordering.traversal import Limit

logger = logging.getLogger(__name__)

SAMPLED = 256  # documents, each with all that follow it within a row
NOTABLE = 0.05  # share of the pairs from which on it is a warning


def share_above(vectors: NDArray[np.float32], limit: Limit) -> float:
    """Return the share, 0 to 1, of sampled pairs within a row that are above the limit.

    Args:
        vectors: (M, D) vectors of the documents in their order.
        limit: the limit, with the lengths in the same order.
    """
    stops = np.cumsum(limit.lengths)
    count = len(vectors)
    chosen = np.unique(np.linspace(0, max(count - 2, 0), min(SAMPLED, count)).astype(np.int64))
    above = pairs = 0
    for at in chosen.tolist():
        begin = stops[at] - limit.lengths[at]
        last = int(np.searchsorted(stops, begin + limit.row_tokens, side="right"))
        rows = vectors[at:last]
        rows = rows / np.sqrt(squared_norms(rows))[:, None].astype(np.float32)
        if len(rows) > 1:
            above += int((rows[1:] @ rows[0] > limit.similarity).sum())
            pairs += len(rows) - 1
    return above / max(pairs, 1)


def log_share_above(vectors: NDArray[np.float32], limit: Limit) -> None:
    """Log `share_above`: a warning, once per job, if it is more than a twentieth."""
    share = share_above(vectors, limit)
    if share > NOTABLE and is_first("max_similarity"):
        logger.warning(
            "%.1f %% of the pairs of documents within a row of %d tokens are more similar than "
            "max_similarity=%g, since too few other documents are left in the ordering window. "
            "A larger order_window_documents or a higher max_similarity lowers the share.",
            100 * share, limit.row_tokens, limit.similarity,
        )  # fmt: skip
    else:
        logger.info("%.2f %% of the pairs within a row are above max_similarity", 100 * share)
