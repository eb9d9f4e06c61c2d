"""The proof's command: everything that fits into so many seconds, and its tables."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.proof.learning import ARMS, arm_steps, learning, validation
from benchmarks.proof.model import Size, Trainer
from benchmarks.proof.rows import ARMS as LAYOUTS
from benchmarks.proof.speed import speeds
from benchmarks.proof.texts import PROFILES, Corpus, corpus, files, tokenizer
from benchmarks.records import DOCS, write_page
from benchmarks.report import markdown_table

__all__ = ["markdown", "prove"]

SIZES = {
    "125m": Size("125 M parameters", 768, 12, 12, 2048, slots=32_768),
    "1b": Size("0.9 B parameters", 2048, 16, 16, 5632, slots=16_384),
    "quick": Size("a tiny model", 32, 1, 2, 64, slots=512, vocabulary=512),
}
SEEDS = 3
LOSS_SEQ_LEN = 2048
HELD_OUT = 400  # documents


def prove(options: argparse.Namespace) -> None:
    """Measure the speed of all arms, then their losses; print and keep the tables."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, began = SIZES[options.size], time.perf_counter()
    figures: dict[str, Any] = {
        "machine": torch.cuda.get_device_name()
        if device == "cuda"
        else "no GPU: figures of speed mean nothing",
        "model": size.name,
        "slots": size.slots,
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", "tokenizers")},
        "speed": {},
        "loss": {},
    }

    def keep() -> None:
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{time.perf_counter() - began:.0f} s", flush=True)

    quick = options.size == "quick"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = files(1_000_000 if quick else 90_000_000)
        print(f"{sum(map(len, texts)):,} characters", flush=True)
        words, trainer = tokenizer(folder, size.vocabulary, texts), Trainer(size, device)
        seconds = 0.25 * options.seconds / (len(PROFILES) * len(LAYOUTS) * 2)
        profiles = list(PROFILES[1:2] if options.size == "1b" else PROFILES)
        if quick:
            profiles = [profile.smaller(16) for profile in PROFILES]
        for profile in profiles:
            documents = corpus(profile, texts, 60_000 if quick else 5_000_000, words)
            keep()
            figures["speed"][profile.name] = speeds(trainer, profile, documents, seconds, rounds=2)
            print(json.dumps(figures["speed"][profile.name]))
            keep()
        if options.size != "1b":
            rate = max(
                row.get("learnt_per_s", 0.0) for row in figures["speed"][PROFILES[1].name].values()
            )
            del trainer
            losses(figures, Trainer(size._replace(slots=size.slots // 2), device),
                   Corpus(folder, words.ids(texts), words), rate,
                   began + options.seconds, keep)  # fmt: skip
    text = markdown(figures)
    print(text)
    if options.docs:
        (DOCS / "benchmarks" / "proof.json").write_text(json.dumps(figures, indent=1) + "\n")
        write_page()


def losses(
    figures: dict[str, Any], trainer: Trainer, every: Corpus, rate: float, until: float, keep: Any
) -> None:
    """Fill in the losses of arms by budget and seed, in turn, in the seconds that are left."""
    seq_len = min(LOSS_SEQ_LEN, trainer.size.slots)
    fitting = [i for i, one in enumerate(every.ids) if 32 <= len(one) <= seq_len]
    kept = {*fitting[: min(HELD_OUT, max(len(fitting) // 2, 1))]}
    held_out = validation(trainer, [every.ids[i] for i in sorted(kept)], seq_len)
    ids = [one for i, one in enumerate(every.ids) if i not in kept]
    for step in held_out:
        trainer.learn(step)
        trainer.losses(step)
    trainer.wait()
    left = until - time.perf_counter()
    arms = list(ARMS) if left > len(ARMS) * 2 * SEEDS * 22 else list(ARMS)[:2]
    seconds = max(left / (len(arms) * 2 * SEEDS) - 2.0, 0.2)
    few, wanted = 0, rate * seconds / 5
    while few < len(ids) and wanted > 0:
        wanted -= len(ids[few])
        few += 1
    budgets = {"more text than is taken": ids, "text for a fifth of the time": ids[:few]}
    figures["seconds"], figures["documents"] = seconds, {k: len(v) for k, v in budgets.items()}
    for seed in range(SEEDS):
        for budget, some in budgets.items():
            for name in arms:
                steps, count = arm_steps(name, trainer, seq_len, every._replace(ids=some), seed)
                found = learning(trainer, steps, held_out, seconds, seed)
                steps.close()  # type: ignore[attr-defined]
                found["reads"] = count.tokens / sum(map(len, some))
                found["lost"] = count.lost / max(count.tokens, 1)
                figures["loss"].setdefault(budget, {}).setdefault(name, []).append(found)
                print(budget, name, seed, found)
                keep()


def markdown(figures: dict[str, Any]) -> str:
    """The tables of speed, one per profile, and the table of losses."""
    parts = [
        f"{figures['machine']}; {figures['model']}, {figures['slots']:,} slots a step, bfloat16, "
        f"compiled, torch {figures['versions']['torch']}."
    ]
    for profile, rows in figures["speed"].items():
        ceiling = rows[next(iter(LAYOUTS))]["learnt_per_s"]
        cells = [
            [
                name,
                f"{f['learnt_per_s'] / 1000:.0f}",
                f"{f['learnt_per_s'] / ceiling:.3f}",
                f"{100 * f['mfu']:.1f} %",
                f"{100 * f['waits']:.2f} %",
                f"{100 * f['used']:.1f} %",
                f"{100 * f['lost']:.1f} %",
            ]
            for name, f in rows.items()
            if "missing" not in f
        ]
        head = ["rows", "k learnt tokens/s", "of noise", "MFU", "device waits", "slots learnt",
                "tokens lost"]  # fmt: skip
        parts.append(f"{profile[0].upper()}{profile[1:]}:\n\n{markdown_table(head, cells)}")
    cells = []
    for budget, arms in figures["loss"].items():
        for name, runs in arms.items():
            values = [run["per_document"] for run in runs]
            cells.append([
                budget, name, f"{statistics.mean(values):.4f}",
                ", ".join(f"{value:.4f}" for value in values),
                f"{statistics.mean(run['per_token'] for run in runs):.4f}",
                f"{statistics.mean(run['learnt'] for run in runs) / 1e6:.1f}",
                f"{statistics.mean(run['reads'] for run in runs):.2f}",
                f"{100 * statistics.mean(run['lost'] for run in runs):.1f} %",
            ])  # fmt: skip
    if cells:
        head = ["text", "rows", "loss per document", "by seed", "loss per token", "M tokens learnt",
                "times read", "tokens lost"]  # fmt: skip
        parts.append(markdown_table(head, cells))
    return "\n\n".join(parts)
