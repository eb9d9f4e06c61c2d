"""Learnt tokens per second of every arm, on three profiles of lengths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.proof.model import PEAKS, Step, Trainer
from benchmarks.proof.rows import ARMS, Arm, Count, on
from benchmarks.proof.texts import Corpus, Profile
from streampack.watching.stalls import Stalls

__all__ = ["speeds"]


def speeds(
    trainer: Trainer, profile: Profile, corpus: Corpus, seconds: float, rounds: int
) -> dict[str, Any]:
    """Run the arms in turn, so many seconds a round, and return a row of figures for each."""
    running: dict[str, tuple[Iterator[Step], Count]] = {}
    found: dict[str, Any] = {}
    for name, arm in ARMS.items():
        try:
            running[name] = opened(trainer, arm, profile, corpus)
        except ImportError as error:
            found[name] = {"missing": str(error)}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, (steps, _count) in running.items():
            runs[name].append(timed(trainer, steps, seconds))
    for name, (steps, count) in running.items():
        steps.close()  # type: ignore[attr-defined]
        found[name] = {
            key: statistics.median(run[key] for run in runs[name]) for key in runs[name][0]
        }
        found[name]["lost"] = count.lost / count.tokens if count.tokens else 0.0
        found[name]["spread"] = max(r["learnt_per_s"] for r in runs[name]) / min(
            r["learnt_per_s"] for r in runs[name]
        )
    return found


def opened(
    trainer: Trainer, arm: Arm, profile: Profile, corpus: Corpus
) -> tuple[Iterator[Step], Count]:
    """An arm with its first steps done."""
    count = Count()
    steps = on(trainer.device, arm(trainer.size, profile.seq_len, corpus, count))
    for _ in range(3):
        trainer.learn(next(steps))
    trainer.wait()
    return steps, count


def timed(trainer: Trainer, steps: Iterator[Step], seconds: float) -> dict[str, float]:
    """Rates of steps for so many seconds, and the share in which the device waited for a batch."""
    stalls = Stalls()
    trainer.wait()
    began = time.perf_counter()
    learnt = operations = count = 0.0
    while time.perf_counter() - began < seconds or not count:
        asked = time.perf_counter()
        stalls.begin()
        step = next(steps)
        stalls.end(time.perf_counter() - asked)
        trainer.learn(step)
        learnt, operations, count = learnt + step.learnt, operations + step.operations, count + 1
    trainer.wait()
    taken = time.perf_counter() - began
    stalls.collect()
    device = torch.cuda.get_device_name() if trainer.device == "cuda" else ""
    peak = next((rate for name, rate in PEAKS.items() if name in device), float("nan"))
    return {
        "learnt_per_s": learnt / taken,
        "used": learnt / count / trainer.size.slots,
        "step_ms": 1000 * taken / count,
        "mfu": operations / taken / peak,
        "waits": stalls.exposed_s / taken,
    }
