"""The picture of a job: how alike documents side by side are, and documents in random order."""

from __future__ import annotations

import io

import numpy as np

from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.summary import sampled_cosines


def draw_similarity(job: CorpusOrder) -> bytes:
    """A PNG with both distributions; needs matplotlib, and no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    along, random = sampled_cosines(job)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bins = np.linspace(min(0.0, *along, *random), 1, 61).tolist()
    for values, name, colour in ((random, "random", "#5a5a5a"), (along, "side by side", "#1f6fb4")):
        if len(values):
            shares = np.full(len(values), 1 / len(values))
            label = f"{name}, mean {values.mean():.3f}"
            axes.hist(values, bins, weights=shares, alpha=0.6, label=label, color=colour)
            axes.legend()
    axes.set_xlabel("cosine of two documents, as embedded")
    axes.set_ylabel("share of pairs")
    figure.savefig(target := io.BytesIO(), format="png", dpi=120, metadata={"Software": None})
    return target.getvalue()
