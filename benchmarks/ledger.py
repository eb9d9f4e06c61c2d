"""Replay of a run on the lengths that it kept: ``python -m benchmarks.ledger``.

60,000 documents of 750 ids on average, uint16 in Parquet or as texts that a tokenizer of bytes
reads, are packed in rows of 4,096 in twelve lanes with ``ledger=True``. Then a document that
no batch has is looked for, by the lengths and by reading the corpus. It prints the bytes of the
lengths and the tokens that one core replays in a second of processor time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.accounts.lengths import KeptLengths
from streampack.ledger.replay import Replayed
from streampack.ledger.seen import seen

GROUP = 2000


def write(folder: Path, documents: int, kind: str) -> int:
    """Write the corpus; return its tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(6.1, 1.0, documents)), 1, 16_000).astype(np.int64)
    path = folder / "0.parquet"
    name, value = ("ids", pa.list_(pa.uint16())) if kind == "ids" else ("text", pa.string())
    with pq.ParquetWriter(path, pa.schema([(name, value)]), use_dictionary=False) as writer:
        for first in range(0, documents, GROUP):
            sizes = lengths[first : first + GROUP]
            offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
            if kind == "ids":
                ids = rng.integers(0, 50_000, int(sizes.sum())).astype(np.uint16)
                column: Any = pa.ListArray.from_arrays(offsets, pa.array(ids))
            else:
                letters = rng.integers(97, 123, int(sizes.sum())).astype(np.uint8)
                column = pa.StringArray.from_buffers(
                    len(sizes), offsets.buffers()[1], pa.py_buffer(letters)
                )
            writer.write_table(pa.table({name: column}))
    return int(lengths.sum())


def tokenizer() -> Tokenizer:
    """A tokenizer that gives each byte an id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def dataset_of(folder: Path, kind: str, epochs: int) -> PackedDataset:
    """The run, which keeps its lengths in the folder."""
    path = str(folder / "0.parquet")
    tokens = kind == "ids"
    source = sources.open(path, tokens="ids") if tokens else sources.open(path, text="text")
    dataset = PackedDataset(
        source, seq_len=4096, lanes=12, epochs=epochs, topology=Topology(), ledger=True,
        tokenizer=None if tokens else tokenizer(),
        token_rules=TokenRules(eos="as-is", pad_id=0),
    )  # fmt: skip
    config = dataset._config
    kept = [each for each in config.wrappers if not isinstance(each, KeptLengths)]
    object.__setattr__(config, "wrappers", (*kept, KeptLengths(folder / "lengths")))
    return dataset


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", default=["ids", "text"])
    options = parser.parse_args()
    rows = []
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            tokens = write(folder, options.documents, kind) * options.epochs
            dataset = dataset_of(folder, kind, options.epochs)
            loader = PackedLoader(dataset)
            began = time.process_time()
            for _ in loader:
                pass
            run_s, state = time.process_time() - began, loader.state_dict()
            size = sum(file.stat().st_size for file in folder.glob("lengths/*/*"))
            place = f"{folder}/0.parquet, index {options.documents}"
            taken = {}
            for name in ("lengths", "corpus"):
                replayed = Replayed(folder / name)
                began = time.process_time()
                assert not list(seen(dataset, state, [place], replayed=replayed))
                taken[name] = time.process_time() - began
                assert replayed.counts[name] == options.documents * options.epochs
            rows.append([
                kind, f"{size / options.documents / options.epochs:.1f}",
                *(f"{tokens / seconds / 1e6:.0f}" for seconds in (run_s, *taken.values())),
                f"{1e11 * taken['lengths'] / tokens / 60:.0f}",
            ])  # fmt: skip
    print_table("", [
        "corpus", "bytes per document", "run, million tokens/s", "replay on lengths",
        "replay by reading", "minutes for 100 B tokens",
    ], rows)  # fmt: skip


if __name__ == "__main__":
    main()
