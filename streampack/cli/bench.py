"""`streampack bench`, which measures how fast a corpus loads on this machine."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import streampack  # imports its names on first use, because torch takes a second
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
)

ROOM = 1.25  # shortest step, in batch times, at which a loop does not wait
#: Possible limits of a loader, with the lane times of each. The remaining time is spent on sending
#: batches or, without workers, on making their fields.
STAGES = {
    "reading": ("read_s",),
    "decoding": ("decode_s",),
    "tokenizing": ("prepare_s",),
    "ordering": ("order_s",),
    "packing": ("pack_s", "gather_s"),
}
ENOUGH = 0.05  # share of waiting up to which the loop itself is the limit


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
        list[int], typer.Option(min=0, metavar="N", help="Worker processes; may be repeated.")
    ] = [0, 1, 2],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.01, help="Time of each measurement.")] = 3.0,
    step_ms: Annotated[
        float, typer.Option(min=0.0, help="Time of a training step; 0 takes batches at full speed.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Measure the rate of batches from your corpus for several numbers of workers.

    There is one rank and no model: the loop takes a batch, makes its fields, and takes the next
    one. With --step-ms it sleeps after each batch, to stand in for a device that computes.
    """
    console = Console(quiet=as_json, stderr=True)
    with console.status("opening"):
        dataset = dataset_of(
            source, tokenizer, eos_id, seq_len, text=text, tokens=tokens,
            dtype=dtype, loss_mask=loss_mask, chat=chat,
        )  # fmt: skip
        dataset = packed_by(dataset, dataset.plan.config.packer, batch_size, epochs=None)
        from streampack.lane.config import warm_up  # imports torch

        warm_up(dataset.plan.config)
    lanes = dataset.plan.config.lanes
    rates = []
    for number in dict.fromkeys(min(number, lanes) for number in workers):  # one lane per worker
        with console.status(f"{number} workers"):
            rates.append(measure(dataset, number, seconds=seconds, step_s=step_ms / 1000))
    layout = dataset.plan.config.source.slow_layout()
    if as_json:
        head = {"lanes": lanes, "step_s": step_ms / 1000}
        runs = [{**asdict(rate), "shares": rate.shares} for rate in rates]
        print(json.dumps({**head, "layout": layout, "runs": runs}))
        return
    _say(Console(), rates, step_ms, layout)
    if max(workers) > lanes:
        say(
            Console(),
            f"A corpus of this size has {lanes} lane{'s'[lanes == 1 :]}, so it uses no more "
            "workers than that.",
        )


@dataclass(frozen=True)
class Rate:
    """Rates of a loader with a given number of workers.

    Attributes:
        workers: number of worker processes.
        first_batch_s: seconds from the start of the loop to its first batch, without compilation.
        batches: batches taken after every lane had delivered its first one.
        tokens: tokens in these batches.
        seconds: time in which they were taken.
        tokens_per_s: `tokens` / `seconds`.
        batches_per_s: `batches` / `seconds`.
        waiting: share of that time in which the loop waited for a batch, 0 to 1.
        fetched_bytes: bytes fetched from remote stores in that time.
        stage_s: seconds by stage, summed over lanes; see `LaneTimes`.
    """

    workers: int
    first_batch_s: float
    batches: int
    tokens: int
    seconds: float
    tokens_per_s: float
    batches_per_s: float
    waiting: float
    fetched_bytes: int
    stage_s: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the loading processes' time by activity; they sum to 1.

        The remaining time is "sending" with workers, which includes waiting for the loop, and
        "fields" without.
        """
        spent = {
            name: sum(self.stage_s[stage] for stage in stages) for name, stages in STAGES.items()
        }
        total = max(self.seconds * max(self.workers, 1), sum(spent.values()), 1e-9)
        remaining = total - sum(spent.values())
        spent["sending" if self.workers else "fields"] = remaining
        return {name: seconds / total for name, seconds in spent.items()}


def measure(
    dataset: streampack.PackedDataset, workers: int, *, seconds: float, step_s: float
) -> Rate:
    """Take batches of an endless dataset for a time, after the first batch of each lane.

    Args:
        dataset: an endless dataset.
        workers: number of worker processes.
        seconds: time to measure; at least one batch is taken.
        step_s: sleep after each batch.
    """
    loader = streampack.PackedLoader(dataset, num_workers=workers)
    began = time.perf_counter()
    batches = iter(loader)
    _use(next(batches), 0.0)
    first = time.perf_counter() - began
    for _ in range(dataset.plan.config.lanes - 1):  # the other lanes fill their windows
        _use(next(batches), 0.0)
    before, began = loader.metrics(), time.perf_counter()
    while True:
        _use(next(batches), step_s)
        took = time.perf_counter() - began
        if took >= seconds:
            break
    after = loader.metrics()
    count = after.batches - before.batches
    tokens = after.composition.placed - before.composition.placed
    took = max(took, 1e-9)
    return Rate(
        workers=workers,
        first_batch_s=first,
        batches=count,
        tokens=tokens,
        seconds=took,
        tokens_per_s=tokens / took,
        batches_per_s=count / took,
        waiting=min((after.wait_s - before.wait_s) / took, 1.0),
        fetched_bytes=after.times.fetched_bytes - before.times.fetched_bytes,
        stage_s={
            name: spent
            for name, spent in asdict(after.times - before.times).items()
            if name.endswith("_s")
        },
    )


def _use(batch: streampack.PackedBatch, step_s: float) -> None:
    batch.make_fields()
    if step_s:
        time.sleep(step_s)


def _say(console: Console, rates: list[Rate], step_ms: float, layout: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name in ("workers", "first batch", "batches/s", "tokens/s", *["loop waits"][: step_ms > 0]):
        table.add_column(name, justify="right", no_wrap=True)
    for measured in rates:
        table.add_row(
            str(measured.workers),
            f"{measured.first_batch_s:.2f} s",
            f"{measured.batches_per_s:,.1f}",
            f"{measured.tokens_per_s:,.0f}",
            *[f"{measured.waiting:.1%}"][: step_ms > 0],
        )
    console.print(table)
    best = max(rates, key=lambda rate: rate.tokens_per_s)
    size = best.tokens / max(best.batches, 1)
    with_them = f"{best.workers} worker{'s' if best.workers != 1 else ''}"
    if not step_ms:
        say(
            console,
            f"With {with_them} a loop that takes {1000 * ROOM / best.batches_per_s:.3g} ms or more "
            f"for a batch of {size:,.0f} tokens does not wait; --step-ms measures it with yours.",
        )
    shares = sorted(best.shares.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    say(console, f"Of the time in which batches are made: {named}.")
    limit = shares[0][0]
    if best.fetched_bytes:
        rate = best.fetched_bytes / best.seconds / 1e6
        each = best.fetched_bytes / max(best.tokens, 1)
        say(console, f"The store sent {each:.3g} bytes per token, {rate:,.1f} MB/s.")
        if limit == "reading":
            limit = "the store"
    head = f"{limit[:1].upper()}{limit[1:]} is the limit."
    if step_ms and best.waiting < ENOUGH:
        say(console, "The loop is the limit: it does not wait.")
    elif limit in ("reading", "the store", "decoding") and layout:
        say(console, f"{head} The layout may be the reason: {layout}.")
    else:
        say(console, head)
