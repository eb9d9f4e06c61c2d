"""Delays at each stage, and on one rank of eight: does `Waits` name them, and at which cost?

    python -m benchmarks.waits [--trials 20] [--only PART] [--docs]
    python -m benchmarks.waits --show [--docs]  # the texts in docs/monitoring.md

Texts come from a store, a process that answers on a socket; they are parsed, tokenized, packed, and
sent by a worker process. In a trial one stage is delayed by about 40 ms per batch: the store
answers later; parsing, tokenizing, planning or pickling work longer; or the training step, a
sleep of 4 ms, takes 96 ms more. On eight ranks, connected over gloo, one has the delay. A second
part takes batches of ids from memory with and without `Waits`, in turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import socket
import statistics
import struct
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from tokenizers import Tokenizer as Vocabulary
from tokenizers import models, pre_tokenizers

from benchmarks.records import write_page
from benchmarks.report import machine, markdown_table, put_between
from benchmarks.synthetic import Synthetic
from streampack import (
    BestFitDecreasing,
    Headspace,
    PackedDataset,
    PackedLoader,
    Tokenizer,
    Topology,
    Waits,
    WindowConfig,
    metrics,
)
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.manifest import Manifest
from streampack.sources.sharded import ShardedSource
from streampack.workers import worker

DOCS = Path(__file__).parent.parent / "docs"

STAGES = ("storage", "decoding", "tokenizing", "packing", "sending", "step")
RANKS = 8
STEPS = 25  # in a trial, after 10 without a count
STEP_S, LONG_STEP_S = 0.004, 0.1
WORDS = 100  # of a document, each a token
SEQ_LEN, ROWS = 256, 4  # 10 documents in a batch
DELAY_S = 0.004  # per document, of the stage that is delayed
BATCH_DELAY_S = 0.04

_delayed = ""  # stage of this process, and of workers forked from it


def work(seconds: float) -> None:
    """Use a processor for this time."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


class Store:
    """A store in a process of its own, which answers a request for n documents of 200 characters.

    Attributes:
        port: on 127.0.0.1.
    """

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = listening.getsockname()[1]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_answer, args=(listening,), daemon=True)
        self._process.start()
        listening.close()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _answer(listening: socket.socket) -> None:
    record = json.dumps({"text": "a " * WORDS}).encode() + b"\n"

    def serve(client: socket.socket) -> None:
        with suppress(ConnectionError):  # a worker has ended
            while request := client.recv(12):
                count, delay_s = struct.unpack("!id", request)
                time.sleep(delay_s * count)
                client.sendall(record * count)

    while True:
        client, _ = listening.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


class Stored(ShardedSource):
    """Texts of the store."""

    tokenized = False

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def list_shards(self) -> Manifest:
        """Sixteen shards."""
        documents = np.full(16, 100_000, dtype=np.int64)
        return Manifest(
            paths=tuple(f"stored-{i}" for i in range(16)),
            weights=documents,
            num_bytes=documents * 200,
        )

    def read_shard(
        self, shard: int, low: int, high: int, position: int | None, skips: ErrorPolicy
    ) -> Iterator[tuple[Texts, int, int]]:
        """Blocks of 16 documents."""
        delay_s = DELAY_S if _delayed == "storage" else 0.0
        with socket.create_connection(("127.0.0.1", self._port)) as store:
            received = store.makefile("rb")
            start = low if position is None else position
            while start < high:
                end = min(start + 16, high)
                store.sendall(struct.pack("!id", end - start, delay_s))
                texts = [json.loads(received.readline())["text"] for _ in range(end - start)]
                if _delayed == "decoding":
                    work(DELAY_S * (end - start))
                yield Texts(texts, make_origin(shard, np.arange(start, end))), end, end
                start = end


class Slowed(Tokenizer):
    """A tokenizer that may work longer."""

    def encode(self, texts: Texts, *arguments: Any) -> Any:
        """See `Tokenizer`."""
        if _delayed == "tokenizing":
            work(DELAY_S * len(texts))
        return super().encode(texts, *arguments)


@dataclass(frozen=True)
class SlowedFit(BestFitDecreasing):
    """A packer that may work longer."""

    def plan_window(self, request: Any) -> Any:
        """See `Packer`."""
        selection = super().plan_window(request)
        if _delayed == "packing":
            work(BATCH_DELAY_S * max(len(selection.batches) - 1, 1))
        return selection


def encoded(item: Any, *arguments: Any, encode: Any = worker.encode) -> bytes:
    """Make a worker's message, perhaps slowly."""
    if _delayed == "sending":
        work(BATCH_DELAY_S)
    message: bytes = encode(item, *arguments)
    return message


worker.encode = encoded  # of workers forked from this process


def vocabulary() -> Tokenizer:
    """One token per word."""
    words = Vocabulary(models.WordLevel({"a": 1, "[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return Slowed(words, eos="as-is")


def watched(port: int, topology: Topology, workers: int) -> Waits[Any]:
    """A loader of the store's texts."""
    dataset = PackedDataset(
        Stored(port),
        tokenizer=vocabulary(),
        packer=SlowedFit(seq_len=SEQ_LEN),
        batch_size=ROWS,
        window=WindowConfig(rows=16),
        lanes=topology.world_size,
        epochs=None,
        topology=topology,
    )
    return Waits(
        PackedLoader(
            dataset,
            num_workers=workers,
            prefetch_factor=2 if workers else None,  # so that a delay shows within few steps
            multiprocessing_context="fork" if workers else None,  # workers inherit `_delayed`
            rank_timeout_s=120,
        )
    )


def loop(waits: Waits[Any], steps: int = STEPS) -> None:
    """Take batches and sleep; the figures begin after the first 10."""
    for number, batch in enumerate(islice(waits, steps + 10)):
        if number == 10:
            waits.report()
        assert batch.num_tokens
        time.sleep(LONG_STEP_S if _delayed == "step" else STEP_S)


def named(stage: str, port: int, workers: int) -> str:
    """The limit that `Waits` names when this stage is delayed."""
    global _delayed
    _delayed = stage
    waits = watched(port, Topology(), workers)
    loop(waits)
    return waits.report().limit


def rank_named(rank: int, folder: str, port: int, trials: Any, results: Any) -> None:
    """One rank's process: send the named stage and rank of each trial (stage, slow rank)."""
    global _delayed
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS
    )
    for stage, slow in trials:
        _delayed = stage if rank == slow else ""
        waits = watched(port, Topology(rank, RANKS), 1)
        loop(waits)
        job = waits.over_ranks()
        if rank == 0:
            results.put((job.limit, job.slowest.rank, str(job)))
    dist.destroy_process_group()


def named_on_ranks(trials: list[tuple[str, int]], port: int) -> list[tuple[str, int, str]]:
    """Run trials, pairs of the delayed stage and its rank, in eight processes.

    Return triples of the named stage and rank, and the text of the figures.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=rank_named, args=(rank, folder, port, trials, results))
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        found = [results.get(timeout=600) for _ in trials]
        for process in processes:
            process.join()
    return found


def shown(port: int) -> str:
    """The texts of `Headspace`, `RankWaits` and `JobWaits` when a stage is delayed."""
    global _delayed
    _delayed = "tokenizing"
    headspace = Headspace(watched(port, Topology(), 1), steps=STEPS, warm_up=10)
    for _ in headspace:
        time.sleep(STEP_S)
    waits = watched(port, Topology(), 1)
    loop(waits)
    report = waits.report()
    ((_, _, ranks),) = named_on_ranks([("storage", 5)], port)
    lines = f"{headspace}\n\n{report}\n\n{ranks}".split("\n")
    text = "\n".join(textwrap.fill(line, 86, subsequent_indent="  ") for line in lines)
    return f"```text\n{text}\n```"


def cost(rounds: int, seconds: float = 0.5) -> tuple[float, float, float]:
    """Tokens per second of processor time without and with `Waits`, and the median ratio."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.normal(6.0, 1.1, 20_000))).astype(np.int64)
    rates: dict[bool, list[float]] = {False: [], True: []}
    loaders = {
        each: PackedLoader(
            PackedDataset(
                Synthetic(lengths, 1 << 40), seq_len=2048, epochs=None, topology=Topology()
            )
        )
        for each in rates
    }
    plain_clock = metrics.thread_clock
    waits = Waits(loaders[True])
    clocks = {True: metrics.thread_clock, False: plain_clock}
    items = {False: iter(loaders[False]), True: iter(waits)}
    for number in range(rounds + 2):
        for each in (False, True) if number % 2 else (True, False):
            metrics.thread_clock = clocks[each]
            tokens, began = 0, time.process_time()
            while time.process_time() - began < seconds:
                tokens += next(items[each]).num_tokens
            if number >= 2:
                rates[each].append(tokens / (time.process_time() - began))
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    without, with_waits = (statistics.median(rates[each]) for each in (False, True))
    return without, with_waits, statistics.median(ratios)


def counted(part: str, port: int, trials: int) -> dict[str, int]:
    """The trials of each stage in which it was named: on "one" rank with a worker, "alone", ..."""
    right: Counter[str] = Counter()
    if part == "eight":
        rng = random.Random(0)
        pairs = [(stage, rng.randrange(RANKS)) for stage in STAGES for _ in range(trials)]
        rng.shuffle(pairs)
        for pair, got in zip(pairs, named_on_ranks(pairs, port), strict=True):
            right[pair[0]] += got[:2] == pair
            if got[:2] != pair:
                print(f"{pair} was named {got[:2]}\n{got[2]}", flush=True)
        return dict(right)
    workers = int(part == "one")
    for stage in STAGES if workers else [stage for stage in STAGES if stage != "sending"]:
        names = Counter(named(stage, port, workers) for _ in range(trials))
        print(part, stage, dict(names), flush=True)
        right[stage] = names[stage]
    return dict(right)


#: Parts of the measurement: heads of their columns.
PARTS = {
    "one": "one rank, a worker",
    "alone": "one rank, no worker",
    "eight": "one rank of eight",
}


def table(results: dict[str, Any]) -> str:
    """Return the table of named stages and costs."""
    trials = results["trials"]
    rows = [
        [stage, *(f"{n} of {trials}" if (n := results[part].get(stage)) else "" for part in PARTS)]
        for stage in STAGES
    ]
    without, with_waits, ratio = results["cost"]
    return (
        f"{markdown_table(['delayed', *PARTS.values()], rows)}\n\n"
        "Ids from memory, without a training step, by processor time: "
        f"{without / 1e6:.0f} M tokens/s without `Waits` "
        f"and {with_waits / 1e6:.0f} with it; median of the ratios of rounds {ratio:.3f}. "
        f"{results['machine']}."
    )


def main() -> None:
    """Print the table, or the reports."""
    parser = argparse.ArgumentParser(description="Delays that Waits names, and its cost.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40, help="of the measurement of cost")
    parser.add_argument("--only", choices=[*PARTS, "cost"], help="measure one part anew")
    parser.add_argument("--docs", action="store_true", help="write the texts into docs/")
    parser.add_argument("--show", action="store_true", help="print reports instead")
    options = parser.parse_args()
    store = Store()
    try:
        if options.show:
            text = shown(store.port)
            print(text)
            if options.docs:
                put_between(DOCS / "monitoring.md", "waits", text)
            return
        found: dict[str, Any] = {"trials": options.trials, "machine": machine()}
        for part in PARTS:
            if options.only in (None, part):
                found[part] = counted(part, store.port, options.trials)
    finally:
        store.close()
    if options.only in (None, "cost"):
        found["cost"] = cost(options.rounds)
    print(found)
    if options.docs:
        kept = DOCS / "benchmarks" / "waits.json"
        results = json.loads(kept.read_text()) if kept.exists() else {}
        results.update(found)
        kept.write_text(json.dumps(results, indent=1) + "\n")
        if {*PARTS, "cost"} <= set(results):
            write_page()


if __name__ == "__main__":
    main()
