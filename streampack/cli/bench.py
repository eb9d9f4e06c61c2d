"""`streampack bench`: how fast a corpus loads on this machine."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import streampack  # whose names are imported when they are used: torch takes a second
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

ROOM = 1.25  # of a step over what a batch takes, so that the loop does not wait
#: What limits a loader, by the times of lanes. The rest of the time is that of sending batches, or,
#: without workers, of making their fields.
STAGES = {
    "reading": ("read_s",),
    "decoding": ("decode_s",),
    "tokenizing": ("prepare_s",),
    "ordering": ("order_s",),
    "packing": ("pack_s", "gather_s"),
}
ENOUGH = 0.05  # of the time, in which a loop may wait and still be the limit


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
    seconds: Annotated[float, typer.Option(min=0.01, help="To measure each of them for.")] = 3.0,
    step_ms: Annotated[
        float, typer.Option(min=0.0, help="Of your loop per batch; 0 takes batches at full speed.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Load your corpus with some numbers of workers, and say at what rate batches come.

    One rank, no model: a batch is taken, its fields are made, and the next one is taken. With
    --step-ms the loop sleeps that long for each, as a device that computes would let it.
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
    found = []
    for number in dict.fromkeys(min(number, lanes) for number in workers):  # each runs one
        with console.status(f"{number} workers"):
            found.append(measure(dataset, number, seconds=seconds, step_s=step_ms / 1000))
    layout = dataset.plan.config.source.slow_layout()
    if as_json:
        head = {"lanes": lanes, "step_s": step_ms / 1000}
        runs = [{**asdict(own), "shares": own.shares} for own in found]
        print(json.dumps({**head, "layout": layout, "runs": runs}))
        return
    _say(Console(), found, step_ms, layout)
    if max(workers) > lanes:
        say(
            Console(),
            f"A corpus of this size has {lanes} lane{'s'[lanes == 1 :]}, and no more workers.",
        )


@dataclass(frozen=True)
class Rate:
    """What a loader gave with some number of workers.

    Attributes:
        workers: processes.
        first_batch_s: from the loop's beginning to its first batch, when kernels are compiled.
        batches, tokens, seconds: taken, and in what time, once every lane had given a batch.
        tokens_per_s, batches_per_s: of those.
        waiting: share of that time in which the loop waited for a batch, 0 to 1.
        fetched_bytes: from remote stores, in that time.
        stage_s: seconds that lanes spent by stage, all of them together; see `LaneTimes`.
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
        """Of the time of the processes that make batches, 0 to 1, by what they did; sums to 1.

        What is left is "sending" with workers, in which they wait for the loop, too, and "fields"
        without.
        """
        spent = {
            name: sum(self.stage_s[stage] for stage in stages) for name, stages in STAGES.items()
        }
        total = max(self.seconds * max(self.workers, 1), sum(spent.values()), 1e-9)
        rest = total - sum(spent.values())
        spent["sending" if self.workers else "fields"] = rest
        return {name: seconds / total for name, seconds in spent.items()}


def measure(
    dataset: streampack.PackedDataset, workers: int, *, seconds: float, step_s: float
) -> Rate:
    """Take batches of an endless dataset for so long, after the first one of each lane.

    The loop sleeps for `step_s` after each of them, of which there is one at least.
    """
    loader = streampack.PackedLoader(dataset, num_workers=workers)
    began = time.perf_counter()
    batches = iter(loader)
    _use(next(batches), 0.0)
    first = time.perf_counter() - began
    for _ in range(dataset.plan.config.lanes - 1):  # the others fill their windows
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


def _say(console: Console, found: list[Rate], step_ms: float, layout: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name in ("workers", "first batch", "batches/s", "tokens/s", *["loop waits"][: step_ms > 0]):
        table.add_column(name, justify="right", no_wrap=True)
    for own in found:
        table.add_row(
            str(own.workers),
            f"{own.first_batch_s:.2f} s",
            f"{own.batches_per_s:,.1f}",
            f"{own.tokens_per_s:,.0f}",
            *[f"{own.waiting:.1%}"][: step_ms > 0],
        )
    console.print(table)
    best = max(found, key=lambda own: own.tokens_per_s)
    size = best.tokens / max(best.batches, 1)
    with_them = f"{best.workers} worker{'s' if best.workers != 1 else ''}"
    if not step_ms:
        say(
            console,
            f"With {with_them} a loop that takes {1000 * ROOM / best.batches_per_s:.3g} ms or more "
            f"for a batch of {size:,.0f} tokens does not wait; --step-ms measures it with yours.",
        )
    shares = sorted(best.shares.items(), key=lambda own: -own[1])
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
