"""Draw a picture from committed figures: ``python -m benchmarks.picture``.

    python -m benchmarks.picture [--out docs/throughput.svg]

It shows one table of docs/benchmarks/gpu.json, which `benchmarks.gpu` measures: tokens that a model
learns in a second, by how documents are put into rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
#: The measured layouts to draw, and their labels.
LABELS = {
    "a document per row, padded to 2,048": "one document per row,\npadded",
    "sorted by length in 50 batches, as many rows as fit": "sorted by length,\npadded",
    "packed by best fit, FlexAttention": "packed by streampack",
}
GREY, BLUE = "#9aa5b1", "#1f6f9f"


def draw(figures: dict[str, dict[str, dict[str, float]]], target: Path) -> None:
    """Draw a bar for each layout, as wide as a page of the site (690 pixels)."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "streampack"})
    rates = [figures["layouts"][name]["tokens_per_s"] for name in LABELS]
    figure, axes = plt.subplots(figsize=(7.2, 2.5))
    bars = axes.barh(list(LABELS.values()), rates, color=[GREY, GREY, BLUE], height=0.62)
    texts = [f"{rate / 1000:.0f},000 ({rate / rates[0]:.1f} x)" for rate in rates]
    axes.bar_label(bars, texts, padding=6, fontsize=12)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(rates))
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=12)
    axes.spines[:].set_visible(False)
    figure.suptitle("Tokens that a GPT-2 learns per second on an H200", fontsize=13)
    figure.tight_layout()
    figure.savefig(target, format="svg", metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture")
    parser.add_argument("--out", type=Path, default=DOCS / "throughput.svg")
    target = parser.parse_args(arguments).out
    draw(json.loads((DOCS / "benchmarks" / "gpu.json").read_text()), target)
    print(f"{target} drawn")


if __name__ == "__main__":
    main()
