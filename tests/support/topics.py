"""Documents of a few topics, and how many neighbours in an order share theirs."""

from __future__ import annotations

import numpy as np

from streampack.documents.blocks import Documents

TOPICS = 12


def topical(count: int = 360, seed: int = 0) -> tuple[Documents, np.ndarray]:
    """Documents that draw most of their tokens from their topic's part of the vocabulary."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, TOPICS, count)
    arrays = []
    for t in topic:
        ids = rng.integers(0, 3000, rng.integers(20, 300))
        own = rng.random(len(ids)) < 0.8
        arrays.append(np.where(own, 5000 + 200 * t + ids % 200, ids).astype(np.uint32))
    return Documents.from_arrays(arrays), topic


def together(topic: np.ndarray, order: np.ndarray) -> float:
    """Share of neighbours in the order that have the same topic."""
    return float((topic[order[1:]] == topic[order[:-1]]).mean())
