"""Token ids with labels or masks, and the tokens learnt."""

from __future__ import annotations

from typing import Any

from streampack import PackedDataset, Topology

IDS = [[11, 12, 13, 14], [21, 22], [31, 32, 33]]
LABELS = [[-100, -100, 13, 14], [-100, 22], [-100, 32, -100]]
MASKS = [[0, 0, 1, 1], [0, 1], [0, 1, 0]]
#: Expected results of `learnt`, with the labels or masks above and without any.
EXPECTED = {(tuple(ids), tuple(labels)) for ids, labels in zip(IDS, LABELS, strict=True)}
ALL = {(tuple(ids), (-100, *ids[1:])) for ids in IDS}


def learnt(source: Any) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The documents with their labels; of a document's first token nothing is learnt anyway."""
    found = set()
    for batch in PackedDataset(source, seq_len=8, batch_size=1, topology=Topology()):
        for number in range(batch.num_documents):
            own = batch.document_ids == number
            found.add((tuple(batch.input_ids[own].tolist()), tuple(batch.labels[own].tolist())))
    return found
