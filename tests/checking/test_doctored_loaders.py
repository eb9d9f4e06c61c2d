"""Each fault of a loader is named, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import streampack
from streampack.checking.faults import KINDS
from streampack.checking.marked import MarkedDocuments
from tests.support import hand_packed
from tests.support.hand_packed import Packed, packed

Change = Callable[[dict[str, Any], Packed], None]


def changed(form: Callable[[Packed], Any], change: Change) -> Callable[..., Iterator[Any]]:
    """A loader of batches in a form, each changed in place."""

    def make(documents: MarkedDocuments) -> Iterator[Any]:
        for batch in packed(documents):
            entries = form(batch)
            change(entries[0] if isinstance(entries, tuple) else entries, batch)
            yield entries

    return lambda documents: list(make(documents))


def put(**entries: Callable[[dict[str, Any], Packed], Any]) -> Change:
    def change(batch: dict[str, Any], rows: Packed) -> None:
        batch.update({name: value(batch, rows) for name, value in entries.items()})

    return change


def without(*names: str) -> Change:
    def change(batch: dict[str, Any], _: Packed) -> None:
        for name in names:
            del batch[name]

    return change


def both(*changes: Change) -> Change:
    def change(batch: dict[str, Any], rows: Packed) -> None:
        for each in changes:
            each(batch, rows)

    return change


def through(rows: Packed) -> torch.Tensor:
    """Positions that do not restart."""
    return torch.arange(rows.tokens.shape[1]).expand(rows.tokens.shape)


def first_tokens(rows: Packed) -> torch.Tensor:
    """True on the first token of each document."""
    return (rows.positions == 0) & (rows.segments > 0)


def last_tokens(rows: Packed) -> torch.Tensor:
    following = torch.nn.functional.pad(rows.segments[:, 1:], (0, 1))
    return (rows.segments != following) & (rows.segments > 0)


def masked(where: Callable[[Packed], torch.Tensor]) -> Change:
    """Labels that are lost at some slots."""
    return put(labels=lambda b, r: torch.where(where(r), -100, r.labels).view(b["labels"].shape))


def answer_starts(rows: Packed) -> torch.Tensor:
    before = torch.nn.functional.pad(rows.labels[:, :-1], (1, 0), value=-100)
    return (rows.labels != -100) & (before == -100)


def padded_labels(batch: dict[str, Any], rows: Packed) -> torch.Tensor:
    return torch.where(rows.segments == 0, rows.tokens, rows.labels).view(batch["labels"].shape)


f = hand_packed
ONES = {"attention_mask": lambda b, r: torch.ones_like(r.tokens)}
#: Kind of the fault and loader, by name.
DOCTORED: dict[str, tuple[str, Callable[..., Any]]] = {
    "a mask of ones beside positions": (
        "documents-see-each-other",
        changed(f.positions, put(**ONES)),
    ),
    "no positions, no mask": (
        "documents-see-each-other",
        changed(f.positions, without("position_ids")),
    ),
    "positions do not restart": (
        "documents-see-each-other",
        changed(f.positions, put(position_ids=lambda b, r: through(r))),
    ),
    "a causal mask of four dimensions": (
        "documents-see-each-other",
        changed(f.four_dimensions, put(attention_mask=lambda b, r: torch.ones_like(r.mask).tril())),
    ),
    "boundaries of rows alone": (
        "documents-see-each-other",
        changed(
            f.flat,
            put(
                cu_seq_lens_q=lambda b, r: torch.arange(0, 513, 128).int(),
                max_length_q=lambda b, r: 128,
            ),
        ),
    ),
    "positions beside a right mask": (
        "positions-do-not-restart",
        changed(f.four_dimensions, put(position_ids=lambda b, r: through(r))),
    ),
    "positions beside right boundaries": (
        "positions-do-not-restart",
        changed(f.flat, put(position_ids=lambda b, r: torch.arange(512)[None])),
    ),
    "positions in steps of two": (
        "positions-jump",
        changed(f.flat, put(position_ids=lambda b, r: 2 * b["position_ids"])),
    ),
    "boundaries one token late": (
        "documents-see-each-other",
        changed(f.seq_idx, put(seq_idx=lambda b, r: r.segments.roll(1, 1).int())),
    ),
    "labels of first tokens": (
        "labels-across-borders",
        changed(
            f.flat, put(labels=lambda b, r: torch.where(r.segments > 0, r.tokens, -100).view(1, -1))
        ),
    ),
    "shifted labels over the border": (
        "labels-across-borders",
        changed(
            f.megatron,
            put(
                labels=lambda b, r: torch.nn.functional.pad(r.tokens[:, 1:], (0, 1)),
                loss_mask=lambda b, r: torch.nn.functional.pad(
                    r.segments[:, 1:] > 0, (0, 1)
                ).float(),
            ),
        ),
    ),
    "the last tokens carry no loss": (
        "labels-lost-at-borders",
        changed(f.flat, masked(last_tokens)),
    ),
    "the second tokens carry no loss": (
        "labels-lost-at-borders",
        changed(f.flat, masked(lambda r: (r.positions == 1) & (r.segments > 0))),
    ),
    "every seventh label is lost": (
        "labels-lost",
        changed(f.flat, masked(lambda r: r.tokens % 7 == 0)),
    ),
    "labels not shifted": (
        "labels-not-shifted",
        changed(f.megatron, put(labels=lambda b, r: r.tokens)),
    ),
    "labels shifted by loader and model": (
        "labels-shifted-twice",
        changed(f.flat, put(labels=lambda b, r: r.targets.view(1, -1))),
    ),
    "labels of another row": (
        "labels-wrong",
        changed(
            f.flat,
            put(
                labels=lambda b, r: torch.where(r.labels == -100, -100, r.tokens.flip(1)).view(
                    1, -1
                )
            ),
        ),
    ),
    "labels on padding": ("padding-in-loss", changed(f.positions, put(labels=padded_labels))),
    "loss mask of ones": (
        "padding-in-loss",
        changed(
            f.megatron,
            put(loss_mask=lambda b, r: ((r.targets != -100) | (r.segments == 0)).float()),
        ),
    ),
    "boundaries end at the last document": (
        "cu-seqlens-end",
        changed(f.flat, put(cu_seq_lens_q=lambda b, r: b["cu_seq_lens_q"][:-1])),
    ),
    "boundaries without zero": (
        "cu-seqlens-start",
        changed(f.flat, put(cu_seq_lens_q=lambda b, r: b["cu_seq_lens_q"][1:])),
    ),
    "lengths instead of their sum": (
        "cu-seqlens-order",
        changed(
            f.flat,
            put(
                cu_seq_lens_q=lambda b, r: torch.nn.functional.pad(
                    torch.cat((torch.tensor([400, 10]), torch.tensor([512]))), (1, 0)
                ).int()
            ),
        ),
    ),
    "boundaries in int64": (
        "cu-seqlens-dtype",
        changed(f.flat, put(cu_seq_lens_q=lambda b, r: b["cu_seq_lens_q"].long())),
    ),
    "mean instead of longest": (
        "max-length-too-small",
        changed(f.flat, put(max_length_q=lambda b, r: b["max_length_q"] - 1)),
    ),
    "a mask as transformers has it, for Megatron": (
        "mask-inverted",
        changed(f.megatron, put(attention_mask=lambda b, r: ~b["attention_mask"])),
    ),
    "a mask without the triangle": (
        "not-causal",
        changed(
            f.four_dimensions,
            put(
                attention_mask=lambda b, r: (r.segments[:, :, None] == r.segments[:, None, :])[
                    :, None
                ]
            ),
        ),
    ),
    "a border inside each document": (
        "borders-inside-documents",
        changed(
            f.seq_idx,
            put(
                seq_idx=lambda b, r: (r.segments * 2 + (r.positions >= 2) * (r.segments > 0)).int()
            ),
        ),
    ),
    "a mask that hides some ids": (
        "tokens-masked-out",
        changed(
            f.numbers,
            put(attention_mask=lambda b, r: torch.where(r.tokens % 50 == 0, 0, r.segments)),
        ),
    ),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_the_fault_is_named_and_no_other(name: str) -> None:
    kind, loader = DOCTORED[name]
    report = streampack.check(loader)
    extra = {"borders-inside-documents"} if name in ALSO else set()
    assert set(report.kinds) == {kind, *extra}
    fault = report.faults[0]
    assert not report
    assert (fault.rank, fault.batch) == (0, 0)
    assert fault.consequence == KINDS[fault.kind].consequence


#: A boundary beside the border both joins documents and divides one.
ALSO = ("boundaries one token late", "a mask that hides some ids")
