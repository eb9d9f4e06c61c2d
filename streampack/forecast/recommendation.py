"""Recommending a strategy from the figures of a comparison.

Steps:
  1. The shortest row that keeps nearly all documents whole and that best fit fills.
  2. Where best fit leaves gaps in every row, the cheaper of padding and cutting documents to fill
     the gaps, in any row that holds them; and a word on longer rows, if they would help much.
  3. Where documents are longer than any row, Seamless if it keeps their context for few repeated
     tokens, otherwise best fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.forecast.comparison import PADDING_LIMIT, Figures
from streampack.packing import BestFitDecreasing, Packer

CUT_LIMIT = 0.01  # share of documents that a good row length may cut
REPETITION_LIMIT = 0.15  # share of the placed tokens that context may cost
STRANGERS = 0.6  # share of the documents per row below which buckets are worth naming
COSTLY = 0.05  # price of a choice above which longer rows than those tried are looked at


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
        """The strategy."""
        return self.figures.packer

    @property
    def code(self) -> str:
        """The packer as Python."""
        sizes = self.packer.seq_lens
        rows = f"seq_len={sizes[0]}" if len(sizes) == 1 else f"seq_lens={sizes}"
        return f"{self.figures.name}({rows})"


def recommend(lengths: NDArray[np.int64], figures: Sequence[Figures]) -> Recommendation:
    """The strategy for documents of these lengths (N,), from the figures of `measure`."""
    singles = sorted({f.seq_lens[0] for f in figures if len(f.seq_lens) == 1})
    longer = {size: float((lengths > size).mean()) for size in singles}
    enough = [size for size in singles if longer[size] <= CUT_LIMIT]
    if not enough:
        return _for_long(lengths, figures, singles[-1], longer[singles[-1]])
    share = 1 - longer[enough[0]]
    many = "All documents" if share == 1 else f"{_percent(share)} % of the documents"
    plain = fits = f"{many} fit a row of {enough[0]:,} tokens"
    below = [size for size in singles if size < enough[0]]
    if below:
        fits += f"; rows of {below[-1]:,} would cut {_percent(longer[below[-1]])} %"
    elif len(singles) > 1:
        fits += ", so longer rows would keep hardly more of them whole"
    for size in enough:
        best = _of(figures, "BestFitDecreasing", size)
        if best.good:
            return Recommendation(best, (f"{fits}.", *_why_best_fit(best, enough[0], figures)))
    return _for_awkward(lengths, plain, figures, enough)


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
    """Documents are cut in any case; what counts is the context of their pieces."""
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
    chosen = _for_awkward(lengths, "", figures, [size])
    return Recommendation(chosen.figures, (long, *chosen.reasons))


def _for_awkward(
    lengths: NDArray[np.int64], fits: str, figures: Sequence[Figures], sizes: Sequence[int]
) -> Recommendation:
    """Whole documents leave gaps in rows: pad these, or cut documents to fill them."""
    named = [
        f
        for f in figures
        if f.name in ("BestFitDecreasing", "Buckets", "Seamless", "Concat")
        and f.seq_lens[-1] in sizes
        and f.composition.dropped_ratio <= CUT_LIMIT / 10
    ]
    chosen = min(named, key=lambda f: (f.price, f.seq_lens[-1]))
    cutting = min(
        (f for f in named if f.name != "BestFitDecreasing"),
        key=lambda f: (f.composition.truncation_ratio, f.seq_lens[-1]),
    )
    whole = [_of(figures, "BestFitDecreasing", size) for size in sizes]
    pads = ", ".join(
        f"{_percent(f.composition.padding_ratio)} % of rows of {f.seq_lens[0]:,}" for f in whole
    )
    reasons = [f"{fits}."] if fits else []
    reasons.append(f"Kept whole they leave gaps: best fit pads {pads}.")
    figure = (cutting if chosen in whole else chosen).composition
    if chosen in whole:
        reasons.append(
            f"Padding {_percent(chosen.composition.padding_ratio)} % costs less than filling the "
            f"gaps: {cutting.name} would cut {_percent(figure.truncation_ratio)} % of the "
            "documents."
        )
    else:
        reasons.append(
            f"{chosen.name} uses {_percent(figure.utilisation)} % and cuts "
            f"{_percent(figure.truncation_ratio)} % of the documents, which costs less than the "
            "padding."
        )
    return Recommendation(chosen, (*reasons, *_longer_rows(lengths, chosen, sizes[-1])))


def _longer_rows(lengths: NDArray[np.int64], chosen: Figures, longest: int) -> list[str]:
    """If the choice is costly: a word on the first longer row that halves its price."""
    if chosen.price <= COSTLY:
        return []
    for size in (2 * longest, 4 * longest, 8 * longest):
        if size >= 1 << 31 or 10 * size > lengths.sum():  # too few rows to say anything
            break
        packer = BestFitDecreasing(seq_len=size)
        figure = packer.plan(lengths, final=True, seed=0).metrics(lengths)
        if 2 * Figures(packer, figure, 0.0).price <= chosen.price:
            return [
                f"Where the model takes longer rows, compare with seq_len {size} too: best fit "
                f"would use {_percent(figure.utilisation)} % of them and cut "
                f"{_percent(figure.truncation_ratio)} % of the documents."
            ]
    return []


def _of(figures: Sequence[Figures], name: str, size: int) -> Figures:
    return next(f for f in figures if f.name == name and f.seq_lens == (size,))


def _percent(share: float) -> str:
    """A share in percent with as many digits as are useful; never rounded up to 100."""
    percent = 100 * share
    digits = 1 if 1 <= abs(percent) < 99 else 2
    rounded = round(percent, digits)
    if rounded == 100 and share < 1:
        return "99.99"
    return f"{rounded:.{digits}f}".rstrip("0").rstrip(".")
