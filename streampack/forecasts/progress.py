"""Progress of a run on one line: batches, tokens, rate, waiting, and time left.

rich draws the line on a terminal and in a notebook. Elsewhere, or without rich, lines go to
standard error at intervals.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from streampack.forecasts.estimation import Estimate, estimate_of
from streampack.run.rank import RankRun

DRAWN_S = 0.25  # interval of updates on a terminal
ESTIMATED_S = 10.0  # interval of estimates, which cost a millisecond per lane
RATES_S = 60.0  # interval over which rates are measured

Item = TypeVar("Item")


class Moment(NamedTuple):
    """Progress of a rank's loop at one time.

    Attributes:
        at_s: time in seconds, on any clock.
        batches: batches per rank since the beginning of the run.
        tokens: tokens of this rank since the loader was made.
        wait_s: seconds that this rank waited since the loader was made.
        deviation: largest difference in a mixture between a source's share of the tokens and its
            weight, 0 to 1.
    """

    at_s: float
    batches: int
    tokens: int
    wait_s: float
    deviation: float | None = None


def progress_words(
    before: Moment, now: Moment, estimate: Estimate | None, *, world_size: int = 1
) -> str:
    """Format the line, with rates between two moments; the time left needs an estimate."""
    seconds = max(now.at_s - before.at_s, 1e-9)
    each = " per rank" if world_size > 1 else ""
    share = _share(now, estimate)
    whole = "" if estimate is None else f" of about {estimate.steps:,}"
    words = [
        f"batch {now.batches:,}{whole}" + ("" if share is None else f" ({share:.0%})"),
        f"{_short(now.tokens)} tokens{each}",
        f"{_short((now.tokens - before.tokens) / seconds)} tokens/s{each}",
        f"{min((now.wait_s - before.wait_s) / seconds, 1):.1%} waiting",
    ]
    if now.deviation is not None:
        words.append(f"mixture within {now.deviation:.1%}")
    batches = now.batches - before.batches
    if estimate is not None and batches > 0:
        left_s = max(estimate.steps - now.batches, 0) * seconds / batches
        words.append(f"{timedelta(seconds=round(left_s))} left")
    return " · ".join(words)


def with_progress(items: Iterable[Item], run: RankRun, *, every_s: float) -> Iterator[Item]:
    """Yield the items that the loop takes from `run`, and show a progress line.

    `every_s` is the number of seconds between two lines where a line cannot be redrawn in place.
    """
    world_size = run.plan.ranks.world_size

    def look() -> Moment:
        metrics = run.metrics
        return Moment(
            time.monotonic(),
            run.steps_taken,
            metrics.composition.placed,
            metrics.wait_s,
            metrics.sources.largest_deviation(),
        )

    bar = _bar()
    pause_s = every_s if bar is None else DRAWN_S
    expected, asked_s = estimate_of(run), time.monotonic()
    moments = deque([look()])
    last = moments[0]

    def say() -> None:
        nonlocal expected, asked_s, last
        last = look()
        if last.at_s - asked_s >= ESTIMATED_S:
            expected, asked_s = estimate_of(run), last.at_s
        while len(moments) > 1 and last.at_s - moments[1].at_s >= RATES_S:
            moments.popleft()
        words = progress_words(moments[0], last, expected, world_size=world_size)
        moments.append(last)
        if bar is None:
            print(words, file=sys.stderr, flush=True)  # noqa: T201
        else:
            share = _share(last, expected)
            total = None if share is None else 1.0
            bar.update(bar.task_ids[0], description=words, completed=share or 0.0, total=total)
            bar.refresh()

    with bar or nullcontext():
        for item in items:
            if time.monotonic() - last.at_s >= pause_s:
                say()
            yield item
        say()


def _share(now: Moment, estimate: Estimate | None) -> float | None:
    """Return the fraction of the run that is done; None without an estimate."""
    if estimate is None or not estimate.steps:
        return None
    return min(now.batches / estimate.steps, 1.0)


def _short(count: float) -> str:
    """Format a count with three digits: 40.2M."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5 or unit == "T":
            break
        count /= 1000
    return f"{count:.3g}{unit}" if count < 999.5 else f"{count:.0f}{unit}"


def _bar() -> Any:
    """Return a rich progress bar with text beside it; None where nothing can be drawn."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    console = Console()
    if not (console.is_jupyter or sys.stdout.isatty()):
        return None

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    bar = Progress(*columns, console=console, auto_refresh=False)
    bar.add_task("", total=None)
    return bar
