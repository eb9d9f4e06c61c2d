"""The picture of README: ``python -m examples.clients.picture docs/clients.svg PATH_OF_NANOCHAT``.

It runs every client of this folder and `examples/elastic_torchrun.py`, and draws what they print:
the share of an epoch that each client loses or pads, as it is and with streampack; and the losses
of a job that is killed and goes on on other numbers of ranks. Minutes of two cores.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from examples.clients.__main__ import NEEDS, missing_for
from examples.clients.common import Corpus, Side, quiet, same, table
from examples.elastic_torchrun import BATCHES_PER_STEP, runs

BEFORE, OURS, GREY = "#c44536", "#2a6f97", "#bbbbbb"
LEGS = ("#2a6f97", "#e09f3e", "#6a994e")


def measured(nanochat: str) -> dict[str, dict[str, Side]]:
    """Both sides of every client."""
    found = {}
    for name in NEEDS:
        with tempfile.TemporaryDirectory() as folder:
            module = importlib.import_module(f"examples.clients.with_{name}")
            paths = [nanochat] if name == "nanochat" else []
            found[name] = module.sides(Corpus(Path(folder)), *paths)
            print(table(name, found[name]))
    return found


def draw_clients(axes: Any, clients: dict[str, dict[str, Side]]) -> None:
    """A bar per client: tokens that are lost, and slots that are padding."""
    labels, place = [], 0
    for client, sides in clients.items():
        for name, side in sides.items():
            lost = 100 * (1 - side.tokens / side.corpus)
            padding = 100 * (1 - side.tokens / side.slots)
            ours = name == "streampack"
            axes.barh(place, lost, color=OURS if ours else BEFORE)
            axes.barh(place, padding, left=lost, color=GREY)
            cut = f", {side.cut} documents cut" if side.cut else ""
            exact = "" if same(side.losses, side.resumed) else ", resumes otherwise"
            note = f" {lost:.1f} % lost, {padding:.1f} % padding{cut}{exact}"
            axes.text(lost + padding, place, note, va="center", fontsize=7)
            labels.append("streampack" if ours else f"{client}, {name}")
            place += 1
        place += 0.6  # type: ignore[assignment]
    ticks = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches[::2]]
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 120)
    axes.set_xticks(range(0, 101, 20))
    axes.set_title("Never trained on, and padding: % of an epoch", fontsize=10, loc="left")


def draw_legs(axes: Any, straight: dict[int, float], legs: dict[int, dict[int, float]]) -> None:
    """Losses by step."""
    axes.plot(straight.keys(), straight.values(), color=GREY, lw=6, label="4 ranks, never stopped")
    apart = 0.0
    for color, (ranks, losses) in zip(LEGS, legs.items(), strict=True):
        axes.plot(losses.keys(), losses.values(), color=color, lw=1.5, label=f"{ranks} ranks")
        axes.plot(max(losses), losses[max(losses)], "X" if max(losses) < max(straight) else ",",
                  color="black")  # fmt: skip
        apart = max(apart, *(abs(loss - straight[step]) for step, loss in losses.items()))
    axes.set_xlabel(f"step of {BATCHES_PER_STEP} batches (x: a rank killed)", fontsize=8)
    axes.set_title(f"Loss, largest difference {apart:.0e}", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)


def main(target: str, nanochat: str) -> None:
    """Run, and draw."""
    quiet()
    if missing := [words for name in NEEDS if (words := missing_for(name, nanochat))]:
        sys.exit("\n".join(missing))
    clients = measured(nanochat)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2))
    draw_clients(left, clients)
    draw_legs(right, *runs())
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
