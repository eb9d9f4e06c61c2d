"""The recall experiment asks only for facts in its documents; its measures are as defined."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.model import SmallGPT
from benchmarks.papers.recall import documents as made
from benchmarks.papers.recall import training
from benchmarks.papers.recall.__main__ import RESULTS
from benchmarks.papers.recall.documents import Document, Kind
from benchmarks.papers.recall.measures import HeldOut, answers_of, batches_of, same_piece
from benchmarks.papers.recall.protocol import (
    ARMS,
    COMPARISONS,
    PRESET,
    Arm,
    digest,
    planned,
)
from benchmarks.papers.recall.report import report
from benchmarks.papers.recall.training import learn, rows_of
from benchmarks.papers.results import Results
from benchmarks.papers.statistics import mean_and_error, paired
from streampack.packing import BestFitDecreasing, Concat
from tests.support.drawn import drawn

pytestmark = pytest.mark.slow

TINY = replace(PRESET, steps=20, warmup_steps=2, held_out=8, curve_every=10)


def stated(document: Document) -> dict[int, set[int]]:
    """Values by key, of the document's statements."""
    found: dict[int, set[int]] = {}
    tokens = [int(token) for token in document.tokens]
    for k, token in enumerate(tokens):
        is_key = made.FIRST_KEY <= token < made.FIRST_VALUE
        if is_key and tokens[k - 1] != made.ASK:
            found.setdefault(token, set()).add(tokens[k + 1])
    return found


def questions(document: Document, kind: Kind) -> list[tuple[int, int, int]]:
    """(position, key, answer) of every question of a kind."""
    tokens = document.tokens.astype(int)
    found = []
    for place in np.flatnonzero(document.kind == kind):
        assert tokens[place - 2] == made.ASK
        found.append((int(place), int(tokens[place - 1]), int(tokens[place])))
    return found


@drawn(50)
@given(st.integers(64, 512), st.integers(0, 2**32 - 1))
def test_every_question_is_answered_by_one_statement_before_it(length: int, seed: int) -> None:
    document = made.facts_document(np.random.default_rng(seed), length)
    assert len(document.tokens) == length
    assert document.tokens[-1] == made.EOS
    facts = stated(document)
    asked = questions(document, Kind.OWN)
    assert {key: {answer} for _, key, answer in asked} == facts
    assert len(asked) == len(facts) == (length - 1) // 8
    for place, key, answer in asked:
        back = int(document.distance[place])
        assert document.tokens[place - back] == answer
        assert document.tokens[place - back - 1] == key
        assert document.tokens[place - back - 2] != made.ASK
    assert np.array_equal(document.kind > 0, document.distance > 0)


def test_an_event_has_one_date_and_best_fit_cuts_half_of_them_always() -> None:
    rng = np.random.default_rng(1)
    for event in range(made.EVENTS):
        for _ in range(20):
            document = made.event_document(rng, event)
            tokens = document.tokens.astype(int)
            name = int(np.flatnonzero(tokens == made.EVENT)[0]) + 1
            date = int(np.flatnonzero(tokens == made.EVENT)[1]) + 1
            assert len(tokens) == made.EVENT_LENGTH
            assert tokens[name] == made.FIRST_EVENT + event
            assert tokens[date] == made.FIRST_DATE + event
            assert date - name == document.distance[date] == made.EVENT_DISTANCE
            cut = document.kind[date] == Kind.EVENT_CUT
            assert cut == (name < 256 <= date - 1)
            assert not cut or name - 1 >= made.EVENT_LENGTH - 256  # in Seamless's second row
    assert {d.tokens[d.kind > 0][-1] for d in made.event_prompts(rng, 2)}


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_rows_know_which_answers_have_their_statement(arm: Arm) -> None:
    dataset = rows_of(arm, 0, replace(TINY, steps=2))
    batch = next(iter(dataset))
    there = same_piece(batch)
    ids, distance = batch.input_ids, batch.fields["distance"].long()
    for row, column in there.nonzero().tolist():
        back = column - int(distance[row, column])
        if int(batch.fields["kind"][row, column]) == Kind.OWN:
            assert ids[row, back] == ids[row, column]
            assert ids[row, back - 1] == ids[row, column - 1] or back == 0
    counted = batch.labels != -100
    assert not (counted & (batch.fields["kind"] == 0)).any()
    runs_through = batch.position_ids == torch.arange(batch.seq_len)
    tokens = batch.document_ids >= 0
    assert bool(runs_through[tokens].all()) == (arm.attention == "row")


def model() -> SmallGPT:
    torch.manual_seed(0)
    return SmallGPT(PRESET.model)


def test_a_document_alone_does_not_see_the_one_in_front() -> None:
    held_out = HeldOut(8, 256)
    apart = answers_of(model(), held_out.behind["document"], behind=True)
    across = answers_of(model(), held_out.behind["row"], behind=True)
    assert torch.equal(apart.distance, across.distance)
    assert not torch.allclose(apart.loss, across.loss)
    rng = np.random.default_rng(3)
    second = made.facts_document(rng, 128)
    losses = []
    for seed in range(2):
        front = made.facts_document(np.random.default_rng(seed), 128)
        for attention in ("document", "row"):
            rows = batches_of([front, second], Concat(seq_len=256), attention, 256)
            losses.append(answers_of(model(), rows, behind=True).loss)
    assert torch.allclose(losses[0], losses[2], atol=1e-5)
    assert not torch.allclose(losses[1], losses[3], atol=1e-5)


def test_a_run_learns_repeats_to_the_bit_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "WINDOW_TOKENS", 50_000)
    held_out = HeldOut(TINY.held_out, TINY.seq_len)
    results = Results.read(tmp_path / "runs.jsonl", digest(TINY))
    for arm in ARMS:
        results.add(learn(arm, 0, TINY, held_out))
    again = learn(ARMS[0], 0, TINY, held_out)
    assert again["measures"] == results.runs[0]["measures"]
    assert again["curve"][1] < again["curve"][0]
    read = Results.read(tmp_path / "runs.jsonl", digest(TINY))
    assert [run["arm"] for run in read.runs] == [arm.name for arm in ARMS]
    assert read.has("Concat", 0)
    assert not read.has("Concat", 1)
    for comparison in COMPARISONS:
        assert read.of(comparison.arm, comparison.measure)
        assert read.of(comparison.to, comparison.to_measure or comparison.measure)
    report(read)
    assert "8 of 40 runs" in capsys.readouterr().out


def test_the_committed_results_are_of_the_committed_protocol() -> None:
    results = Results.read(RESULTS, digest(PRESET))
    runs = [(run["arm"], run["seed"]) for run in results.runs]
    assert len(set(runs)) == len(runs)
    assert set(runs) == {(arm.name, seed) for arm, seed in planned()}


def test_the_docs_have_rows_of_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    report(Results.read(RESULTS, digest(PRESET)))
    printed = {line for line in capsys.readouterr().out.splitlines() if line.startswith("|")}
    page = (Path(__file__).parents[2] / "docs" / "benchmarks" / "records.md").read_text()
    section = page.split("\n## Recall\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if "±" in line]
    assert len(rows) == len(COMPARISONS)
    assert set(rows) <= printed


def test_packing_whole_documents_leaves_every_question_answerable() -> None:
    rng = np.random.default_rng(5)
    whole = [made.facts_document(rng, int(length)) for length in rng.integers(64, 257, 40)]
    for batch in batches_of(whole, BestFitDecreasing(seq_len=256), "row", 1024):
        own = batch.fields["kind"] == Kind.OWN
        assert torch.equal(same_piece(batch), own)


def test_a_paired_interval_by_hand() -> None:
    """Of 1 to 5: mean 3, deviation sqrt(2.5), error sqrt(0.5), t 4.243, quantile 2.776."""
    found = paired([1, 2, 3, 4, 5])
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.776 * math.sqrt(0.5), rel=1e-3)
    assert found.p == pytest.approx(0.01324, abs=1e-5)
    assert math.isnan(paired([1.0]).p)
    assert paired([2.0, 2.0]).p == 0
    assert paired([0.0, 0.0]).p == 1
    mean, error = mean_and_error([1, 2, 3])
    assert mean == 2
    assert error == pytest.approx(1 / math.sqrt(3))
