"""A line that says how far a run is: batches, tokens, rate, waiting, and when it will end.

It is drawn by rich on a terminal and in a notebook. Elsewhere, or without rich, a line is written
to standard error now and then.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from streampack.run.estimation import Estimate
from streampack.run.rank import RankRun

DRAWN_S = 0.25  # between two drawings on a terminal
ESTIMATED_S = 10.0  # between two estimates, which cost a millisecond per lane
RATES_S = 60.0  # what rates are measured over

Item = TypeVar("Item")


class Moment(NamedTuple):
    """Where a rank's loop is.

    Attributes:
        at_s: seconds of any clock.
        batches: since the beginning of the run, of each rank.
        tokens: since the loader was made, of this rank; wait_s: the same for seconds waited.
        deviation: of a mixture, the largest difference between a source's share of the tokens and
            what its weight asks for, 0 to 1.
    """

    at_s: float
    batches: int
    tokens: int
    wait_s: float
    deviation: float | None = None


def progress_words(
    before: Moment, now: Moment, estimate: Estimate | None, *, world_size: int = 1
) -> str:
    """The line, with the rates between two moments; without an estimate no end is known."""
    seconds = max(now.at_s - before.at_s, 1e-9)
    each = " per rank" if world_size > 1 else ""
    share = _share(now, estimate)
    of = "" if estimate is None else f" of about {estimate.steps:,}"
    words = [
        f"batch {now.batches:,}{of}" + ("" if share is None else f" ({share:.0%})"),
        f"{_short(now.tokens)} tokens{each}",
        f"{_short((now.tokens - before.tokens) / seconds)} tokens/s{each}",
        f"{min((now.wait_s - before.wait_s) / seconds, 1):.1%} waiting",
    ]
    if now.deviation is not None:
        words.append(f"mixture within {now.deviation:.1%}")
    made = now.batches - before.batches
    if estimate is not None and made > 0:
        left_s = max(estimate.steps - now.batches, 0) * seconds / made
        words.append(f"{timedelta(seconds=round(left_s))} left")
    return " · ".join(words)


def with_progress(items: Iterable[Item], run: RankRun, *, every_s: float) -> Iterator[Item]:
    """The items that the loop takes from `run`, while a line says how far it is.

    `every_s` seconds lie between two lines where they are not drawn over one another.
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
    expected, asked_s = run.estimate_steps(), time.monotonic()
    moments = deque([look()])
    last = moments[0]

    def say() -> None:
        nonlocal expected, asked_s, last
        last = look()
        if last.at_s - asked_s >= ESTIMATED_S:
            expected, asked_s = run.estimate_steps(), last.at_s
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
    """How much of the run is done, if that can be said."""
    if estimate is None or not estimate.steps:
        return None
    return min(now.batches / estimate.steps, 1.0)


def _short(count: float) -> str:
    """A number of three digits: 40.2M."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5 or unit == "T":
            break
        count /= 1000
    return f"{count:.3g}{unit}" if count < 999.5 else f"{count:.0f}{unit}"


def _bar() -> Any:
    """A bar of rich with words beside it; None where nothing can be drawn."""
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
