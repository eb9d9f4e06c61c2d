"""What the pictures have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["BEFORE", "chart", "save"]

#: Styles of lines, in order.
BEFORE: tuple[dict[str, Any], ...] = (
    {"color": "#c44e52", "marker": "o"},
    {"color": "#4c72b0", "marker": "s"},
    {"color": "#55a868", "marker": "^"},
    {"color": "#8172b3", "marker": "D"},
    {"color": "#8c8c8c", "marker": "v"},
)


def chart(columns: int, width: float = 4.6) -> tuple[Any, Any]:
    """A figure and its axes, side by side, each so many inches wide."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(width * columns, 3.6), squeeze=False)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
    return figure, axes[0]


def save(figure: Any, path: Path) -> None:
    """As PNG, small."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
