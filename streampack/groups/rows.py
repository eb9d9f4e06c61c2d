"""split_groups: turn rows of groups into rows of their member documents.

Cost: some numpy calls per batch; no token is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import GROUP, ORIGIN, Documents, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import PlanError
from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PROVENANCE, PackedRows


def groups_of(pieces: Pieces, held: HeldBlocks) -> list[Documents]:
    """Return the member documents of each of these pieces (D,), which are groups."""
    groups = []
    for (block, i), start, stop in zip(
        held.positions(pieces.serial), pieces.start.tolist(), pieces.stop.tolist(), strict=True
    ):
        assert block.members is not None
        low, high = block.members.offsets[i : i + 2].tolist()
        begin, end = block.offsets[i : i + 2].tolist()
        if stop - start < end - begin:
            ends = block.members.documents.offsets[low : high + 1] - begin
            high = low + int(np.searchsorted(ends, stop, side="right")) - 1
            low += int(np.searchsorted(ends, start))
        groups.append(block.members.documents[low:high])
    return groups


@dataclass(frozen=True, slots=True)
class GroupsSplit:
    """Row stage that makes pieces of the members of groups; `types` are the run's fields."""

    types: FieldSpec
    by_row: bool

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        groups = groups_of(pieces, held)
        return split_groups(rows, groups, pieces.document, self.types, by_row=self.by_row)

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows._replace(
            document_fields={n: np.zeros(0, dtype=t) for n, t in self.types.document.items()}
        )


def split_groups(
    packed: PackedRows,
    groups: Sequence[Documents],
    number: NDArray[np.int64],
    types: FieldSpec,
    *,
    by_row: bool,
) -> PackedRows:
    """Return the same rows with the members of groups as pieces.

    Args:
        packed: rows with D pieces, each a group or some of its members.
        groups: members of each piece (D,).
        number: (D,) an id of each piece's group, equal for pieces of one group.
        types: declared fields.
        by_row: True if attention segments are rows.

    Raises:
        PlanError: a piece holds only part of a document.
    """
    lengths = concatenated([group.lengths for group in groups], np.int64)
    composition = replace(
        packed.composition,
        segments=len(lengths),
        documents=len(lengths),
        documents_cut=0,
        context_sum=int((lengths * (lengths - 1) // 2).sum()),
    )
    split = by_member(packed, groups)._replace(
        composition=composition, **columns_of(packed, groups, number, lengths, types)
    )
    return split if by_row else _apart(split)


def by_member(packed: PackedRows, groups: Sequence[Documents]) -> PackedRows:
    """Return the rows with the boundaries of the members of groups; see `split_groups`."""
    count = np.array([len(group) for group in groups], dtype=np.int64)
    lengths = concatenated([group.lengths for group in groups], np.int64)
    runs, is_group = np.diff(packed.boundaries).astype(np.int64), packed.piece >= 0
    ends = offsets_of(lengths)[offsets_of(count)]
    if not np.array_equal(np.diff(ends), runs[is_group]):
        raise PlanError(
            "A row must hold whole documents of a group, and one is cut.",
            "Use a packer that never cuts a document, such as BestFitDecreasing.",
        )
    many = np.ones(len(runs), dtype=np.int64)  # runs that result from each run
    many[is_group] = count
    real = np.repeat(is_group, many)
    sizes = np.repeat(runs, many)
    sizes[real] = lengths
    piece = np.full(len(sizes), -1, dtype=np.int32)
    piece[real] = np.arange(len(lengths), dtype=np.int32)
    return packed._replace(boundaries=offsets_of(sizes).astype(np.int32), piece=piece)


def columns_of(
    packed: PackedRows,
    groups: Sequence[Documents],
    number: NDArray[np.int64],
    lengths: NDArray[np.int64],
    types: FieldSpec,
) -> dict[str, Any]:
    """Make the columns of `PackedRows` with one entry per member; see `split_groups`.

    `lengths` are the lengths of the members.
    """
    origin = concatenated([group.origin for group in groups], ORIGIN)
    provenance = packed.provenance
    if provenance is not None:
        provenance = np.zeros(len(lengths), dtype=PROVENANCE)
        for name in ("source", "shard", "index"):
            provenance[name] = origin[name]
        provenance["stop"] = lengths
    fields = {
        name: concatenated([group.document_fields[name] for group in groups], dtype)
        for name, dtype in types.document.items()
        if name != GROUP
    }
    _, first, position = np.unique(number, return_index=True, return_inverse=True)
    in_order = np.argsort(np.argsort(first)).astype(np.int32)  # groups by their first pieces
    fields[GROUP] = np.repeat(in_order[position], [len(group) for group in groups])
    return {
        "source_ids": origin["source"].astype(np.int32),
        "provenance": provenance,
        "document_fields": fields,
    }


def _apart(packed: PackedRows) -> PackedRows:
    """Return the rows with an attention segment for every run."""
    sizes, real = np.diff(packed.boundaries).astype(np.int64), packed.piece >= 0
    lengths = sizes[real]
    if packed.loss_mask is None:
        loss_tokens = int((lengths - 1).sum())
    else:  # padding is masked, and the first token of a segment has no predecessor
        firsts = packed.boundaries[:-1][real]
        loss_tokens = int(packed.loss_mask.sum()) - int(packed.loss_mask[firsts].sum())
    return packed._replace(
        cu_seqlens=packed.boundaries,
        max_seqlen=int(sizes.max(initial=0)),
        num_loss_tokens=loss_tokens,
        sum_squared_lengths=int((lengths * lengths).sum()),
    )


def concatenated(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Concatenate any number of arrays in a dtype, even zero."""
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays], dtype=dtype, casting="unsafe")
