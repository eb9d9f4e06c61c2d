"""Kinds of faults, each with its consequence and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        consequence: effect on training, in one line.
        remedy: change of the loader, in one line.
    """

    consequence: str
    remedy: str


#: Kinds of faults by name.
KINDS = {
    "documents-see-each-other": Kind(
        "Tokens attend to unrelated documents before them in the row.",
        "Pass boundaries: cu_seqlens, restarting position_ids without attention_mask, or a mask of "
        "blocks.",
    ),
    "borders-inside-documents": Kind(
        "Tokens do not see the beginning of their own document.",
        "Place boundaries at the first token of each document, not beside it.",
    ),
    "not-causal": Kind(
        "Tokens see the tokens that they learn to predict; the loss falls and nothing is learnt.",
        "Let a query see only keys up to itself.",
    ),
    "mask-inverted": Kind(
        "Tokens see all that they should not, and not themselves.",
        "Invert the mask: Megatron-LM hides True, transformers and torch show True.",
    ),
    "tokens-masked-out": Kind(
        "The attention mask hides tokens of documents as if they were padding.",
        "Derive the mask from lengths, not from a comparison of ids.",
    ),
    "padding-seen": Kind(
        "Tokens attend to padding before them.",
        "Pass attention_mask, or pad at the end of rows.",
    ),
    "positions-do-not-restart": Kind(
        "Documents get positions that depend on their place in the row.",
        "Count position_ids from 0 in each document.",
    ),
    "positions-jump": Kind(
        "Neighbouring tokens of a document are at other distances than one.",
        "Count position_ids in steps of one inside a document.",
    ),
    "labels-across-borders": Kind(
        "The last token of a document learns the first token of an unrelated one.",
        "Set the label of each document's first token to -100 (shifted labels: of its last slot).",
    ),
    "labels-lost-at-borders": Kind(
        "The first or last tokens of documents are never learnt, so models do not end or begin "
        "well.",
        "Mask only the label of the first token, and no label because its id equals pad_id.",
    ),
    "labels-lost": Kind(
        "Tokens that should carry loss carry none.",
        "Compare the loss mask before and after packing.",
    ),
    "answer-starts-lost": Kind(
        "The first token of an answer is never learnt.",
        "Shift loss masks together with labels: a mask belongs to the predicted token.",
    ),
    "prompts-in-loss": Kind(
        "Tokens without loss, such as prompts, are learnt.",
        "Pass the loss mask through the packer, shifted together with labels.",
    ),
    "labels-not-shifted": Kind(
        "Each token learns to predict itself, and the loss falls to 0.",
        "Shift labels by one, since this form of batch is not shifted by the model.",
    ),
    "labels-shifted-twice": Kind(
        "Each token learns the token after the next one.",
        "Do not shift labels in the loader, since the model shifts them.",
    ),
    "labels-wrong": Kind(
        "Tokens learn a token that does not follow them.",
        "Cut and order labels exactly as input ids.",
    ),
    "padding-in-loss": Kind(
        "Padding is learnt, and counts in the mean of the loss.",
        "Set labels to -100 (or loss_mask to 0) on padding.",
    ),
    "padding-in-routers": Kind(
        "Routers of experts count padding in their load and their auxiliary loss.",
        "Pass a mask of padding to the model (attention_mask or padding_mask), or fill rows.",
    ),
    "cu-seqlens-start": Kind(
        "Kernels never compute the tokens before the first boundary.",
        "Begin cu_seqlens with 0.",
    ),
    "cu-seqlens-end": Kind(
        "Kernels leave the last tokens uncomputed, or read behind the last token.",
        "End cu_seqlens at the number of slots in the batch.",
    ),
    "cu-seqlens-order": Kind(
        "Segments have negative lengths.",
        "Make cu_seqlens a running sum of lengths.",
    ),
    "cu-seqlens-dtype": Kind(
        "FlashAttention refuses boundaries that are not int32.",
        "Convert cu_seqlens to int32.",
    ),
    "max-length-too-small": Kind(
        "Kernels compute only the first part of longer documents.",
        "Set the maximum length to the longest segment of the batch.",
    ),
    "documents-twice": Kind(
        "Documents come more than once in an epoch.",
        "Look for samplers that fill up the last batch, and for several workers on one stream.",
    ),
    "documents-missing": Kind(
        "Documents never come in an epoch.",
        "Look for drop_last, filters by length, and packers that lose an unfinished row.",
    ),
    "tokens-missing": Kind(
        "Tokens in the middle of documents never come.",
        "Look at the place where documents are cut: the next row must begin with the next token.",
    ),
    "documents-on-two-ranks": Kind(
        "Ranks train on the same documents.",
        "Divide the corpus by rank: a DistributedSampler, or split_dataset_by_node.",
    ),
    "documents-twice-over-resume": Kind(
        "A resumed run trains again on documents that it had delivered.",
        "Save the position behind the last batch the loop received, with documents in buffers.",
    ),
    "documents-missing-over-resume": Kind(
        "A resumed run skips documents that were not delivered.",
        "Save documents that wait in buffers or were fetched ahead by workers.",
    ),
    "state-does-not-repeat": Kind(
        "A state gives other batches each time it is loaded, or others than without a stop.",
        "Save random states and the position of each worker.",
    ),
    "shapes-differ": Kind(
        "Ranks have batches of different shapes in a step: collectives of pipelines and experts "
        "hang, and compiled models compile again.",
        "Pad batches to one shape on all ranks.",
    ),
    "steps-differ": Kind(
        "Ranks end after different numbers of batches, so the others hang.",
        "Let ranks agree on the end, or give each the same number of batches.",
    ),
    "loader-raises": Kind(
        "The loader ends with an error of its own, and the run with it; later batches are unknown.",
        "Mend the loader, or catch its end as its own training loop does.",
    ),
    "resume-raises": Kind(
        "A run that continues from this state fails.",
        "Load the state in a new loader, as the training script does, and correct the error.",
    ),
    "model-mixes-documents": Kind(
        "A change of one document changes the model's outputs for another one.",
        "Pass boundaries in the form that this model reads, and use_cache=False; see "
        "check_isolation for the layer.",
    ),
    "model-differs-from-alone": Kind(
        "The model's outputs for a document differ from its outputs for the document alone.",
        "Compare boundaries and position_ids with the form that this model reads.",
    ),
}


@dataclass(frozen=True)
class Fault:
    """A kind of fault, with the place where it was first seen.

    Attributes:
        kind: name of the kind, as in `streampack.checking.faults.KINDS`.
        rank: index of the loader.
        batch: index of the batch on its rank; -1 for the whole epoch.
        row: row in that batch; -1 if the fault is not in one row.
        slot: slot in that row; -1 if the fault is not in one slot.
        count: number of slots, documents or batches with this fault.
        detail: the values at that place.
    """

    kind: str
    rank: int = 0
    batch: int = -1
    row: int = -1
    slot: int = -1
    count: int = 1
    detail: str = ""

    @property
    def consequence(self) -> str:
        """Effect on training, in one line."""
        return KINDS[self.kind].consequence

    @property
    def remedy(self) -> str:
        """Change of the loader, in one line."""
        return KINDS[self.kind].remedy

    @property
    def first(self) -> str:
        """Count and first place in words: "3 times, first in rank 0, batch 3 (1 of 2)"."""
        names = ("rank", "batch", "row", "slot")
        place = ", ".join(
            f"{name} {getattr(self, name)}" for name in names if getattr(self, name) >= 0
        )
        detail = f" ({self.detail})" if self.detail else ""
        times = f"{self.count:,} time{'s'[self.count == 1 :]}"
        return f"{times}, first in {place or 'the epoch'}{detail}"


class FaultLog:
    """The faults of a check: the first of each kind, and counts of the others.

    Args:
        ignore: kinds that are left out.
    """

    def __init__(self, ignore: frozenset[str] = frozenset()) -> None:
        self.ignore = ignore
        self.by_kind: dict[str, Fault] = {}
        self.rank, self.batch = 0, -1

    def add(
        self, kind: str, *, row: int = -1, slot: int = -1, count: int = 1, detail: str = ""
    ) -> None:
        """Add a fault of the current batch."""
        if kind in self.ignore or not count:
            return
        first = self.by_kind.get(kind)
        if first is None:
            place = {"rank": self.rank, "batch": self.batch, "row": row, "slot": slot}
            self.by_kind[kind] = Fault(kind, **place, count=count, detail=detail)
        else:
            self.by_kind[kind] = Fault(**{**vars(first), "count": first.count + count})

    def add_slots(self, kind: str, where: NDArray[np.bool_], detail: str = "") -> None:
        """Add the slots of the current batch that are true in `where`, (rows, slots)."""
        rows, slots = where.nonzero()
        if len(rows):
            self.add(kind, row=int(rows[0]), slot=int(slots[0]), count=len(rows), detail=detail)
