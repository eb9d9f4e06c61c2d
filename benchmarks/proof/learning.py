"""Validation loss after equal seconds of the card, by how rows are made.

Twice: with more text than the seconds take, and with so little that rows without loss read it five
times. Each held-out document is scored alone and whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.model import Step, Trainer, step_of, upload
from benchmarks.proof.rows import Arm, Count, apart, concatenated, crop, on, row
from benchmarks.proof.texts import Corpus

__all__ = ["ARMS", "arm_steps", "learning", "validation"]

ARMS: dict[str, Arm] = {
    "streampack: best fit, documents apart": apart,
    "best-fit crop (nanochat)": crop,
    "concatenated and cut": concatenated,
}


def learning(
    trainer: Trainer, steps: Iterator[Step], held_out: list[Step], seconds: float, seed: int
) -> dict[str, float]:
    """Learn from new weights for so many seconds, and score the held-out documents.

    The rate of learning rises for a twentieth of the time, and falls to a tenth over its last
    half.
    """
    trainer.restart(seed)
    steps = chain([next(steps)], steps)  # a loader's start is no part of the seconds
    trainer.wait()
    began, learnt, count = time.perf_counter(), 0, 0
    while (share := (time.perf_counter() - began) / seconds) < 1 or not count:
        step = next(steps)
        fall = 1 - 0.9 * max(0.0, (share - 0.5) / 0.5)
        trainer.learn(step, 1e-3 * min(share / 0.05 + 0.01, 1.0) * fall)
        learnt, count = learnt + step.learnt, count + 1
    trainer.wait()
    by_document = np.array([loss for step in held_out for loss in losses(trainer, step)])
    means = by_document[:, 0] / by_document[:, 1]
    return {
        "per_document": float(means.mean()),
        "per_token": float(by_document[:, 0].sum() / by_document[:, 1].sum()),
        "steps": count,
        "learnt": learnt,
    }


def losses(trainer: Trainer, step: Step) -> list[tuple[float, int]]:
    """The summed loss and the scored tokens of each document in a step."""
    every = trainer.losses(step).double().cpu().numpy()
    learnt = (step.labels != -100).cpu().numpy()
    ends = step.cu_seqlens.cpu().numpy()
    found = []
    for low, high in pairwise(ends):
        if learnt[low:high].any():
            found.append((float(every[low:high].sum()), int(learnt[low:high].sum())))
    return found


def validation(trainer: Trainer, documents: list[NDArray[np.int64]], seq_len: int) -> list[Step]:
    """Steps of whole documents, each a segment of its own."""
    steps: list[Step] = []
    rows: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    room = trainer.size.slots
    for one in documents:
        if len(one) > room:
            steps.append(step_of(trainer.size, rows, seq_len))
            rows, room = [], trainer.size.slots
        rows.append(row(one))
        room -= len(one)
    return [upload(step, trainer.device) for step in (*steps, step_of(trainer.size, rows, seq_len))]


def arm_steps(
    name: str, trainer: Trainer, seq_len: int, corpus: Corpus, seed: int
) -> tuple[Iterator[Step], Count]:
    """The steps of an arm whose order is the seed's."""
    count = Count()
    order = np.random.default_rng(seed).permutation(len(corpus.ids))
    drawn = corpus._replace(ids=[corpus.ids[i] for i in order])
    steps = on(trainer.device, ARMS[name](trainer.size, seq_len, drawn, count))
    return steps, count
