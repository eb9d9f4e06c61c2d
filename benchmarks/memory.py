"""Packing from memory, beside other versions: ``python -m benchmarks.memory [FOLDER ...]``.

A list of arrays becomes batches of eight rows with all fields, in the loop's own process. A folder
is a checkout of another commit, as ``git worktree add FOLDER COMMIT`` makes it. The versions take
turns, each in a fresh process; the result is the least processor time of a pass over all
documents. Run as a script, with lengths in a file and the tokens of a row, this file is such a
process: it prints its seconds.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 8
HERE = Path(__file__).resolve().parent.parent
FIELDS = ("input_ids", "position_ids", "labels", "document_ids", "cu_seqlens")
CASES = (("lognormal", 2048), ("lognormal", 8192), ("code", 8192), ("instruct", 4096))


def least_seconds(lengths: Path, seq_len: int, passes: int) -> float:
    """Processor time of the fastest of so many passes, behind one that compiles and warms up."""
    import streampack

    settings: dict[str, Any] = {"seq_len": seq_len, "topology": streampack.Topology()}
    known = inspect.signature(streampack.PackedDataset.__init__).parameters
    if "pad_id" in known:  # the first versions
        settings |= {"pad_id": 0, "batch_tokens": ROWS * seq_len}
    else:
        settings |= {"token_rules": streampack.TokenRules(pad_id=0), "batch_size": ROWS}
    ends = np.cumsum(np.load(lengths))
    tokens = np.random.default_rng(0).integers(0, 50_000, int(ends[-1]), dtype=np.uint16)
    documents = np.split(tokens, ends[:-1])
    found = []
    for _ in range(passes + 1):
        began = time.process_time()
        for batch in streampack.PackedLoader(streampack.PackedDataset(documents, **settings)):
            for name in FIELDS:
                getattr(batch, name)
        found.append(time.process_time() - began)
    return min(found[1:])


def in_a_process(folder: Path, lengths: Path, seq_len: int, passes: int) -> float:
    """The same with the version in a folder."""
    command = [sys.executable, __file__, str(lengths), str(seq_len), str(passes)]
    variables = {"PYTHONPATH": str(folder), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    from benchmarks.report import print_table
    from benchmarks.workloads import Workload

    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each version")
    parser.add_argument("--passes", type=int, default=8, help="of each process")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the documents")
    options = parser.parse_args()
    folders = [*map(Path.resolve, options.folders), HERE]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, seq_len in CASES:
            workload = Workload(name, Path(temporary), options.scale)
            workload.make()
            lengths = Path(temporary) / name / "lengths.npy"
            times = [
                [in_a_process(folder, lengths, seq_len, options.passes) for folder in folders]
                for _ in range(options.rounds)
            ]
            least = [f"{min(seconds):.3f}" for seconds in zip(*times, strict=True)]
            sizes = [f"{len(workload.lengths):,}", f"{workload.num_tokens / 1e6:.1f} M"]
            rows.append([name, f"{seq_len:,}", *sizes, *least])
    names = [folder.name for folder in folders[:-1]]
    print_table(
        "Seconds", ["lengths", "seq_len", "documents", "tokens", *names, "this version"], rows
    )


if __name__ == "__main__":
    if __package__:
        main()
    else:
        sys.path.remove(str(HERE / "benchmarks"))  # there, `tokenizers` is a benchmark
        print(least_seconds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
