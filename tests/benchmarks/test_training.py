"""The GPU experiment measures what it says and goes on where it stopped, in runs of seconds."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.papers.model import Size, SmallGPT, label_losses
from benchmarks.papers.results import Results
from benchmarks.papers.training import __main__ as command
from benchmarks.papers.training.corpus import Corpus, package_files, tokenized
from benchmarks.papers.training.probes import Probes
from benchmarks.papers.training.protocol import (
    ARMS,
    PRESETS,
    Arm,
    planned,
)
from benchmarks.papers.training.report import report
from benchmarks.papers.training.run import CLOCK_EVERY, Run
from streampack import PackedDataset, TokenRules, Topology

TINY = replace(
    PRESETS["rehearsal"],
    size=Size(vocab_size=400, width=16, layers=1, heads=2),
    seq_len=64,
    batch_size=2,
    tokens=64 * 2 * 45,
    probes=4,
    seeds=(0, 1),
)


def made_up_files() -> list[tuple[str, str]]:
    """Forty packages; every file has an identifier of its own, several times."""
    rng = np.random.default_rng(0)
    return [
        (f"lib/p{package}", f"rare_name_{package}_{file} = value\n" * int(rng.integers(2, 40)))
        for package in range(40)
        for file in range(6)
    ]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tokenized(made_up_files(), TINY.size.vocab_size)


@pytest.fixture(scope="module")
def probes(corpus: Corpus) -> Probes:
    return Probes(TINY, corpus, "cpu")


def test_a_corpus_has_each_text_of_the_installed_packages_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "lib" / "site-packages"
    for folder in (tmp_path / "lib" / "json", inner / "one" / "deep", inner / "two"):
        folder.mkdir(parents=True)
        (folder / "same.py").write_text("a shared licence " * 10)
        (folder / "own.h").write_text(f"{folder} " * 10)
        (folder / "image.png").write_text("x" * 100)
        (folder / "tiny.py").write_text("x")
    paths = {"stdlib": tmp_path / "lib", "purelib": inner, "platlib": inner}
    monkeypatch.setattr("sysconfig.get_paths", lambda: {k: str(v) for k, v in paths.items()})
    files = package_files(1 << 20)
    assert len(files) == len({text for _, text in files}) == 4
    assert {package for package, _ in files} == {
        "lib/json", "site-packages/one", "site-packages/two",
    }  # fmt: skip
    assert len(package_files(10)) == 1


def test_the_same_tokens_count_in_every_context(probes: Probes) -> None:
    def answers(name: str) -> list[int]:
        ids = [batch.labels[batch.labels != -100] for batch in probes.sets[name]]
        return sorted(torch.cat(ids).tolist())

    assert answers("context of a row") == answers("context of an eighth")
    assert answers("0 examples") == answers("8 examples")
    assert (
        answers("beginnings")
        == answers("behind an unrelated document")
        == answers("behind a related document")
    )


@pytest.mark.parametrize("name", ["Concat", "Concat, similar"])
def test_a_run_in_pieces_is_the_run_in_one(name: str, corpus: Corpus, tmp_path: Path) -> None:
    arm = Arm(name=name, seq_len=TINY.seq_len)
    whole = Run(arm, 0, TINY, corpus, "cpu", tmp_path / "whole.pt")
    assert whole.go(math.inf)
    pieces = 0
    while True:
        part = Run(arm, 0, TINY, corpus, "cpu", tmp_path / "part.pt")
        if part.go(time.monotonic()):
            break
        pieces += 1
        assert part.step == pieces * CLOCK_EVERY
    assert pieces == 2
    assert part.step == whole.step
    assert part.rows == whole.rows
    assert part.curve == whole.curve
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, part.model.state_dict()[key]), key


def test_every_arm_learns_equal_tokens_and_the_command_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(TINY, tokens=64 * 2 * 25, seeds=(0,))
    monkeypatch.setitem(PRESETS, "rehearsal", tiny)
    monkeypatch.setattr(command, "package_files", lambda _: made_up_files())
    file = tmp_path / "runs.jsonl"
    command.experiment("rehearsal", "cpu", file, tmp_path, time.monotonic())
    assert not Results.read(file).runs
    assert "stopped at step 20" in capsys.readouterr().out
    monkeypatch.setattr(command, "package_files", lambda _: [])  # the corpus was kept
    results = command.experiment("rehearsal", "cpu", file, tmp_path, math.inf)
    for run in results.runs:
        placed = run["composition"]["placed"]
        assert tiny.tokens <= placed < tiny.tokens + 2 * TINY.seq_len * 2
    assert {(run["arm"], run["seed"]) for run in results.runs} == {(name, 0) for name in ARMS}
    assert not list(tmp_path.glob("*.pt"))
    report(results, tiny)
    printed = capsys.readouterr().out
    assert printed.count("\n| Buckets |") == 3
    assert "nan" not in printed


def test_the_committed_rehearsal_is_of_the_committed_protocol() -> None:
    results = Results.read(Path(command.__file__).with_name("rehearsal.jsonl"))
    runs = [(run["arm"], run["seed"]) for run in results.runs]
    assert len(set(runs)) == len(runs)
    assert set(runs) <= {(arm.name, seed) for arm, seed in planned(PRESETS["rehearsal"])}


@pytest.mark.gpu
def test_varlen_attention_is_that_of_the_mask(corpus: Corpus) -> None:
    size = Size(vocab_size=400, width=128, layers=2, heads=2)
    torch.manual_seed(0)
    model = SmallGPT(size)
    for attention in ("row", "document"):
        dataset = PackedDataset(
            corpus.train, seq_len=256, batch_size=2, lanes=1, topology=Topology(),
            attention=attention, token_rules=TokenRules(eos_id=corpus.eos_id),
        )  # fmt: skip
        for batch in islice(dataset, 2):
            by_mask = label_losses(model.cpu(), batch)
            by_ends = label_losses(model.cuda(), batch.to("cuda")).cpu()
            assert torch.allclose(by_mask, by_ends, atol=0.1)
