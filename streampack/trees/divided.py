"""Records with a tree longer than a row: divided into trees that fit.

Cost: two passes of `plant` over the tokens of the records that are divided, a copy of the block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, joined_groups, offsets_of
from streampack.trees.build import plant
from streampack.trees.parts import Sequences, whole_or_fewest


def divided(
    documents: Documents, slots: NDArray[np.int64], seq_len: int
) -> tuple[Documents, NDArray[np.int64]]:
    """Divide the records of a block with trees of more than `seq_len` slots.

    Each becomes the fewest parts that fit, as groups of whole sequences, in the order of the record
    inside a part. A record with a sequence longer than `seq_len` is left whole.

    Args:
        documents: N groups, one for each record.
        slots: (N,) slots of their trees.

    Returns:
        The parts as groups, and the offsets (N + 1,) of the records into the parts.
    """
    members = documents.members
    assert members is not None
    groups = members.offsets - members.offsets[0]
    sequences = members.documents[int(members.offsets[0]) : int(members.offsets[-1])]
    parts: list[NDArray[np.int64]] = []
    counts = np.ones(len(documents), dtype=np.int64)
    for i, own in enumerate(np.split(np.arange(len(sequences)), groups[1:-1])):
        if slots[i] > seq_len and sequences.lengths[own].max() <= seq_len:
            fewest = _parts(sequences.take(own), seq_len)
            counts[i] = len(fewest)
            parts += [own[part] for part in fewest]
        else:
            parts.append(own)
    again = sequences.take(np.concatenate(parts))
    return joined_groups(again, offsets_of(np.array([*map(len, parts)]))), offsets_of(counts)


def _parts(sequences: Documents, seq_len: int) -> list[NDArray[np.int64]]:
    """Return the indices of the sequences of each part, for the sequences of one record."""
    group = np.array([0, len(sequences)])
    slot = plant(sequences.tokens, sequences.offsets, group).slot
    order = np.argsort(slot[np.cumsum(sequences.lengths) - 1], kind="stable")  # depth first
    in_order = sequences.take(order)
    path = plant(in_order.tokens, in_order.offsets, group).shared
    costs = np.zeros(len(order) + 1)
    numbers = Sequences(group, offsets_of(in_order.lengths - path), path, costs, costs, align=1)
    return [np.sort(order[low:high]) for low, high in whole_or_fewest(numbers, seq_len)]
