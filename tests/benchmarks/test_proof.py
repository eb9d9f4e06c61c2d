"""The proof on a CPU: steps of every arm have one shape, and all tables are made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.proof.command import SIZES, markdown, prove
from benchmarks.proof.model import SEGMENTS, attend
from benchmarks.proof.rows import ARMS, Count, cropped_rows, on, ours
from benchmarks.proof.texts import PROFILES, Corpus, corpus, files, tokenizer

DOCS = Path(__file__).parents[2] / "docs"
SIZE = SIZES["quick"]
PROFILE = PROFILES[1].smaller(16)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    texts = files(300_000)
    folder = tmp_path_factory.mktemp("proof")
    return corpus(PROFILE, texts, 20_000, tokenizer(folder, SIZE.vocabulary, texts))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ARMS)
def test_steps_have_one_shape_and_segments_that_end_with_the_batch(name: str, some: Corpus) -> None:
    if "TRL" in name:
        pytest.importorskip("trl", reason="TRL is not installed")
    for step in islice(on("cpu", ARMS[name](SIZE, PROFILE.seq_len, some, Count())), 20):
        assert {len(x) for x in step[:3]} == {SIZE.slots}
        assert len(step.cu_seqlens) == SEGMENTS + 1
        assert step.cu_seqlens[-1] == SIZE.slots
        assert step.cu_seqlens.diff().max() <= step.longest
        assert step.learnt == int((step.labels != -100).sum())


def test_attention_of_a_step_stays_in_its_segments(some: Corpus) -> None:
    step = next(ours(SIZE, PROFILE.seq_len, some, Count()))
    q, k, v = torch.randn(3, SIZE.slots, 2, 16)
    before = attend(q, k, v, step)
    cut = int(step.cu_seqlens[1])
    v[:cut] = 0
    assert torch.equal(before[cut:], attend(q, k, v, step)[cut:])
    assert not torch.equal(before[:cut], attend(q, k, v, step)[:cut])


def test_cropped_rows_are_full_and_lost_tokens_are_counted() -> None:
    rng = np.random.default_rng(0)

    def stream() -> Iterator[np.ndarray]:
        while True:
            yield rng.integers(1, 100, int(rng.integers(5, 90)))

    count = Count()
    rows = list(islice(cropped_rows(64, stream(), count, buffer=20), 200))
    assert {len(row) for row in rows} == {65}
    assert count.tokens - count.lost == 200 * 65


@pytest.mark.slow
def test_the_proof_measures_speed_and_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proof.json"
    prove(argparse.Namespace(size="quick", seconds=4.0, out=out, docs=False))
    figures = json.loads(out.read_text())
    assert list(figures["speed"]) == [profile.name for profile in PROFILES]
    assert all(len(runs) == 3 for arms in figures["loss"].values() for runs in arms.values())
    assert markdown(figures) in capsys.readouterr().out
