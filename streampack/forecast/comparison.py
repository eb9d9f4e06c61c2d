"""Comparing strategies on the lengths of a corpus; `recommendation` names one.

Steps:
  1. `measure`: every strategy plans all of the sample at once; figures and planning speed.
  2. `window_curve`: the same packer with the look-ahead window of a real run, for windows of 4, 8,
     16, ... rows; `smallest_window` finds the smallest that is as good as planning everything.

Lengths in, figures out: no I/O, and all randomness comes from the seed. Only the time that planning
took differs from run to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.forecast.dry_run import stream_plan
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Composition,
    Concat,
    Decomposition,
    FirstFitDecreasing,
    Packer,
    Pad,
    Seamless,
)
from streampack.packing.buckets.decomposition import powers_of_two
from streampack.window.config import WindowConfig

CLOSE_POINTS = 0.05  # percentage points of utilisation that count as equal to planning everything
PADDING_LIMIT = 0.005  # share of the slots a good strategy may pad
CUT_PRICE = 0.5  # of cutting all documents, as a share of the slots: half of the computing
SMALLEST_WINDOW, LARGEST_WINDOW = 4, 1024  # rows


@dataclass(frozen=True, slots=True)
class Figures:
    """What one strategy makes of the whole sample.

    Attributes:
        packer: the strategy.
        composition: of its plan over the whole sample.
        documents_per_second: how fast it planned that.
    """

    packer: Packer
    composition: Composition
    documents_per_second: float

    @property
    def name(self) -> str:
        """The packer's class."""
        return type(self.packer).__name__

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Row lengths it uses, in tokens, ascending."""
        return self.packer.seq_lens

    @property
    def good(self) -> bool:
        """True if it pads little, the last row not counted, since a sample may end anywhere."""
        figures = self.composition
        return figures.padding <= PADDING_LIMIT * figures.slots + self.seq_lens[-1]

    @property
    def price(self) -> float:
        """Padding without the last row, lost tokens and cut documents, as a share of the slots."""
        figures = self.composition
        padding = max(figures.padding - self.seq_lens[-1], 0) / max(figures.slots, 1)
        return padding + figures.dropped_ratio + CUT_PRICE * figures.truncation_ratio


def bucket_lengths(seq_lens: Sequence[int]) -> tuple[int, ...]:
    """Row lengths for the bucket strategies: those given, or three up to the only one."""
    if len(seq_lens) > 1:
        return tuple(seq_lens)
    return tuple(sorted({max(seq_lens[0] // part, 2) for part in (4, 2, 1)}))


def measure(
    lengths: NDArray[np.int64],
    seq_lens: Sequence[int],
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Figures]:
    """Every strategy on documents of these lengths (N,), all known at once, in order of arrival.

    Each row length is tried alone, and all of them are the buckets; `clock` measures planning.

    Raises:
        ConfigError: there are no documents, no row lengths, or a row length that cannot be.
    """
    seq_lens = tuple(sorted(set(seq_lens)))
    if not len(lengths) or not seq_lens:
        raise ConfigError(
            f"There is no {'row length' if len(lengths) else 'document with a token in it'}.",
            "There is nothing to compare.",
            "Check the path and the field or column that is read, and pass a row length.",
        )
    kinds = (BestFitDecreasing, FirstFitDecreasing, Seamless, BestFitCrop, Concat, Pad)
    packers: list[Packer] = [kind(seq_len=seq_len) for seq_len in seq_lens for kind in kinds]
    sizes = bucket_lengths(seq_lens)
    if len(sizes) > 1:
        packers.append(Buckets(seq_lens=sizes).with_sample(lengths))
    if len(sizes) > 1 and powers_of_two(sizes):
        packers.append(Decomposition(seq_lens=sizes).with_sample(lengths))
    return [_timed(packer, lengths, seed, clock) for packer in packers]


def _timed(
    packer: Packer,
    lengths: NDArray[np.int64],
    seed: int,
    clock: Callable[[], float],
) -> Figures:
    plan = packer.plan(lengths, final=True, seed=seed)  # compiles what is not compiled yet
    seconds = []
    for _ in range(3):
        began = clock()
        packer.plan(lengths, final=True, seed=seed)
        seconds.append(clock() - began)
    return Figures(packer, plan.metrics(lengths), len(lengths) / max(min(seconds), 1e-9))


# ---------------------------------------------------------------------- windows


def window_rows(lengths: NDArray[np.int64], longest: int) -> list[int]:
    """Windows to try, in rows of `longest` tokens: powers of two, up to one that holds all."""
    windows = [SMALLEST_WINDOW]
    while windows[-1] * longest < lengths.sum() and windows[-1] < LARGEST_WINDOW:
        windows.append(2 * windows[-1])
    return windows


def window_curve(
    lengths: NDArray[np.int64], packer: Packer, windows: Sequence[int], *, seed: int = 0
) -> list[float]:
    """Utilisation with a window of each size (rows of the packer's longest), batches of a row."""
    longest = packer.seq_lens[-1]
    return [
        stream_plan(
            lengths,
            packer,
            WindowConfig(rows=rows),
            batch_tokens=longest,
            seed=seed,
        )
        .metrics(lengths)
        .utilisation
        for rows in windows
    ]


def smallest_window(windows: Sequence[int], curve: Sequence[float], whole: float) -> int | None:
    """The smallest window (rows) from which on all are within 0.05 points of planning everything.

    `curve` is the utilisation with each window, `whole` that of planning everything. None if not
    even the largest comes so close.
    """
    found = None
    for rows, utilisation in zip(reversed(windows), reversed(curve), strict=True):
        if 100 * (whole - utilisation) > CLOSE_POINTS:
            break
        found = rows
    return found
