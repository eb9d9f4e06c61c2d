"""A small training experiment: what packing does to a model's perplexity.

    python -m benchmarks.papers.training [--preset cpu] [--device cpu] [--runs FILE] [--save FILE]
    python -m benchmarks.papers.training --report [FILE]

A small GPT learns from the same documents under `Concat` and `Pad` with atoms of 0.25 to 4 rows,
`BestFitDecreasing` and `Seamless`, each with attention inside documents and over rows. Learning
rate and batch are constant, so one run is read twice: at equal tokens (of documents, padding and
inserted EOS not counted) and at equal steps. Protocol, figures and what they say: docs/papers.md.

Every finished run is a line in the file of runs; the same command goes on behind the last one.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.papers.training_corpus import Corpus, library_files, source_files, tokenized
from benchmarks.papers.training_model import SmallGPT, losses, mean_loss
from benchmarks.papers.training_protocol import (
    PRESETS,
    TRAINING_SHARE,
    Arm,
    Attention,
    Preset,
    all_arms,
    protocol_digest,
)
from benchmarks.papers.training_report import report
from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing, Composition, Concat, Packer

__all__ = ["HeldOut", "Training", "train", "unfinished"]

RESULTS = Path(__file__).with_name("training_results.json")


def loader_of(
    documents: list[NDArray[np.uint16]],
    packer: Packer,
    attention: Attention,
    preset: Preset,
    corpus: Corpus,
    *,
    window_rows: int,
    seed: int = 0,
    epochs: int | None = None,
) -> PackedLoader:
    """Batches of the preset's shape; endless and shuffled, or in order if `epochs` is given."""
    return PackedLoader(
        PackedDataset(
            documents,
            packer=packer,
            batch_tokens=preset.rows * preset.seq_len,
            attention=attention,
            token_rules=TokenRules(eos_id=corpus.eos_id, vocab_size=corpus.vocab_size),
            window=WindowConfig(rows=window_rows),
            seed=seed,
            shuffle=epochs is None,
            epochs=epochs,
            lanes=1,
            topology=Topology(),
        )
    )


class HeldOut:
    """The validation documents as batches, the same ones for every run.

    Attributes:
        alone: each document by itself, in windows of a row from its beginning. They are packed,
            with attention inside them, which gives the same losses in fewer rows.
        joined: the same documents one after the other, with attention over the row.
    """

    def __init__(self, preset: Preset, corpus: Corpus, device: str) -> None:
        everything = sum(map(len, corpus.validation)) // preset.seq_len + 4 * preset.rows + 1

        def batches(packer: Packer, attention: Attention) -> list[PackedBatch]:
            loader = loader_of(
                corpus.validation, packer, attention, preset, corpus,
                window_rows=everything, epochs=1,
            )  # fmt: skip
            return [batch.to(device) for batch in loader]

        self.alone = batches(BestFitDecreasing(seq_len=preset.seq_len), "document")
        self.joined = batches(Concat(seq_len=preset.seq_len), "row")


class Training:
    """A model and its optimiser."""

    def __init__(self, preset: Preset, vocab_size: int, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.preset = preset
        self.model = SmallGPT(
            vocab_size, width=preset.width, layers=preset.layers, heads=preset.heads
        ).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=preset.learning_rate, betas=(0.9, 0.95)
        )
        self.step = 0

    def learn(self, batch: PackedBatch) -> Tensor:
        """One step; gives the batch's losses."""
        self.step += 1
        for group in self.optimizer.param_groups:
            warm = min(1.0, self.step / self.preset.warmup_steps)
            group["lr"] = warm * self.preset.learning_rate
        found = losses(self.model, batch)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(found.mean())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return found.detach()


def train(
    arm: Arm, seed: int, preset: Preset, corpus: Corpus, held_out: HeldOut, device: str
) -> dict[str, Any]:
    """One run, read at both points.

    Returns:
        What a line of the file of runs holds, without the protocol: losses in nats per token, the
        composition of the rows, and how long it took.
    """
    began = time.perf_counter()
    training = Training(preset, corpus.vocab_size, seed, device)
    order = np.random.default_rng(seed).permutation(len(corpus.train))
    loader = loader_of(
        [corpus.train[number] for number in order], arm.build(preset.seq_len), arm.attention,
        preset, corpus, window_rows=preset.window_rows, seed=seed,
    )  # fmt: skip
    rows = Composition()
    sums: list[Tensor] = []
    counts: list[int] = []
    points: dict[str, dict[str, float]] = {}
    for batch in loader:
        found = training.learn(batch.to(device))
        sums.append(found.sum())
        counts.append(len(found))
        rows += batch.composition
        for name, reached in (
            ("equal tokens", rows.placed >= preset.tokens),
            ("equal steps", training.step >= preset.steps),
        ):
            if reached and name not in points:
                last = slice(-max(1, round(TRAINING_SHARE * training.step)), None)
                points[name] = {
                    "step": training.step,
                    "tokens": rows.placed,
                    "training": float(torch.stack(sums[last]).sum()) / sum(counts[last]),
                    "alone": mean_loss(training.model, held_out.alone),
                }
                if name == "equal steps":
                    points[name]["joined"] = mean_loss(training.model, held_out.joined)
        if len(points) == 2:
            break
    return {
        "arm": arm.name,
        "attention": arm.said_attention,
        "seed": seed,
        "points": points,
        "composition": asdict(rows),
        "seconds": round(time.perf_counter() - began, 1),
    }


def unfinished(
    arms: Iterable[Arm], seeds: Iterable[int], protocol: str, file: Path
) -> Iterator[tuple[Arm, int]]:
    """Runs that the file lacks, all arms of a seed before the next seed.

    Raises:
        StateError: the file holds runs of another protocol.
    """
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    others = {line["protocol"] for line in lines} - {protocol}
    if others:
        raise StateError(
            f"{file} holds runs of protocol {', '.join(sorted(others))}, and this is {protocol}.",
            "Runs of different sizes or corpora would be averaged.",
            "Name another file with --runs, or remove this one.",
        )
    done = {(line["arm"], line["attention"], line["seed"]) for line in lines}
    arms = list(arms)
    for seed in seeds:
        for arm in arms:
            if (arm.name, arm.said_attention, seed) not in done:
                yield arm, seed


def run_all(preset: Preset, device: str, file: Path) -> dict[str, Any]:
    """Every run that is missing, then all of them with what they were made under."""
    files = library_files() if preset.unit == "function" else source_files(preset.corpus_bytes)
    corpus = tokenized(files, preset.vocab_size)
    held_out = HeldOut(preset, corpus, device)
    protocol = protocol_digest(preset, corpus)
    for arm, seed in list(unfinished(all_arms(), preset.seeds, protocol, file)):
        line = {"protocol": protocol, **train(arm, seed, preset, corpus, held_out, device)}
        with file.open("a") as runs:
            runs.write(json.dumps(line) + "\n")
        reading = line["points"]["equal steps"]
        print(
            f"{arm.name}, {arm.attention}, seed {seed}: {line['seconds']} s, {reading}", flush=True
        )
    return {
        "preset": asdict(preset),
        "protocol": protocol,
        "corpus": {
            "digest": corpus.digest,
            "files": len(files),
            "train": describe(corpus.train, preset.seq_len),
            "validation": describe(corpus.validation, preset.seq_len),
        },
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": device,
        },
        "runs": [json.loads(line) for line in file.read_text().splitlines()],
    }


def describe(documents: list[NDArray[np.uint16]], seq_len: int) -> dict[str, float]:
    """The lengths, in tokens with EOS."""
    lengths = np.array([len(document) for document in documents])
    within = lengths <= seq_len
    quantiles = {f"p{q}": float(np.percentile(lengths, q)) for q in (10, 25, 50, 75, 90, 99)}
    return {
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "mean": float(lengths.mean()),
        **quantiles,
        "longest": int(lengths.max()),
        "documents within a row": float(within.mean()),
        "tokens of those": float(lengths[within].sum() / lengths.sum()),
    }


def main() -> None:
    """Train what is missing, or only print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, help="file of finished runs, one JSON line each")
    parser.add_argument("--save", type=Path, help="write all runs and settings there as JSON")
    parser.add_argument("--report", type=Path, nargs="?", const=RESULTS, help="print this, no runs")
    options = parser.parse_args()
    if options.report:
        report(json.loads(options.report.read_text()))
        return
    torch.set_num_threads(1)
    name = f"streampack-training-{options.preset}.jsonl"
    results = run_all(
        PRESETS[options.preset],
        options.device,
        options.runs or Path(tempfile.gettempdir()) / name,
    )
    if options.save:
        options.save.write_text(json.dumps(results, indent=1) + "\n")
    report(results)


if __name__ == "__main__":
    main()
