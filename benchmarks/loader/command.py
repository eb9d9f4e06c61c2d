"""The command: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.loader.measure import Measured, Settings, measure
from benchmarks.loader.ranks import Job, open_job
from benchmarks.report import machine
from streampack import PackedDataset
from streampack.errors import StreampackError
from streampack.sources import open as open_source
from streampack.tokenization import load_tokenizer

__all__ = ["main", "words"]


def main(arguments: Sequence[str]) -> None:
    """Measure, print, write."""
    options = _parse(arguments)
    try:
        with open_job() as job:
            settings = Settings(
                workers=options.workers,
                device=_device(options.device, job),
                step_s=None if options.step_ms is None else options.step_ms / 1000,
                seconds=options.seconds,
            )
            found = job.gather(measure(_dataset(options), settings, job))
            if job.rank == 0:
                print(words(found, settings, job))
                if options.out is not None:
                    text = json.dumps(_as_json(found, arguments), indent=1)
                    options.out.write_text(text + "\n")
    except StreampackError as error:
        sys.exit(f"benchmarks loader: {error}")


def words(found: Sequence[Measured], settings: Settings, job: Job) -> str:
    """Tables and the verdict of all ranks."""
    slowest = min(range(len(found)), key=lambda rank: found[rank].pace.rate)
    several = len(found) > 1
    head = f"{machine()}; {settings.workers} workers, batches to {settings.device}"
    parts = [f"{job.processes} ranks, the first on {head}." if several else f"{head}."]
    parts.append(_table(found, slowest))
    one = found[slowest]
    if one.waits is not None:
        waiting = max(range(len(found)), key=lambda rank: found[rank].pace.waiting)
        one = found[waiting]
        assert one.waits is not None
        p50, p95 = (1000 * seconds for seconds in one.waits)
        of = f" (rank {waiting}, which waits most)" if several else ""
        parts.append(
            f"A loop with steps of {1000 * (settings.step_s or 0):.3g} ms waits "
            f"{100 * one.pace.waiting:.2f} % of its time{of}: p50 {p50:.3g} ms, p95 {p95:.3g} ms "
            "per batch."
        )
    parts.append(
        f"First batch after {one.first_s:.2f} s; a batch of every lane after {one.warm_s:.2f} s."
    )
    if several:
        counted = Counter(rank.limit for rank in found)
        limits = ", ".join(f"{limit} on {count}" for limit, count in counted.most_common())
        parts.append(f"What limits: {limits}. Of rank {found.index(one)}:")
    return "\n\n".join([*parts, "\n".join(one.sentences)])


def _table(found: Sequence[Measured], slowest: int) -> str:
    several = len(found) > 1
    of = "all ranks" if several else ""
    lines = [f"{of:24s} {'M tokens/s':>11s} {'documents/s':>12s} {'MB/s':>9s}"]
    if several:
        lines[0] += f" {'slowest rank':>24s}"
    for number, line in enumerate(found[0].lines):
        ranks = [rank.lines[number] for rank in found]
        tokens, documents, content = (
            sum(getattr(rank, name) for rank in ranks)
            for name in ("tokens", "documents", "content")
        )
        row = f"{line.stage:24s} {tokens / 1e6:11.4g} {documents:12,.0f} {content / 1e6:9.4g}"
        if several:
            least = min(range(len(ranks)), key=lambda rank: ranks[rank].tokens)
            row += f" {ranks[least].tokens / 1e6:11.4g} (rank {least})"
        lines.append(row)
    if several:
        rate = found[slowest].pace.rate
        lines.append(f"The slowest rank gives {rate / 1e6:.4g} M tokens/s: rank {slowest}.")
    return "\n".join(lines)


def _dataset(options: argparse.Namespace) -> PackedDataset:
    corpus = open_source(
        options.source,
        text=options.text,
        tokens=options.tokens,
    )
    tokenizer: Any = options.tokenizer
    if tokenizer is not None:
        # As workers have it, so that the stages say what a worker can do.
        threads = 1 if options.workers else None
        tokenizer = load_tokenizer(tokenizer, eos_id=options.eos_id, threads=threads)
    return PackedDataset(
        corpus,
        seq_len=options.seq_len,
        batch_size=options.batch_tokens // options.seq_len,
        tokenizer=tokenizer,
        seed=options.seed,
        epochs=None,
    )


def _device(name: str | None, job: Job) -> str:
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{job.place % torch.cuda.device_count()}"
        torch.cuda.set_device(name)
    return name


def _as_json(found: Sequence[Measured], arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m benchmarks loader", *arguments]),
        "machine": machine(),
        "ranks": [asdict(rank) for rank in found],
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks loader",
        description="Measure a loader over your own shards, and say what limits it.",
    )
    add = parser.add_argument
    add("--source", required=True, help="MDS, tar, Parquet, JSON lines or .txt: file, folder, URL")
    add("--tokenizer", metavar="PATH", help="tokenizer.json, for text")
    add("--eos-id", type=int, help="end-of-document id, where the tokenizer names none")
    add("--text", metavar="FIELD", help="field or column that holds text")
    add("--tokens", metavar="FIELD", help="field or column that holds token ids")
    add("--seq-len", type=int, default=2048)
    add("--batch-tokens", type=int, help="of one rank; default: one row")
    add("--workers", type=int, default=1, help="worker processes of a rank")
    add("--step-ms", type=float, help="the loop's own time per batch")
    add("--device", help='where batches go; default: "cuda" if there is one, else "cpu"')
    add("--seconds", type=float, default=5.0, help="of each stage")
    add("--seed", type=int, default=0, help="other shards come first")
    add("--out", type=Path, metavar="FILE", help="the figures as JSON")
    return parser.parse_args(arguments)
