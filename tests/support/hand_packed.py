"""A small packer of documents into rows, and its batches in the forms of several libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streampack.checking.marked import MarkedDocuments

ROW, ROWS = 128, 4


@dataclass
class Packed:
    """Rows of documents, (rows, slots) each.

    Labels are not shifted. Segments count from 1 in each row and are 0 on padding.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    segments: Tensor

    @property
    def targets(self) -> Tensor:
        """The next token of each slot, -100 where it carries no loss."""
        return torch.nn.functional.pad(self.labels[:, 1:], (0, 1), value=-100)

    @property
    def cu_seqlens(self) -> Tensor:
        segments = self.segments.clone()
        segments += torch.arange(len(segments))[:, None] * 1000
        ends = (segments.view(-1).diff() != 0).nonzero().view(-1) + 1
        return (
            torch.nn.functional.pad(ends, (1, 1))
            .int()
            .index_fill(0, torch.tensor([len(ends) + 1]), segments.numel())
        )

    @property
    def mask(self) -> Tensor:
        """(rows, 1, slots, slots) bool, True where a slot sees another."""
        same = self.segments[:, :, None] == self.segments[:, None, :]
        return (same & torch.ones_like(same).tril())[:, None]


def rows_of(documents: Sequence[int], lengths: Sequence[int], row: int) -> list[list[int]]:
    """The documents of each row: the next one opens a row if it does not fit the last."""
    rows: list[list[int]] = [[]]
    for number in documents:
        if sum(lengths[other] for other in rows[-1]) + lengths[number] > row:
            rows.append([])
        rows[-1].append(number)
    return rows


def packed(
    documents: MarkedDocuments,
    numbers: Sequence[int] | None = None,
    *,
    row: int = ROW,
    rows: int = ROWS,
) -> Iterator[Packed]:
    """Batches of the documents, of all or of those with these numbers."""
    lengths = [len(ids) for ids in documents]
    packed_rows = rows_of(range(len(lengths)) if numbers is None else numbers, lengths, row)
    packed_rows += [[] for _ in range(-len(packed_rows) % rows)]
    for first in range(0, len(packed_rows), rows):
        batch = Packed(
            torch.full((rows, row), documents.pad_id),
            torch.full((rows, row), -100),
            torch.zeros((rows, row), dtype=torch.long),
            torch.zeros((rows, row), dtype=torch.long),
        )
        for place, members in enumerate(packed_rows[first : first + rows]):
            slot = 0
            for segment, number in enumerate(members):
                ids, mask = documents[number], documents.loss_mask(number)
                held = slice(slot, slot := slot + len(ids))
                batch.tokens[place, held] = torch.tensor(ids)
                labels = [token if m else -100 for token, m in zip(ids, mask, strict=True)]
                batch.labels[place, held] = torch.tensor([-100, *labels[1:]])
                batch.positions[place, held] = torch.arange(len(ids))
                batch.segments[place, held] = segment + 1
        yield batch


# ------------------------------------------------------------------ forms


def flat(batch: Packed) -> dict[str, Any]:
    """Arguments for transformers' varlen attention."""
    ends = batch.cu_seqlens
    longest = int(ends.diff().max())
    return {
        "input_ids": batch.tokens.view(1, -1),
        "labels": batch.labels.view(1, -1),
        "position_ids": batch.positions.view(1, -1),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def positions(batch: Packed) -> dict[str, Any]:
    """Arguments with boundaries where positions restart."""
    return {
        "input_ids": batch.tokens,
        "labels": batch.labels,
        "position_ids": batch.positions,
    }


def four_dimensions(batch: Packed) -> dict[str, Any]:
    return {**positions(batch), "attention_mask": batch.mask}


def additive(batch: Packed) -> dict[str, Any]:
    return {**positions(batch), "attention_mask": (~batch.mask).float() * -1e9}


def numbers(batch: Packed) -> dict[str, Any]:
    """Arguments for multipack patches: the mask has the number of the document."""
    return {**positions(batch), "attention_mask": batch.segments}


def seq_idx(batch: Packed) -> dict[str, Any]:
    return {**positions(batch), "seq_idx": batch.segments.int()}


def megatron(batch: Packed) -> dict[str, Any]:
    targets = batch.targets
    return {
        "tokens": batch.tokens,
        "labels": targets.clamp(min=0),
        "loss_mask": (targets != -100).float(),
        "attention_mask": ~batch.mask,
        "position_ids": batch.positions,
    }


def torchtitan(batch: Packed) -> tuple[dict[str, Any], Tensor]:
    return {"input": batch.tokens, "positions": batch.positions}, batch.targets


def jax(batch: Packed) -> dict[str, Any]:
    targets = batch.targets
    return {
        "inputs": batch.tokens.numpy(),
        "inputs_segmentation": batch.segments.numpy(),
        "inputs_position": batch.positions.numpy(),
        "targets": targets.clamp(min=0).numpy(),
        "targets_segmentation": (batch.segments * (targets != -100)).numpy(),
    }


FORMS = (
    *(flat, positions, four_dimensions, additive, numbers, seq_idx),
    *(megatron, torchtitan, jax),
)
