"""One run of the recall experiment: a model learns from the rows of an arm and is measured."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.papers.model import SmallGPT, adamw, descend, label_losses
from benchmarks.papers.recall.documents import Kind, facts_corpus, groups_corpus
from benchmarks.papers.recall.measures import HeldOut, batches_of, measured, same_piece
from benchmarks.papers.recall.protocol import Arm, Preset
from streampack import PackedDataset, PackedLoader
from streampack.packing import PackingStats

__all__ = ["learn", "rows_of"]

WINDOW_TOKENS = 400_000  # more than is trained on, so that the window is never short of documents


def rows_of(arm: Arm, seed: int, preset: Preset) -> PackedDataset:
    """The arm's batches over a corpus of this seed, enough for all steps."""
    make = facts_corpus if arm.corpus == "facts" else groups_corpus
    documents = make(
        np.random.default_rng(seed), preset.steps * preset.batch_tokens + WINDOW_TOKENS
    )
    return batches_of(
        documents, arm.packer, arm.attention, preset.batch_tokens, order=arm.order, seed=seed
    )


def learn(arm: Arm, seed: int, preset: Preset, held_out: HeldOut) -> dict[str, Any]:
    """One run.

    Returns:
        A line of the file of results: the measures, the curve of the loss at answers (nats, means
        over several steps), and the composition of the rows.
    """
    began = time.process_time()
    torch.manual_seed(seed)
    model = SmallGPT(preset.model)
    optimizer = adamw(model)
    rows = PackingStats()
    losses: list[float] = []
    asked = seen = 0
    for step, batch in enumerate(PackedLoader(rows_of(arm, seed, preset))):
        if step == preset.steps:
            break
        left = (preset.steps - step) / (preset.falling * preset.steps)
        found = label_losses(model, batch)
        kind = batch.fields["kind"][:, 1:][batch.labels[:, 1:] != -100]
        loss = (found * torch.where(kind >= Kind.EVENT_CUT, preset.event_weight, 1.0)).mean()
        slope = min((step + 1) / preset.warmup_steps, left, 1)
        descend(model, optimizer, loss, slope * preset.learning_rate)
        losses.append(float(found[kind < Kind.EVENT_CUT].detach().mean()))
        rows += batch.composition
        own = batch.fields["kind"] == Kind.OWN
        asked += int(own.sum())
        seen += int((same_piece(batch) & own).sum())
    curve = np.array(losses).reshape(-1, preset.curve_every).mean(axis=1)
    return {
        "arm": arm.name,
        "seed": seed,
        "packer": arm.packer.describe(),
        "measures": measured(model, held_out, arm.corpus, arm.attention),
        "answerable": round(seen / asked, 4),
        "curve": [round(float(loss), 4) for loss in curve],
        "composition": asdict(rows),
        "cpu_s": round(time.process_time() - began, 1),
    }
