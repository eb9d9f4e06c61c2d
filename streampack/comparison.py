"""Comparing strategies on the lengths of a corpus, and recommending one.

Steps:
  1. `measure`: every strategy plans all of the sample at once; figures and planning speed.
  2. `recommend`: the shortest row that keeps nearly all documents whole, then the strategy that
     wastes least there; where documents are longer than any row, one that repeats the least to
     keep their context.
  3. `window_curve`: the same packer through the look-ahead window of a real run, for windows of
     4, 8, 16, ... rows; `smallest_window` picks the one that is as good as planning everything.

Lengths in, figures out: no I/O, and nothing random but the seeds given. The one thing that differs
from run to run is how long planning took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.dry_run import stream_plan
from streampack.errors import ConfigError
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Composition,
    Concat,
    FirstFitDecreasing,
    MultiBucket,
    Packer,
    Pad,
    Seamless,
)
from streampack.window_config import WindowConfig

__all__ = [
    "CLOSE_POINTS",
    "Figures",
    "Recommendation",
    "bucket_lengths",
    "bucket_shares",
    "measure",
    "recommend",
    "smallest_window",
    "window_curve",
    "window_rows",
]

CLOSE_POINTS = 0.05  # percentage points of utilisation that count as equal to planning everything
CUT_LIMIT = 0.01  # share of documents that a good row length may cut
PADDING_LIMIT = 0.005  # share of the slots a good strategy may pad
REPETITION_LIMIT = 0.15  # share of the placed tokens that context may cost
STRANGERS = 0.6  # share of the documents per row below which buckets are worth naming
SMALLEST_WINDOW, LARGEST_WINDOW = 4, 1024  # rows


@dataclass(frozen=True, slots=True)
class Figures:
    """What one strategy makes of the whole sample.

    Attributes:
        packer: the strategy.
        seq_lens: row lengths it uses, in tokens, ascending.
        composition: of its plan over the whole sample.
        documents_per_second: how fast it planned that.
    """

    packer: Packer | MultiBucket
    seq_lens: tuple[int, ...]
    composition: Composition
    documents_per_second: float

    @property
    def name(self) -> str:
        """The packer's class."""
        return type(self.packer).__name__

    @property
    def good(self) -> bool:
        """Pads hardly more than the last row, which is as short as the sample happens to end."""
        figures = self.composition
        return figures.padding <= PADDING_LIMIT * figures.slots + self.seq_lens[-1]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A strategy and why.

    Attributes:
        figures: of the recommended strategy.
        reasons: sentences, the most important first.
    """

    figures: Figures
    reasons: tuple[str, ...]

    @property
    def packer(self) -> Packer:
        """The strategy; never one that only works offline."""
        assert not isinstance(self.figures.packer, MultiBucket)
        return self.figures.packer

    @property
    def code(self) -> str:
        """The packer as Python."""
        if isinstance(self.packer, Buckets):
            return f"Buckets(seq_lens={self.packer.seq_lens})"
        return f"{self.figures.name}(seq_len={self.packer.seq_lens[0]})"


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
    """Every strategy on documents of these lengths (N,), all known at once.

    Args:
        lengths: tokens per document, in order of arrival.
        seq_lens: row lengths in tokens; each is tried by itself, all together are the buckets.
        seed: of packers that shuffle.
        clock: seconds, to measure planning.

    Raises:
        ConfigError: no documents, no row length, or one that cannot be.
    """
    seq_lens = tuple(sorted(set(seq_lens)))
    if not len(lengths) or not seq_lens:
        raise ConfigError(
            f"There are {len(lengths)} documents and {len(seq_lens)} row lengths to compare.",
            "Without both there is nothing to plan.",
            "Check the source, and pass at least one row length.",
        )
    found = []
    kinds = (BestFitDecreasing, FirstFitDecreasing, Seamless, BestFitCrop, Concat, Pad)
    for seq_len in seq_lens:
        for kind in kinds:
            packer = kind(seq_len=seq_len)
            found.append(_timed(packer, (seq_len,), lengths, seed, clock))
    sizes = bucket_lengths(seq_lens)
    if len(sizes) > 1:
        buckets = Buckets(seq_lens=sizes).with_shares_of(lengths)
        found.append(_timed(buckets, sizes, lengths, seed, clock))
        found.append(_timed(MultiBucket(seq_lens=sizes), sizes, lengths, seed, clock))
    return found


def _timed(
    packer: Packer | MultiBucket,
    seq_lens: tuple[int, ...],
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
    return Figures(packer, seq_lens, plan.metrics(lengths), len(lengths) / max(min(seconds), 1e-9))


def bucket_shares(
    figures: Figures, lengths: NDArray[np.int64], *, seed: int = 0
) -> dict[int, float]:
    """Of each row length of a strategy, in tokens: the share of the slots in such rows."""
    plan = figures.packer.plan(lengths, final=True, seed=seed)
    total = max(int(plan.seq_len.sum(dtype=np.int64)), 1)
    return {
        size: float(plan.seq_len[plan.seq_len == size].sum(dtype=np.int64) / total)
        for size in figures.seq_lens
    }


# ---------------------------------------------------------------------- recommending


def recommend(lengths: NDArray[np.int64], figures: Sequence[Figures]) -> Recommendation:
    """The strategy for documents of these lengths (N,), from the figures of `measure`."""
    singles = sorted({f.seq_lens[0] for f in figures if len(f.seq_lens) == 1})
    longer = {size: float((lengths > size).mean()) for size in singles}
    enough = [size for size in singles if longer[size] <= CUT_LIMIT]
    if not enough:
        return _for_long(lengths, figures, singles[-1], longer[singles[-1]])
    share = 1 - longer[enough[0]]
    many = "All documents" if share == 1 else f"{_percent(share)} % of the documents"
    fits = f"{many} fit a row of {enough[0]:,} tokens"
    below = [size for size in singles if size < enough[0]]
    if below:
        fits += f"; rows of {below[-1]:,} would cut {_percent(longer[below[-1]])} %"
    elif len(singles) > 1:
        fits += ", so longer rows would keep hardly more of them whole"
    for size in enough:
        best = _of(figures, "BestFitDecreasing", size)
        if best.good:
            return Recommendation(best, (f"{fits}.", *_why_best_fit(best, enough[0], figures)))
    return _for_awkward(fits, figures, enough)


def _why_best_fit(best: Figures, shortest: int, figures: Sequence[Figures]) -> list[str]:
    size = best.seq_lens[0]
    reasons = []
    if size != shortest:
        padding = _of(figures, "BestFitDecreasing", shortest).composition.padding_ratio
        reasons.append(
            f"They leave gaps in rows of {shortest:,} ({_percent(padding)} % padding), and fill "
            f"rows of {size:,}."
        )
    concat = _of(figures, "Concat", size).composition
    reasons.append(
        f"Best fit loses no token and uses {_percent(best.composition.utilisation)} % of the "
        f"slots; Concat would cut {_percent(concat.truncation_ratio)} % of the documents and Pad "
        f"would use {_percent(_of(figures, 'Pad', size).composition.utilisation)} %."
    )
    buckets = next((f for f in figures if f.name == "Buckets"), best)
    kept = (
        buckets.composition.truncation_ratio <= best.composition.truncation_ratio + CUT_LIMIT / 10
    )
    apart = buckets.composition.concatenation_ratio / best.composition.concatenation_ratio
    if kept and apart <= STRANGERS:
        reasons.append(
            f"Where attention goes across a row, Buckets(seq_lens={buckets.seq_lens}) puts "
            f"{buckets.composition.concatenation_ratio:.1f} documents into one instead of "
            f"{best.composition.concatenation_ratio:.1f} and cuts "
            f"{_percent(buckets.composition.truncation_ratio)} %."
        )
    return reasons


def _for_long(
    lengths: NDArray[np.int64], figures: Sequence[Figures], size: int, longer: float
) -> Recommendation:
    """Documents are cut whatever is done; what counts is the context of their pieces."""
    share = float(lengths[lengths > size].sum() / lengths.sum())
    long = (
        f"{_percent(longer)} % of the documents, with {_percent(share)} % of the tokens, are "
        f"longer than the longest row tried ({size:,} tokens), so no strategy keeps them whole."
    )
    best, seamless = (_of(figures, name, size) for name in ("BestFitDecreasing", "Seamless"))
    gain = seamless.composition.mean_context / max(best.composition.mean_context, 1e-9) - 1
    repeated = seamless.composition.repetition_ratio
    lost = seamless.composition.dropped_ratio
    traded = (
        f"Seamless would repeat {_percent(repeated)} % of the tokens and drop {_percent(lost)} % "
        f"for {_percent(gain)} % more context per token"
    )
    cheap = repeated <= REPETITION_LIMIT and lost <= PADDING_LIMIT and seamless.good
    if share >= 0.5 and gain >= CUT_LIMIT and cheap:
        return Recommendation(
            seamless,
            (
                long,
                "Seamless lets the rows of a document overlap instead of ending in a short piece: "
                f"it repeats {_percent(repeated)} % of the tokens, drops {_percent(lost)} %, and a "
                "token sees "
                f"{seamless.composition.mean_context:,.0f} tokens of its document before it, with "
                f"best fit {best.composition.mean_context:,.0f}.",
            ),
        )
    if best.good:
        return Recommendation(
            best,
            (
                long,
                f"{traded}, which does not pay here; best fit cuts only these documents and uses "
                f"{_percent(best.composition.utilisation)} % of the slots.",
            ),
        )
    chosen = _for_awkward("", figures, [size])
    return Recommendation(chosen.figures, (long, *chosen.reasons))


def _for_awkward(fits: str, figures: Sequence[Figures], sizes: Sequence[int]) -> Recommendation:
    """Documents too coarse to fill rows whole: the strategy that cuts fewest to do so."""
    wasteful = _of(figures, "BestFitDecreasing", sizes[-1])
    named = [
        f
        for f in figures
        if f.name in ("Buckets", "Seamless", "Concat")
        and f.seq_lens[-1] in sizes
        and f.composition.dropped_ratio <= CUT_LIMIT / 10
    ]
    named = [f for f in named if f.good] or named
    least = min(named, key=lambda f: (f.composition.truncation_ratio, f.seq_lens[-1]))
    figure = least.composition
    gaps = (
        f"Kept whole they leave gaps: best fit pads "
        f"{_percent(wasteful.composition.padding_ratio)} % of rows of {sizes[-1]:,}."
    )
    fills = (
        f"{least.name} uses {_percent(figure.utilisation)} % and cuts the fewest documents of "
        f"those that fill their rows, {_percent(figure.truncation_ratio)} %."
    )
    return Recommendation(least, (*([f"{fits}."] if fits else []), gaps, fills))


def _of(figures: Sequence[Figures], name: str, size: int) -> Figures:
    return next(f for f in figures if f.name == name and f.seq_lens == (size,))


def _percent(share: float) -> str:
    """A share in percent with as many digits as tell something; never rounded up to 100."""
    percent = 100 * share
    digits = 1 if 1 <= abs(percent) < 99 else 2
    rounded = round(percent, digits)
    if rounded == 100 and share < 1:
        return "99.99"
    return f"{rounded:.{digits}f}".rstrip("0").rstrip(".")


# ---------------------------------------------------------------------- windows


def window_rows(lengths: NDArray[np.int64], longest: int) -> list[int]:
    """Windows to try, in rows of `longest` tokens: powers of two, up to one that holds it all."""
    windows = [SMALLEST_WINDOW]
    while windows[-1] * longest < lengths.sum() and windows[-1] < LARGEST_WINDOW:
        windows.append(2 * windows[-1])
    return windows


def window_curve(
    lengths: NDArray[np.int64], packer: Packer, windows: Sequence[int], *, seed: int = 0
) -> list[float]:
    """Utilisation behind a window of each size (rows of the packer's longest), batches of a row."""
    longest = packer.seq_lens[-1]
    return [
        stream_plan(
            lengths,
            packer,
            WindowConfig(window_tokens=rows * longest),
            batch_tokens=longest,
            seed=seed,
        )
        .metrics(lengths)
        .utilisation
        for rows in windows
    ]


def smallest_window(windows: Sequence[int], curve: Sequence[float], whole: float) -> int | None:
    """The smallest window from which on all are within 0.05 points of planning everything.

    Args:
        windows: rows, ascending; curve: the utilisation behind each.
        whole: the utilisation of planning everything.

    Returns:
        Rows, or None if not even the largest comes so close.
    """
    found = None
    for rows, utilisation in zip(reversed(windows), reversed(curve), strict=True):
        if 100 * (whole - utilisation) > CLOSE_POINTS:
            break
        found = rows
    return found
