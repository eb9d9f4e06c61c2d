"""Rows of documents with images, by tokens and patches: ``python -m benchmarks.image_rows``.

On sizes alone, since all of these plan by sizes. An image takes a token for 28 x 28 pixels and four
patches for a token, as for Qwen2-VL. Three made distributions: documents of one image each, of many
small ones, and texts of which every seventh has a huge one. Rows hold 8,192 tokens, and as many
patches as are in proportion in the corpus, so that both are scarce, or as the largest document has.

Beside `BestFitDecreasing` with `Capacity` in a window of the usual size, in order of arrival:
  - first fit over 8 open rows: a document goes into the earliest with room by both limits; where
    there is none, the fullest goes.
  - a knapsack over 128 samples (as Megatron-Energon's example): the longest that fits by both
    limits, until none does, row by row, until the samples are used up.
  - InternVL's rule (github.com/OpenGVLab/InternVL, dataset_packed.py): up to 100 open rows, most
    patches first; the first with room by both limits takes the document; a row goes when a limit
    is reached exactly, or when it is the first of more than 100.

"Fill" is the share of a completed row's tokens and of its patches in use; "planning" is the time of
a document in the windows' plans, the shortest of three passes. The second table has the patches of
the steps' greatest batches over the patches of their mean batches, all steps together (ranks in
step wait for these), without and with ``Balance("patches")``, for lanes of the library's own
windows, one for each rank, after the first windows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.measuring import measure_balance
from streampack.images.attachments import PATCHES
from streampack.limits.capacity import row_weights
from streampack.packing import Balance, BestFitDecreasing, Capacity
from streampack.window.config import WindowConfig

SEQ_LEN = 8192
RANKS = 64
SAMPLE = 4096  # documents
LEFT_OUT = 320  # first rows, while windows fill

#: Tokens and patches of documents (N,).
Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]


def image_tokens(
    rng: np.random.Generator, count: int, median: float, most: int
) -> NDArray[np.int64]:
    """(count,) tokens of images with lognormal sides around `median`, up to `most` pixels."""
    sides = np.clip(rng.lognormal(np.log(median), 0.4, (2, count)), 56, most)
    wide, high = np.round(sides / 28).astype(np.int64)
    return np.asarray(wide * high)


def texts(rng: np.random.Generator, count: int, median: float) -> NDArray[np.int64]:
    """(count,) tokens of texts."""
    return np.clip(rng.lognormal(np.log(median), 1.0, count), 8, 4000).astype(np.int64)


def one_each(count: int, seed: int) -> Sizes:
    """An image and a caption or some turns."""
    rng = np.random.default_rng(seed)
    images = image_tokens(rng, count, 700, 1800)
    return images + texts(rng, count, 120), 4 * images


def many_small(count: int, seed: int) -> Sizes:
    """Pages with 3 to 24 small images."""
    rng = np.random.default_rng(seed)
    many = rng.integers(3, 25, count)
    images = image_tokens(rng, int(many.sum()), 220, 450)
    images = np.add.reduceat(images, np.cumsum(many) - many)
    return images + texts(rng, count, 500), 4 * images


def few_huge(count: int, seed: int) -> Sizes:
    """Texts, of which every seventh has an image of 1,000 to 4,000 tokens."""
    rng = np.random.default_rng(seed)
    images = np.where(rng.random(count) < 1 / 7, rng.integers(1000, 4000, count), 0)
    return images + texts(rng, count, 500), 4 * images


KINDS: dict[str, Callable[[int, int], Sizes]] = {
    "one image each": one_each, "many small images": many_small, "a few huge images": few_huge,
}  # fmt: skip

#: Tokens and patches of completed rows, one after the other.
Rows = Iterator[tuple[int, int]]


def first_fit(sizes: Sizes, most: int) -> Rows:
    """Over 8 open rows."""
    rows: list[list[int]] = []
    for tokens, patches in zip(*(own.tolist() for own in sizes), strict=True):
        found = next((r for r in rows if r[0] + tokens <= SEQ_LEN and r[1] + patches <= most), None)
        if found is None:
            if len(rows) == 8:
                fullest = max(rows, key=lambda row: max(row[0] / SEQ_LEN, row[1] / most))
                rows.remove(fullest)
                yield fullest[0], fullest[1]
            found = [0, 0]
            rows.append(found)
        found[0] += tokens
        found[1] += patches


def knapsack(sizes: Sizes, most: int) -> Rows:
    """Over 128 samples."""
    for begin in range(0, len(sizes[0]) - 127, 128):
        part = slice(begin, begin + 128)
        waiting = sorted(zip(*(own[part].tolist() for own in sizes), strict=True), reverse=True)
        while waiting:
            row, rest = [0, 0], []
            for tokens, patches in waiting:
                if row[0] + tokens <= SEQ_LEN and row[1] + patches <= most:
                    row = [row[0] + tokens, row[1] + patches]
                else:
                    rest.append((tokens, patches))
            waiting = rest
            yield row[0], row[1]


def internvl(sizes: Sizes, most: int) -> Rows:
    """Up to 100 open rows, in descending order of patches."""
    rows: list[tuple[int, int]] = []
    for tokens, patches in zip(*(own.tolist() for own in sizes), strict=True):
        fits = (
            i for i, r in enumerate(rows) if r[0] + tokens <= SEQ_LEN and r[1] + patches <= most
        )
        found = next(fits, None)
        row = (tokens, patches)
        if found is not None:
            before = rows.pop(found)
            row = (before[0] + tokens, before[1] + patches)
        if SEQ_LEN in row[:1] or most in row[1:]:
            yield row
            continue
        at = next((i for i, r in enumerate(rows) if r[1] < row[1]), len(rows))
        rows.insert(at, row)
        if len(rows) > 100:
            yield rows.pop(0)


def within(most: int) -> BestFitDecreasing:
    """Return the packer of rows with at most `most` patches."""
    limits = (Capacity({"patches": most}),)
    return BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop", limits=limits)


def ours(sizes: Sizes, most: int) -> Rows:
    """All rows of a window of the usual size, except at its end."""
    packer = within(most)
    lengths, patches = sizes
    plan = stream_plan(
        lengths, packer, WindowConfig(), batch_tokens=SEQ_LEN, weights={"patches": patches}
    )
    steady = slice(0, plan.num_rows - 320)
    rows = zip(plan.row_fill()[steady], row_weights(plan, patches)[steady], strict=True)
    yield from ((int(tokens), int(own)) for tokens, own in rows)


def filled(draw: Callable[[int, int], Sizes], most: int, documents: int) -> list[str]:
    """Return the used share of tokens and patches in percent: ours, then the others'."""
    tokens, patches = draw(documents, 1)
    kept = (tokens <= SEQ_LEN) & (patches <= most)
    found = []
    for way in (ours, first_fit, knapsack, internvl):
        held = np.array([*way((tokens[kept], patches[kept]), most)], dtype=np.float64).mean(axis=0)
        found.append(f"{100 * held[0] / SEQ_LEN:.1f} / {100 * held[1] / most:.1f}")
    return found


def planning_us(draw: Callable[[int, int], Sizes], most: int) -> float:
    """Microseconds of a document in plans of a window of 320 rows."""
    tokens, patches = draw(20_000, 2)
    count = int(np.searchsorted(np.cumsum(tokens), 320 * SEQ_LEN))
    packer = within(most)
    lengths, weights = tokens[:count], {"patches": patches[:count]}
    times = []
    for _ in range(4):
        began = time.perf_counter()
        packer.plan(lengths, final=False, seed=0, weights=weights)
        times.append(time.perf_counter() - began)
    return 1e6 * min(times[1:]) / count


def capacity_of(draw: Callable[[int, int], Sizes]) -> int:
    """Patches of a row that has all its tokens and is as the corpus, or of the largest document."""
    tokens, patches = draw(100_000, 0)
    largest = int(patches[tokens <= SEQ_LEN].max())
    return max(round(SEQ_LEN * int(patches.sum()) / int(tokens.sum())), largest)


def lane_batches(
    draw: Callable[[int, int], Sizes],
    packer: BestFitDecreasing,
    rows: int,
    steps: int,
    lanes: int,
    field: str = PATCHES,
) -> NDArray[np.float64]:
    """Return the sum of a field, by default patches, of each batch: (lanes, steps)."""
    window = WindowConfig().resolve(packer, rows * SEQ_LEN)
    schedule = None
    if packer.choice:
        lengths, patches = draw(SAMPLE, 0)
        schedule = measure_balance(
            lengths, packer, window, batch_tokens=rows * SEQ_LEN, weights={field: patches}
        )
    mean, skip = float(draw(100_000, 0)[0].mean()), LEFT_OUT
    batches = np.empty((lanes, steps))
    for lane in range(lanes):
        lengths, patches = draw(int((rows * steps + skip + 700) * SEQ_LEN / mean), 1 + lane)
        plan = stream_plan(
            lengths, packer, window, batch_tokens=rows * SEQ_LEN, seed=lane,
            balance=schedule and schedule.of_lane(lane, lanes), weights={field: patches},
        )  # fmt: skip
        of_row = row_weights(plan, patches)[skip : skip + rows * steps]
        batches[lane] = of_row.reshape(steps, rows).sum(axis=1)
    return batches


def imbalances(
    draw: Callable[[int, int], Sizes], packer: BestFitDecreasing, rows: int, steps: int
) -> list[float]:
    """Return the patches of the greatest batch over a step's mean, for 8 and for 64 ranks."""
    batches, found = lane_batches(draw, packer, rows, steps, RANKS), []
    for ranks in (8, RANKS):
        each = batches.reshape(-1, ranks, steps)
        found.append(float(each.max(axis=1).sum() / each.mean(axis=1).sum()))
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    fills, levels = [], []
    for name, draw in KINDS.items():
        most = capacity_of(draw)
        cells = filled(draw, most, options.documents)
        fills.append([name, f"{most:,}", *cells, f"{planning_us(draw, most):.1f} us"])
        packer = within(most)
        balanced = replace(packer, choice=Balance("patches"))
        for rows in (1, 4):
            without = imbalances(draw, packer, rows, options.steps)
            with_it = imbalances(draw, balanced, rows, options.steps)
            cells = [f"{a:.2f} → {b:.2f}" for a, b in zip(without, with_it, strict=True)]
            levels.append([name, str(rows), *cells])
    head = ["documents", "patches of a row", "streampack", "first fit, 8 rows", "knapsack, 128"]
    print_table("Fill: tokens / patches, %", [*head, "InternVL's rule", "planning"], fills)
    print_table(
        "Patches of the greatest batch over the mean", ["documents", "rows", "8 ranks", "64 ranks"],
        levels,
    )  # fmt: skip


if __name__ == "__main__":
    main()
