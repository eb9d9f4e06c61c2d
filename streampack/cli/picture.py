"""The picture of `streampack compare`: lengths, bucket shares, utilisation against the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError

_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#1f6fb4", "#d9711c", "#2a9457", "#8a5ab5", "#5a5a5a"
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
    *,
    seq_lens: Sequence[int],
    shares: dict[int, float],
    windows: Sequence[int],
    row_tokens: int,
    curves: Sequence[Curve],
    window: int | None,
    title: str,
) -> None:
    """Write the picture.

    Args:
        out: where to; see `check_target`.
        lengths: (N,) int64, tokens per document.
        seq_lens: row lengths compared, in tokens.
        shares: share of the slots that rows of each bucket have.
        windows: sizes tried, in rows of `row_tokens`.
        curves: of the strategies, the recommended one first.
        window: the one recommended, in rows.
        title: above all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    # Two parts, so that the legend beside the lower one takes no room from the upper.
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    upper, lower = parts
    left, right = upper.subplots(1, 2, width_ratios=(2, 1))
    below = lower.subplots()
    _histogram(left, lengths, seq_lens)
    _buckets(right, shares)
    _windows(below, windows, row_tokens, curves, window)
    for axes in (left, right, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    figure.savefig(out, dpi=120)


def _histogram(axes: Any, lengths: NDArray[np.int64], seq_lens: Sequence[int]) -> None:
    high = 1.1 * max(int(lengths.max()), *seq_lens)
    low = min(0.95 * max(int(lengths.min()), 1), high / 100)  # two powers of ten have labels
    edges = np.geomspace(low, high, 61)
    documents = np.histogram(lengths, edges)[0] / len(lengths) * 100
    tokens = np.histogram(lengths, edges, weights=lengths)[0] / lengths.sum() * 100
    axes.stairs(documents, edges, fill=True, color=_BLUE, alpha=0.55, label="of the documents")
    axes.stairs(tokens, edges, color=_ORANGE, linewidth=1.8, label="of the tokens")
    axes.set_xscale("log")
    top = 1.3 * max(documents.max(), tokens.max())
    axes.set_ylim(0, top)
    for i, size in enumerate(seq_lens):
        label = "" if i else "rows compared"
        axes.axvline(size, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), label=label)
        axes.annotate(
            f"{size:,}", (size, top), xytext=(-3, -3), textcoords="offset points", rotation=90,
            ha="right", va="top", color=_GREY, fontsize=9,
        )  # fmt: skip
    axes.set(
        xlabel="tokens per document (log scale)",
        ylabel="share in each bin, %",
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_title("Document lengths", loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.99), ncols=3, frameon=False, borderpad=0)


def _buckets(axes: Any, shares: dict[int, float]) -> None:
    axes.set_title("Rows of each bucket", loc="left")
    if not shares:  # rows too short to have buckets
        axes.set_axis_off()
        return
    names = [f"{size:,}" for size in shares]
    values = [100 * share for share in shares.values()]
    bars = axes.bar(names, values, color=_BLUE, alpha=0.75, width=0.65)
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.set_ylim(0, max(values) * 1.15)
    axes.set(
        xlabel="row length, tokens",
        ylabel="share of all slots, %",
    )


def _windows(
    axes: Any, windows: Sequence[int], row_tokens: int, curves: Sequence[Curve], window: int | None
) -> None:
    colours = (_BLUE, _ORANGE, _GREEN, _PURPLE)
    markers = ("o", "s", "^", "D")
    for i, (curve, colour, marker) in enumerate(zip(curves, colours, markers, strict=False)):
        axes.plot(
            windows, [100 * u for u in curve.utilisation], color=colour, marker=marker,
            markersize=7 if i == 0 else 5, linewidth=2.4 if i == 0 else 1.4, label=curve.name,
            zorder=2 + i,  # thin lines stay visible on the thick one
        )  # fmt: skip
    best = curves[0]
    axes.axhline(
        100 * best.whole, color=_BLUE, linestyle="--", linewidth=1.2,
        label=f"{best.name},\nall planned at once",
    )  # fmt: skip
    if window is not None:
        at = 100 * best.utilisation[list(windows).index(window)]
        axes.axvline(window, color=_GREY, linewidth=1, linestyle=":", zorder=1)
        axes.plot(
            [window], [at], marker="o", markersize=15, fillstyle="none", color="black",
            linestyle="none", label=f"smallest window within\n0.05 points of that: {window} rows",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(windows), [f"{rows:,}" for rows in windows])
    axes.minorticks_off()
    axes.margins(y=0.12)
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set(
        xlabel=f"window, rows of {row_tokens:,} tokens",
        ylabel="slots that hold tokens, %",
    )
    axes.set_title("Utilisation with a look-ahead window", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, labelspacing=0.9)
