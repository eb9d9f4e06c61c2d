"""Measures of the recall experiment: right answers, misplaced probability, on held-out rows.

Every set is made of whole documents by `PackedDataset`, the same for all arms and seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.model import SmallGPT
from benchmarks.papers.recall.documents import (
    EVENTS,
    FIRST_VALUE,
    STATED,
    TABLE,
    VALUES,
    VOCABULARY,
    Document,
    Kind,
    event_prompts,
    facts_document,
    group_documents,
)
from benchmarks.papers.recall.protocol import Attention
from streampack import PackedBatch, PackedDataset, TokenRules, Topology, WindowConfig, sources
from streampack.ordering import DocumentOrder
from streampack.packing import BestFitDecreasing, Concat, Packer

__all__ = ["DISTANCES", "HeldOut", "batches_of", "measured", "same_piece"]

DISTANCES = (32, 64, 128, 224, 512)  # the last token of every class of distances
ATTENTIONS: tuple[Attention, ...] = ("row", "document")
HELD_OUT_SEED = 7_000_000
_FIELDS = {"kind": "uint8", "distance": "int32"}


def batches_of(
    documents: list[Document],
    packer: Packer,
    attention: Attention,
    batch_tokens: int,
    *,
    order: DocumentOrder | None = None,
    window: WindowConfig | None = None,
    seed: int = 0,
) -> PackedDataset:
    """One epoch in the documents' order; only answers have labels."""
    records = [
        {
            "tokens": made.tokens,
            "counts": made.kind > 0,
            "kind": made.kind,
            "distance": made.distance,
            "group": made.group,
        }
        for made in documents
    ]
    return PackedDataset(
        sources.Iterable(records, tokens="tokens", loss_mask="counts"),
        packer=packer,
        batch_size=batch_tokens // packer.seq_lens[-1],
        attention=attention,
        token_rules=TokenRules(vocab_size=VOCABULARY),
        token_fields=_FIELDS,
        document_fields={"group": "int64"},
        order=order,
        window=window,
        shuffle=False,
        seed=seed,
        lanes=1,
        topology=Topology(),
    )


def same_piece(batch: PackedBatch) -> Tensor:
    """(rows, seq_len) bool: answers with their statement in the same piece of the document."""
    distance = batch.fields["distance"].long()
    columns = torch.arange(batch.seq_len).expand_as(distance)
    stated = columns - distance
    there = batch.document_ids.gather(1, stated.clamp(min=0))
    return (distance > 0) & (stated >= 0) & (there == batch.document_ids)


@dataclass(frozen=True)
class Answers:
    """Measures of all answers that a set counts, in order: (N,) each.

    Attributes:
        kind, distance: as in `Document`.
        right: whether the most probable token is the answer.
        loss: in nats.
        elsewhere: probability of values that the document in front holds and this one does not.
    """

    kind: Tensor
    distance: Tensor
    right: Tensor
    loss: Tensor
    elsewhere: Tensor


class HeldOut:
    """The sets, as batches with either attention.

    Attributes:
        alone: documents of facts by themselves; from packed rows of 512 with attention inside them.
        behind: rows of an unrelated document and one that counts, by attention.
        events: prompts for every event, by themselves.
        group_alone, group_related, group_unrelated: a document by itself, behind one that states
            the other half of its group's facts, and behind one of another group.
    """

    def __init__(self, held_out: int, seq_len: int) -> None:
        rng = np.random.default_rng(HELD_OUT_SEED)
        bounds = np.log([64, 513])
        alone = [facts_document(rng, int(np.exp(rng.uniform(*bounds)))) for _ in range(held_out)]
        self.alone = self._apart(alone)
        pairs = []
        for _ in range(held_out):
            front = int(rng.integers(96, 161))
            pairs += [facts_document(rng, front), facts_document(rng, seq_len - front)]
        self.behind = {kind: self._pairs(pairs, seq_len, kind) for kind in ATTENTIONS}
        self.events = self._apart(event_prompts(rng, held_out // EVENTS))
        related, behind = [], []
        for number in range(held_out):
            front = int(rng.integers(64, 97))
            mixed = rng.permutation(TABLE)
            halves = [mixed[:STATED], mixed[STATED:]]
            first, second = group_documents(rng, number, halves, [front, 160 - front])
            other, _ = group_documents(rng, held_out + number, halves, [front, 160 - front])
            related += [first, second]
            behind += [other, second]
        self.group_alone = self._apart(related[1::2])
        self.group_related = self._pairs(related, 160, "row")
        self.group_unrelated = self._pairs(behind, 160, "row")

    @staticmethod
    def _apart(documents: list[Document]) -> list[PackedBatch]:
        packer = BestFitDecreasing(seq_len=512)
        return list(batches_of(documents, packer, "document", 2048))

    @staticmethod
    def _pairs(documents: list[Document], seq_len: int, attention: Attention) -> list[PackedBatch]:
        """Rows of two documents each, which fill them."""
        return list(batches_of(documents, Concat(seq_len=seq_len), attention, 8 * seq_len))


@torch.no_grad()
def answers_of(model: SmallGPT, batches: Iterable[PackedBatch], *, behind: bool) -> Answers:
    """Return all answers, or with `behind` the answers of every row's second document."""
    return Answers(
        *(torch.cat(parts) for parts in zip(*_parts(model, batches, behind), strict=True))
    )


def _parts(
    model: SmallGPT, batches: Iterable[PackedBatch], behind: bool
) -> Iterator[tuple[Tensor, ...]]:
    for batch in batches:
        labels = batch.labels[:, 1:]
        counted = labels != -100
        logs = torch.log_softmax(model(batch), dim=-1)
        answer = labels[counted]
        row = torch.arange(batch.rows)[:, None].expand_as(labels)[counted]
        second = batch.document_ids != batch.document_ids[:, :1]
        elsewhere = (_held(batch, ~second) & ~_held(batch, second))[row]
        values = logs[:, FIRST_VALUE : FIRST_VALUE + VALUES].exp()
        found = (
            batch.fields["kind"][:, 1:][counted],
            batch.fields["distance"][:, 1:][counted],
            logs.argmax(-1) == answer,
            -logs.gather(1, answer[:, None])[:, 0],
            (values * elsewhere).sum(-1),
        )
        keep = second[:, 1:][counted] if behind else torch.ones_like(found[2])
        yield tuple(part[keep] for part in found)


def _held(batch: PackedBatch, where: Tensor) -> Tensor:
    """(rows, VALUES) bool: values among the tokens that are there."""
    value = batch.input_ids - FIRST_VALUE
    there = where & (value >= 0) & (value < VALUES)
    held = torch.zeros(batch.rows, VALUES + 1, dtype=torch.bool)
    held.scatter_(1, torch.where(there, value, VALUES), True)
    return held[:, :VALUES]


def measured(
    model: SmallGPT, held_out: HeldOut, corpus: str, attention: Attention
) -> dict[str, Any]:
    """Every measure of a trained model, shares in 0 to 1."""
    if corpus == "groups":
        return _of_groups(model, held_out)
    alone = answers_of(model, held_out.alone, behind=False)
    behind = answers_of(model, held_out.behind[attention], behind=True)
    apart = answers_of(model, held_out.behind["document"], behind=True)
    events = answers_of(model, held_out.events, behind=False)
    by_distance = {}
    low = 0
    for high in DISTANCES:
        there = (alone.distance > low) & (alone.distance <= high)
        by_distance[f"alone, {low + 1} to {high}"] = _share(alone.right[there])
        low = high
    within = alone.distance <= DISTANCES[-2]
    found = {
        "alone": _share(alone.right[within]),
        "alone, loss": _share(alone.loss[within]),
        **by_distance,
        "same, alone": _share(apart.right),
        "behind": _share(behind.right),
        "behind, wrong values": _share(behind.elsewhere),
        "same, alone, wrong values": _share(apart.elsewhere),
    }
    for name, kind in (("cut", Kind.EVENT_CUT), ("kept", Kind.EVENT_KEPT)):
        there = events.kind == kind
        found[f"events {name}"] = _share(events.right[there])
        found[f"events {name}, loss"] = _share(events.loss[there])
    return found


def _of_groups(model: SmallGPT, held_out: HeldOut) -> dict[str, float]:
    found = {}
    for name, batches, behind in (
        ("alone", held_out.group_alone, False),
        ("behind related", held_out.group_related, True),
        ("behind unrelated", held_out.group_unrelated, True),
    ):
        answers = answers_of(model, batches, behind=behind)
        own = answers.kind == Kind.OWN
        found[f"own, {name}"] = _share(answers.right[own])
        found[f"others', {name}"] = _share(answers.right[~own])
        if behind:
            found[f"own, {name}, wrong values"] = _share(answers.elsewhere[own])
    return found


def _share(values: Tensor) -> float:
    return round(float(values.double().mean()), 5)
