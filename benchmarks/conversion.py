"""Tokenizing a corpus to files, beside datatrove and Megatron-LM.

    python -m benchmarks.conversion [--megabytes 60] [--rounds 1] [--megatron FOLDER] [--docs]

Converts the same JSON lines, of source code, with GPT-2's vocabulary and an end after every
document, in one process and in two. Every command runs on the corpus and on a sixtieth of it; the
difference gives the rate, and the rest is the start with its imports. Rounds go over all commands
in turn, and a figure is the median of its rounds. Rates are of wall time, and of processor time for
one process. All must write as many tokens as we do.

datatrove runs in the environment of `benchmarks.environments`, or with ``--datatrove PYTHON``;
Megatron-LM with preprocess_data_fast of a checkout and this interpreter, which needs triton and
Python 3.12. Missing ones are left out. ``--docs`` keeps the figures and the table in docs/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.environments import python_of
from benchmarks.records import write_page
from benchmarks.report import load_before, machine, markdown_table
from demo.corpus import gather
from tests.support.vocabularies import gpt2

DOCS = Path(__file__).parent.parent / "docs"
EOS = "<|endoftext|>"
FILES = 4  # because datatrove divides a corpus by files
OURS = """
import sys
from streampack import Tokenizer
from streampack.conversion.api import convert

if __name__ == "__main__":
    source, out, tokenizer, workers, part_bytes = sys.argv[1:]
    tokenizer = Tokenizer(tokenizer, eos="append", engine="gigatoken")
    convert(source, out, tokenizer=tokenizer, workers=int(workers), part_bytes=int(part_bytes))
"""
DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

if __name__ == "__main__":
    source, out, tokenizer, workers, eos = sys.argv[1:]
    steps = [
        JsonlReader(source),
        DocumentTokenizer(out, tokenizer, eos_token=eos, shuffle_documents=False),
    ]
    LocalPipelineExecutor(
        steps, tasks=4, workers=int(workers), logging_dir=out + ".log"
    ).run()
"""


class Corpus:
    """The texts in files, and the tokenizer."""

    def __init__(self, folder: Path, megabytes: float) -> None:
        self.folder, self.tokens = folder, 0
        folder.mkdir()
        self.source, self.tokenizer = folder / "in", folder / "tokenizer"
        self.source.mkdir()
        self.tokenizer.mkdir()
        texts = gather(int(megabytes * 1e6))
        for number in range(FILES):
            rows = (json.dumps({"text": text}) + "\n" for text in texts[number::FILES])
            (self.source / f"{number}.jsonl").write_text("".join(rows))
        self.one_file = folder / "all.jsonl"
        files = sorted(self.source.iterdir())
        self.one_file.write_text("".join(file.read_text() for file in files))
        self.documents = len(texts)
        engine = gpt2()
        engine.add_special_tokens([EOS])
        engine.save(str(self.tokenizer / "tokenizer.json"))
        special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
        (self.tokenizer / "tokenizer_config.json").write_text(json.dumps(special))

    def script(self, name: str, text: str) -> Path:
        """Write a script, which processes can import."""
        path = self.folder / f"{name}.py"
        path.write_text(text)
        return path


#: Returns the command that converts the corpus to a folder with a number of processes.
Command = Callable[[Corpus, Path, int], Sequence[str]]


def ours(corpus: Corpus, out: Path, workers: int) -> Sequence[str]:
    """Return the command of streampack."""
    size = sum(path.stat().st_size for path in corpus.source.iterdir())
    return [
        sys.executable, str(corpus.script("ours", OURS)), str(corpus.source), str(out),
        str(corpus.tokenizer), str(workers), str(-(-size // 16)),
    ]  # fmt: skip


def datatrove(python: str) -> Command:
    """Return the command of datatrove."""

    def command(corpus: Corpus, out: Path, workers: int) -> Sequence[str]:
        tokenizer = str(corpus.tokenizer / "tokenizer.json")
        script = str(corpus.script("by_datatrove", DATATROVE))
        return [python, script, str(corpus.source), str(out), tokenizer, str(workers), EOS]

    return command


def megatron(checkout: Path) -> Command:
    """Return the command of Megatron-LM: a process with threads, which holds all ids in memory."""

    def command(corpus: Corpus, out: Path, workers: int) -> Sequence[str]:
        out.mkdir()
        script = str(checkout / "tools" / "preprocess_data_fast.py")
        return [
            "env", f"RAYON_NUM_THREADS={workers}", sys.executable, "-W", "ignore", script,
            "--input", str(corpus.one_file), "--output-prefix", str(out / "out"),
            "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(corpus.tokenizer),
            "--append-eod", "--use-gigatoken",
        ]  # fmt: skip

    return command


def tokens_in(out: Path) -> int:
    """Count the tokens that a command has written."""
    manifest = out / "_conversion.json"
    if manifest.exists():
        return int(json.loads(manifest.read_text())["tokens"])
    files = [*out.glob("*.ds"), *out.glob("*.bin")]
    return sum(file.stat().st_size for file in files) // 2


def timed(
    corpus: Corpus, name: str, command: Command, workers: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Return a command's seconds and processor time; it must write as many tokens as others."""
    out = corpus.folder / name
    paths = [DOCS.parent, options.megatron, os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)}
    run = command(corpus, out, workers)
    began, used = time.monotonic(), _processor_s()
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    took = time.monotonic() - began, _processor_s() - used
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    tokens = tokens_in(out)
    corpus.tokens = corpus.tokens or tokens
    if tokens != corpus.tokens:
        raise RuntimeError(f"{name} wrote {tokens} tokens, not {corpus.tokens}")
    return took


def _processor_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])  # type: ignore[union-attr]
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--datatrove", default=python_of("datatrove"), help="its interpreter")
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM")
    parser.add_argument("--docs", action="store_true", help="keep figures and table in docs/")
    options = parser.parse_args()
    commands: dict[str, Command] = {"streampack": ours}
    if options.datatrove is not None:
        commands["datatrove"] = datatrove(str(options.datatrove))
    if options.megatron is not None:
        commands["Megatron-LM"] = megatron(options.megatron)
    results: dict[str, Any] = {}
    load = load_before()
    with TemporaryDirectory() as folder:
        sizes = (options.megabytes / 60, options.megabytes)
        corpora = [Corpus(Path(folder) / str(n), size) for n, size in enumerate(sizes)]
        for name in commands:
            results[name] = {"1": [], "2": [], "machine": machine(), "load": load}
        for number in range(options.rounds):
            for name, command in commands.items():
                for workers in (1, 2):
                    times = [
                        timed(corpus, f"{name}-{workers}-{number}", command, workers, options)
                        for corpus in corpora
                    ]
                    print(f"{name}, {workers}: {times[0]} s and {times[1]} s", flush=True)
                    results[name][str(workers)].append(times)
        for name in commands:
            results[name]["tokens"] = [corpus.tokens for corpus in corpora]
            results[name]["documents"] = corpora[1].documents
    if options.docs:
        kept = DOCS / "benchmarks" / "conversion.json"
        kept.write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    print(text)
    if options.docs:
        write_page()


def table(results: dict[str, Any]) -> str:
    """Return the table by the fastest of all rounds, and the machine it was measured on."""
    rows = []
    for name, of_name in results.items():
        tokens = of_name["tokens"][1] - of_name["tokens"][0]
        seconds = {
            (w, n, clock): min(times[n][clock] for times in of_name[w])
            for w in "12"
            for n in (0, 1)
            for clock in (0, 1)
        }
        core, one, two = (
            tokens / 1e6 / max(seconds[w, 1, clock] - seconds[w, 0, clock], 1e-9)
            for w, clock in (("1", 1), ("1", 0), ("2", 0))
        )
        starts = f"{seconds['1', 0, 0]:.1f}, {seconds['2', 0, 0]:.1f}"
        rates = [f"{rate:.2f}" for rate in (core, one, two, two / one)]
        rows.append([name, *rates, starts])
    head = ["M tokens/s", "of a core", "one process", "two processes", "ratio", "start, s"]
    first = next(iter(results.values()))
    about = (
        f"{first['tokens'][1] / 1e6:.1f} M tokens in {first['documents']:,} documents; "
        f"{first['machine']}; {first['load']}."
    )
    return f"{markdown_table(head, rows)}\n\n{about}"


if __name__ == "__main__":
    main()
