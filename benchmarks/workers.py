"""Worker processes of a loader beside another way to run them, or beside another checkout.

    python -m benchmarks.workers [--beside CHECKOUT] [--rounds 2] [--seconds 2] [--rows 8]

Per source (ids in memory, MDS, Parquet, texts), start method and number of workers, both sides
alternate in fresh processes. Columns: the first batch, batches and tokens per second with all
per-token fields made, processor time of all processes per second of the loop, their memory
(private and a share of what is shared). Without ``--beside``, the other side is a plain
``DataLoader``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.corpus_files import jsonl_texts, mds_shards, parquet_ids
from benchmarks.protocol import SEQ_LEN
from benchmarks.workloads import Workload

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
SOURCES = ("memory", "mds", "parquet", "texts")
WORDS = ("the", "cat", "sat", "on", "mat", "and", "dogs", "ran", "over", "hills", "while", "rain")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers")
    parser.add_argument("--beside", type=Path, help="another checkout, whose loader is used")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=8, help="per batch")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    parser.add_argument("--contexts", nargs="+", default=["fork", "spawn"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(**json.loads(options.child))))
        return
    print("source, context, workers | first batch s | batches/s | M tokens/s | processor s/s | MiB")
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder))
        for source in options.sources:
            for context in options.contexts:
                for workers in options.workers if context == "fork" else options.workers[1:2]:
                    order = {
                        "source": source, "context": context, "workers": workers,
                        "folder": folder, "seconds": options.seconds, "rows": options.rows,
                    }  # fmt: skip
                    _print(order, _alternated(order, options.rounds, options.beside))


def _alternated(order: dict[str, Any], rounds: int, beside: Path | None) -> list[list[Any]]:
    """The figures of both sides, a list per round."""
    sides: list[list[Any]] = [[], []]
    for _ in range(rounds):
        for number, found in enumerate(sides):
            other = number == 1
            root = beside.resolve() if other and beside else ROOT
            asked = {**order, "over": other and beside is None}
            environment = {
                **os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT)]),
            }  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.workers", "--child", json.dumps(asked)],
                cwd=root, env=environment, stdout=subprocess.PIPE, check=True, text=True,
            )  # fmt: skip
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return sides


def _print(order: dict[str, Any], sides: list[list[Any]]) -> None:
    one, other = (
        {name: statistics.median(found[name] for found in side) for name in side[0]}
        for side in sides
    )
    cells = [f"{order['source']}, {order['context']}, {order['workers']}"]
    for name, form in (
        ("first_s", ".2f"), ("batches", ".0f"), ("tokens", ".1f"), ("cpu", ".2f"), ("mib", ".0f"),
    ):  # fmt: skip
        ratio = one[name] / other[name]
        cells.append(f"{one[name]:{form}} / {other[name]:{form}} = {ratio:.2f}")
    print(" | ".join(cells), flush=True)


def _make(folder: Path) -> None:
    workload = Workload("lognormal", folder, 0.5)
    workload.make()
    mds_shards(workload)
    parquet_ids(workload)
    texts = [" ".join(WORDS[int(i) % len(WORDS)] for i in ids) for ids in workload.documents[:4000]]
    jsonl_texts(workload, texts)
    from tokenizers import Tokenizer, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*WORDS, "<eos>"])}, WORDS[0]))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    engine.save(str(folder / "tokenizer.json"))


def _dataset(source: str, folder: str, rows: int) -> Any:
    from streampack import PackedDataset, TokenRules, Topology

    workload = Workload("lognormal", Path(folder), 0.5)
    made: Any = {
        "memory": lambda: (workload.tokens, workload.offsets),
        "mds": lambda: str(mds_shards(workload)),
        "parquet": lambda: str(parquet_ids(workload)),
        "texts": lambda: str(Path(folder) / "lognormal" / "texts.jsonl"),
    }[source]()
    more: dict[str, Any] = {"topology": Topology(), "epochs": None, "lanes": 8}
    if source == "texts":
        more["tokenizer"] = str(Path(folder) / "tokenizer.json")
        more["token_rules"] = TokenRules(eos_id=len(WORDS))
    return PackedDataset(made, seq_len=SEQ_LEN, batch_size=rows, **more)


def _measure(
    source: str, context: str, workers: int, folder: str, seconds: float, rows: int, over: bool
) -> dict[str, float]:
    from torch.utils.data import DataLoader

    from streampack import PackedLoader

    warm = _dataset(source, folder, rows)
    next(iter(PackedLoader(warm))).input_ids  # noqa: B018  compiled and in the page cache
    dataset = _dataset(source, folder, rows)
    loader: Any
    if over:
        made = DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=context,
            prefetch_factor=4,
        )  # fmt: skip
        loader = made
    else:
        loader = PackedLoader(dataset, num_workers=workers, multiprocessing_context=context)
    began = time.perf_counter()
    batches: Any = iter(loader)
    next(batches).labels  # noqa: B018
    first = time.perf_counter() - began
    for _ in range(30):
        next(batches).labels  # noqa: B018
    children = [child.pid or 0 for child in multiprocessing.active_children()]
    count, tokens = 0, 0
    used, began = _processor_s(children), time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        batch = next(batches)
        tokens += batch.num_tokens
        batch.labels  # noqa: B018
        count += 1
    used = _processor_s(children) - used
    memory = sum(map(_shared_mib, [os.getpid(), *children]))
    batches.close()
    return {
        "first_s": first,
        "batches": count / spent,
        "tokens": tokens / spent / 1e6,
        "cpu": used / spent,
        "mib": memory,
    }


def _processor_s(children: list[int]) -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    used = own.ru_utime + own.ru_stime
    for child in children:
        ticks = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        used += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return used


def _shared_mib(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
