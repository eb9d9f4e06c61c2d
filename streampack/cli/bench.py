"""`streampack bench`, which measures how fast a corpus loads on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import streampack  # imports its names on first use, because torch takes a second
from streampack._jit import compiled_at_once
from streampack.cli.options import (
    AnyCorpus,
    AsJson,
    Conversations,
    EndToken,
    Integers,
    LossMask,
    TextField,
    TextTokenizer,
    TokensField,
    dataset_of,
    packed_by,
    say,
    target_at,
)
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.watching.figures import RankWaits

ROOM = 1.25  # shortest step, in batch times, at which a loop does not wait


@compiled_at_once()
def bench(
    source: AnyCorpus,
    seq_len: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per row; 2048, or as a PackedDataset has."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Rows per batch; 8, or as a PackedDataset has."),
    ] = None,
    tokenizer: TextTokenizer = None,
    text: TextField = None,
    tokens: TokensField = None,
    loss_mask: LossMask = None,
    chat: Conversations = False,
    dtype: Integers = None,
    eos_id: EndToken = None,
    workers: Annotated[
        list[str], typer.Option(metavar="N,...", help="Numbers of worker processes.")
    ] = ["0,1,2"],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.01, help="Time of each measurement.")] = 3.0,
    step_ms: Annotated[
        float, typer.Option(min=0.0, help="Time of a training step; 0 takes batches at full speed.")
    ] = 0.0,
    step: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Your training step, a function of a batch."),
    ] = None,
    headspace: Annotated[
        bool,
        typer.Option("--headspace", help="Compare with batches that lie ready: a perfect loader."),
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each kind for --headspace.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure the rate of batches from your corpus for several numbers of workers.

    There is one rank: the loop takes a batch, makes its fields, and takes the next one. With
    --step-ms it sleeps after each batch, to stand in for a device that computes; with --step it
    calls your function.
    """
    console = Console(quiet=as_json, stderr=True)
    use, asked = _step_of(step, step_ms / 1000, needed=headspace), _numbers(workers)
    with console.status("opening"):
        dataset = dataset_of(
            source, tokenizer, eos_id, seq_len, text=text, tokens=tokens,
            dtype=dtype, loss_mask=loss_mask, chat=chat,
        )  # fmt: skip
        dataset = packed_by(dataset, dataset.plan.config.packer, batch_size, epochs=None)
        from streampack.lane.config import warm_up  # imports torch

        warm_up(dataset.plan.config)
    lanes = dataset.plan.config.lanes
    rates: list[Any] = []
    for number in dict.fromkeys(min(number, lanes) for number in asked):  # one lane per worker
        with console.status(f"{number} workers"):
            if headspace:
                rates.append(gain(dataset, number, steps=steps, use=use))
            else:
                rates.append(measure(dataset, number, seconds=seconds, use=use))
    layout = dataset.plan.config.source._slow_layout()
    if as_json:
        head = {"lanes": lanes, "step_s": step_ms / 1000, "layout": layout}
        print(json.dumps({**head, "runs": [rate.as_dict() for rate in rates]}))
        return
    if headspace:
        _say_gains(Console(), rates)
    else:
        _say(Console(), rates, step is not None or step_ms > 0, layout)
    if max(asked) > lanes:
        say(
            Console(),
            f"A corpus of this size has {lanes} lane{'s'[lanes == 1 :]}, so it uses no more "
            "workers than that.",
        )


def _numbers(given: list[str]) -> list[int]:
    """Return the numbers of workers in options such as "0,1,2"."""
    words = [word.strip() for option in given for word in option.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ConfigError(
            f"--workers must be numbers of processes, got {','.join(given)}.",
            "Use --workers 0,1,2, or one number.",
            setting="workers",
        )
    return [int(word) for word in words]


def _step_of(step: str | None, step_s: float, *, needed: bool) -> Callable[[Any], Any]:
    """Return the function that stands for a training step."""
    if needed and step is None and not step_s:
        raise ConfigError(
            "--headspace compares training steps, and there is none.",
            "Pass --step-ms with the time of yours, or --step FILE.py:NAME, a function of a batch.",
            setting="step_ms",
        )
    function = None if step is None else target_at(step)

    def use(batch: streampack.PackedBatch) -> None:
        batch.make_fields()
        if function is not None:
            function(batch)
        time.sleep(step_s)

    return use


@dataclass(frozen=True)
class Gain:
    """Times of a step with a number of workers: with the loader, and with batches that lie ready.

    Attributes:
        workers: number of worker processes.
        loader_s, ready_s: seconds of a step.
    """

    workers: int
    loader_s: float
    ready_s: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {**asdict(self), "gain": self.loader_s / self.ready_s}


def gain(
    dataset: streampack.PackedDataset, workers: int, *, steps: int, use: Callable[[Any], Any]
) -> Gain:
    """Measure steps with the loader, after a batch of each lane, and with ready batches."""
    loader = streampack.PackedLoader(dataset, num_workers=workers)
    headspace = streampack.Headspace(loader, steps=steps, warm_up=dataset.plan.config.lanes + 1)
    for batch in headspace:
        use(batch)
    return Gain(workers, headspace.loader_s, headspace.ready_s)


@dataclass(frozen=True)
class Rate:
    """Rates of a loader with a given number of workers.

    Attributes:
        first_batch_s: seconds from the start of the loop to its first batch, without compilation.
        tokens: tokens in the batches taken after every lane had delivered its first one.
        fetched_bytes: bytes fetched from remote stores for them.
        waits: number and waits of the steps with these batches, and occupancy of stages.
    """

    first_batch_s: float
    tokens: int
    fetched_bytes: int
    waits: RankWaits

    @property
    def tokens_per_s(self) -> float:
        """Number of tokens per second."""
        return self.tokens / self.waits.seconds

    @property
    def batches_per_s(self) -> float:
        """Number of batches per second."""
        return self.waits.steps / self.waits.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, `waits` included."""
        own = {name: value for name, value in vars(self).items() if name != "waits"}
        rates = {"tokens_per_s": self.tokens_per_s, "batches_per_s": self.batches_per_s}
        return {**own, **rates, **self.waits.as_dict()}


def measure(
    dataset: streampack.PackedDataset,
    workers: int,
    *,
    seconds: float,
    use: Callable[[Any], Any],
) -> Rate:
    """Take batches of an endless dataset for a time, after the first batch of each lane.

    Args:
        dataset: an endless dataset.
        workers: number of worker processes.
        seconds: time to measure; at least one batch is taken.
        use: called with each batch.
    """
    loader = streampack.PackedLoader(dataset, num_workers=workers)
    waits = streampack.Waits(loader)
    began = time.perf_counter()
    batches = iter(waits)
    next(batches).make_fields()
    first_s = time.perf_counter() - began
    for _ in range(dataset.plan.config.lanes - 1):  # the other lanes fill their windows
        next(batches).make_fields()
    before = loader.metrics()
    waits.report()
    began = time.perf_counter()
    while True:
        use(next(batches))
        if time.perf_counter() - began >= seconds:
            break
    found, after = waits.report(), loader.metrics()
    return Rate(
        first_batch_s=first_s,
        tokens=after.composition.placed - before.composition.placed,
        fetched_bytes=after.times.fetched_bytes - before.times.fetched_bytes,
        waits=found,
    )


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _say_gains(console: Console, gains: list[Gain]) -> None:
    table = _table("workers", "step with the loader", "with ready batches", "possible gain")
    for each in gains:
        times = (f"{1000 * seconds:.3g} ms" for seconds in (each.loader_s, each.ready_s))
        table.add_row(str(each.workers), *times, f"{each.loader_s / each.ready_s:.2f} x")
    console.print(table)


def _say(console: Console, rates: list[Rate], has_step: bool, layout: str) -> None:
    names = ("workers", "first batch", "batches/s", "tokens/s", *["loop waits"][:has_step])
    table = _table(*names)
    for rate in rates:
        table.add_row(
            str(rate.waits.workers),
            f"{rate.first_batch_s:.2f} s",
            f"{rate.batches_per_s:,.1f}",
            f"{rate.tokens_per_s:,.0f}",
            *[f"{rate.waits.waiting:.1%}"][:has_step],
        )
    console.print(table)
    best = max(rates, key=lambda rate: rate.tokens_per_s)
    waits, shares = best.waits, best.waits.occupancy
    size = best.tokens / max(waits.steps, 1)
    with_them = f"{waits.workers} worker{'s' if waits.workers != 1 else ''}"
    limit = waits.limit if has_step else waits.stage
    if not has_step:
        say(
            console,
            f"With {with_them} a loop that takes {1000 * ROOM / best.batches_per_s:.3g} ms or more "
            f"for a batch of {size:,.0f} tokens does not wait; --step-ms measures it with yours.",
        )
        shares["fields"] = 1 - waits.waiting  # the loop does nothing else
        if not waits.workers and shares["fields"] > shares[limit]:
            limit = "fields"
    named = ", ".join(
        f"{name} {share:.0%}" for name, share in shares.items() if round(share, 2) > 0
    )
    say(console, f"Share of the time in which each stage was at work: {named}.")
    if best.fetched_bytes:
        rate_mb = best.fetched_bytes / waits.seconds / 1e6
        each = best.fetched_bytes / max(best.tokens, 1)
        say(console, f"The store sent {each:.3g} bytes per token, {rate_mb:,.1f} MB/s.")
    head = f"{limit[:1].upper()}{limit[1:]} is the limit."
    if limit == "step":
        say(console, "The loop is the limit: it does not wait.")
    elif limit in ("storage", "decoding") and layout:
        say(console, f"{head} The layout may be the reason: {layout}.")
    else:
        say(console, head)
