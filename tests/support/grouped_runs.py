"""Runs over a source with groups, and what their batches say of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from streampack import PackedDataset, Topology, WindowConfig
from tests.support.grouped_source import GroupedSource

RNG = np.random.default_rng(5)
SIZES = RNG.integers(1, 6, 260)
VALUES = np.repeat(np.arange(260), SIZES)
SHARDS = [VALUES[:300].tolist(), VALUES[300:350].tolist(), VALUES[350:].tolist()]
LENGTHS = RNG.integers(1, 12, len(VALUES)).tolist()
FIELDS = {"group": "int64", "number": "int32"}


def source() -> GroupedSource:
    return GroupedSource(SHARDS, LENGTHS, block_documents=11)


def dataset(of: Any = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": 64,
        "batch_rows": 2,
        "window": WindowConfig(rows=12),
        "lanes": 5,
        "topology": Topology(),
        "group": "group",
        "document_fields": FIELDS,
        "provenance": True,
    }
    if "packer" in options:
        del values["seq_len"]
    return PackedDataset(source() if of is None else of, **{**values, **options})


def groups_of(batches: Any, within: str = "row") -> list[list[int]]:
    """The numbers of the documents of each group; checks what a batch says of each."""
    documents, found = source().documents, []
    for batch in batches:
        numbers, groups = (batch.document_fields[name].tolist() for name in ("number", "group_ids"))
        assert len(numbers) == len(groups) == batch.num_documents
        assert sorted(set(groups)) == list(range(len(set(groups))))
        of_group: dict[int, list[int]] = {}
        row: dict[int, int] = {}
        for piece, (number, group) in enumerate(zip(numbers, groups, strict=True)):
            here = batch.document_ids == piece
            ids = batch.input_ids[here]
            assert ids.tolist() == documents[number].tolist()
            assert batch.position_ids[here].tolist() == list(range(len(ids)))
            assert batch.labels[here].tolist() == [-100, *ids[1:].tolist()]
            rows = here.any(dim=1).nonzero().flatten().tolist()
            if within == "row":
                assert row.setdefault(group, rows[0]) == rows[0]
            assert len(rows) == 1
            assert batch.provenance["start"][piece] == 0
            assert batch.provenance["stop"][piece] == len(ids)
            of_group.setdefault(group, []).append(number)
        found += [group if within == "row" else sorted(group) for group in of_group.values()]
        lengths = batch.cu_seqlens.diff()
        assert (lengths > 0).all()
        assert lengths.sum() == batch.rows * batch.seq_len
        assert lengths.max() == batch.max_seqlen
        assert (batch.labels != -100).sum() == batch.num_loss_tokens
        real = torch.bincount(batch.document_ids[batch.document_ids >= 0].long())
        assert (real**2).sum() == batch.sum_squared_lengths
        assert batch.composition.segments == batch.composition.documents == batch.num_documents
        assert batch.composition.documents_cut == 0
    return found
