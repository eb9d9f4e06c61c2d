"""Runs over records of several documents, and the group ids in their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from streampack import PackedDataset, Topology, WindowConfig, sources

RNG = np.random.default_rng(5)
SIZES = RNG.integers(1, 6, 260)
VALUES = np.repeat(np.arange(260), SIZES)
LENGTHS = RNG.integers(1, 12, len(VALUES)).tolist()
FIELDS = {"group": "int64", "number": "int32"}
IDS = np.split(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS)[:-1])  # of every document
#: The numbers of the documents of each record.
WHOLE = [np.flatnonzero(value == VALUES).tolist() for value in range(len(SIZES))]


def records() -> list[dict[str, Any]]:
    """A record for every group: its documents, a number for each, and one for all of them."""
    return [
        {"tokens": [IDS[i].tolist() for i in group], "number": group, "group": value}
        for value, group in enumerate(WHOLE)
    ]


def source(of: list[dict[str, Any]] | None = None) -> sources.Items:
    return sources.Items(
        records() if of is None else of,
        tokens="tokens",
        loss_mask=[],
        reading=sources.ReadOptions(block_documents=11),
    )


def dataset(of: Any = None, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": 64,
        "batch_size": 2,
        "window": WindowConfig(rows=12),
        "lanes": 5,
        "topology": Topology(),
        "document_fields": FIELDS,
        "provenance": True,
    }
    if "packer" in options:
        del values["seq_len"]
    return PackedDataset(source() if of is None else of, **{**values, **options})


def groups_of(batches: Any, within: str = "row") -> list[list[int]]:
    """Return the numbers of the documents of each group, after checks of the batch's group ids."""
    found = []
    for batch in batches:
        numbers, groups = (batch.document_fields[name].tolist() for name in ("number", "group_ids"))
        assert len(numbers) == len(groups) == batch.num_documents
        assert sorted(set(groups)) == list(range(len(set(groups))))
        of_group: dict[int, list[int]] = {}
        row: dict[int, int] = {}
        for piece, (number, group) in enumerate(zip(numbers, groups, strict=True)):
            here = batch.document_ids == piece
            ids = batch.input_ids[here]
            assert ids.tolist() == IDS[number].tolist()
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
