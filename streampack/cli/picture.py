"""The picture of `streampack compare`: lengths, bucket shares, utilisation against the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.forecast.comparison import Figures
from streampack.forecast.recommendation import Recommendation

_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Curve:
    """Utilisation of one strategy.

    Attributes:
        name: of the strategy.
        utilisation: after a window of each size tried, as shares.
        whole: of planning everything at once.
    """

    name: str
    utilisation: list[float]
    whole: float


def check_target(out: Path) -> None:
    """Refuse what cannot be drawn, before any work is done.

    Raises:
        ConfigError: matplotlib is missing, the format is unknown, or there is no such folder.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"The picture needs {error.name}, which is not installed.",
            "Nothing was compared.",
            'Run `pip install "streampack[cli]"`.',
        ) from error
    if out.suffix.lower() not in _FORMATS or not out.absolute().parent.is_dir() or out.is_dir():
        raise ConfigError(
            f"The picture cannot be written to {out}.",
            "Nothing was compared.",
            f"Name a file in a folder that exists, ending in {', '.join(_FORMATS)}.",
        )


def draw(
    out: Path,
    lengths: NDArray[np.int64],
    figures: Sequence[Figures],
    found: Recommendation,
    *,
    windows: Sequence[int],
    curves: Sequence[Curve],
    window: int | None,
) -> None:
    """Write the picture.

    Args:
        out: where to; see `check_target`.
        lengths: (N,) int64, tokens per document.
        figures: of all strategies; found: the recommended one.
        windows: sizes tried, in its longest rows; window: the one recommended.
        curves: of the strategies, the recommended one first.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(12, 8), layout="constrained")
    count, tokens = len(lengths), int(lengths.sum())
    picture.suptitle(f"{count:,} documents, {tokens:,} tokens: {found.code}", fontsize=14)
    places: Any = [["lengths", "buckets"], ["windows", "windows"]]
    axes = picture.subplot_mosaic(places, width_ratios=(2, 1))
    _histogram(axes["lengths"], lengths, sorted({size for f in figures for size in f.seq_lens}))
    _buckets(axes["buckets"], next((f.packer for f in figures if f.name == "Buckets"), None))
    _windows(axes["windows"], windows, curves, window)
    axes["windows"].set_xlabel(f"window, rows of {found.packer.seq_lens[-1]:,} tokens")
    for each in axes.values():
        each.spines[["top", "right"]].set_visible(False)
    picture.savefig(out, dpi=120)


def _histogram(axes: Any, lengths: NDArray[np.int64], seq_lens: Sequence[int]) -> None:
    high = 1.1 * max(int(lengths.max()), *seq_lens)
    low = min(0.95 * max(int(lengths.min()), 1), high / 100)  # two powers of ten have labels
    edges = np.geomspace(low, high, 61)
    documents = np.histogram(lengths, edges)[0] / len(lengths) * 100
    tokens = np.histogram(lengths, edges, weights=lengths)[0] / lengths.sum() * 100
    axes.stairs(documents, edges, fill=True, alpha=0.55, label="of the documents")
    axes.stairs(tokens, edges, linewidth=1.8, label="of the tokens")
    for size in seq_lens:
        axes.axvline(size, color="grey", linewidth=1, linestyle="--")
    axes.set(
        title="Document lengths, and row lengths compared",
        xscale="log",
        xlabel="tokens per document (log scale)",
        ylabel="share in each bin, %",
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)


def _buckets(axes: Any, packer: Any) -> None:
    axes.set_title("Rows of each bucket")
    if packer is None:  # rows too short to have any
        axes.set_axis_off()
        return
    shares = [100 * share for share in packer.shares]
    bars = axes.bar([f"{size:,}" for size in packer.seq_lens], shares, alpha=0.75)
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.set(xlabel="row length, tokens", ylabel="share of all slots, %")


def _windows(
    axes: Any, windows: Sequence[int], curves: Sequence[Curve], window: int | None
) -> None:
    for curve in curves:
        axes.plot(windows, [100 * u for u in curve.utilisation], marker="o", label=curve.name)
    best = curves[0]
    label = f"{best.name}, all planned at once"
    axes.axhline(100 * best.whole, color="C0", linestyle="--", label=label)
    if window is not None:
        label = f"smallest window within 0.05 points of that: {window} rows"
        axes.axvline(window, color="grey", linestyle=":", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(windows), [f"{rows:,}" for rows in windows])
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.grid(axis="y", alpha=0.3)
    axes.set(title="Utilisation with a look-ahead window", ylabel="slots that hold tokens, %")
    axes.legend(loc="lower right", frameon=False)
