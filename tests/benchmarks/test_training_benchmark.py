"""The training experiment of benchmarks/papers measures what it says, in runs of seconds."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.papers import training
from benchmarks.papers.training import HeldOut, loader_of, train, unfinished
from benchmarks.papers.training_corpus import Corpus, functions, tokenized
from benchmarks.papers.training_model import SmallGPT, mean_loss
from benchmarks.papers.training_protocol import PRESETS, Arm, all_arms, protocol_digest
from benchmarks.papers.training_report import mean_and_error, report
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing, Pad

TINY = replace(
    PRESETS["cpu"], vocab_size=300, seq_len=16, rows=2, window_rows=32, width=8, layers=1, heads=1,
    warmup_steps=2, steps=4, tokens=60, seeds=(0, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Functions of 4 to 80 tokens, four to a file."""
    rng = np.random.default_rng(0)
    texts = [[f"f{n} " * int(rng.integers(1, 26)) for n in range(k, k + 4)] for k in range(60)]
    return tokenized(texts, TINY.vocab_size)


@pytest.fixture(scope="module")
def held_out(corpus: Corpus) -> HeldOut:
    return HeldOut(TINY, corpus, "cpu")


def model_of(corpus: Corpus) -> SmallGPT:
    torch.manual_seed(0)
    model = SmallGPT(corpus.vocab_size, width=8, layers=2, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():  # so that attention weighs
            parameter.mul_(5)
    return model


def test_functions_are_taken_whole_and_outermost() -> None:
    source = """
    import a
    class B:
        @a.b
        def c(self):
            def d(): pass
            return d
    async def e(): ...
    """
    assert list(functions(textwrap.dedent(source))) == [
        "@a.b\ndef c(self):\n    def d(): pass\n    return d\n",
        "async def e(): ...\n",
    ]


def test_a_file_is_in_training_or_in_validation_never_in_both() -> None:
    files = [[f"only_{n} a", f"only_{n} b"] for n in range(100)]
    split = tokenized(files, 400)
    assert len(split.validation) == 2 * 5
    assert len(split.train) == 2 * 95
    names = [{d.tobytes()[:-4] for d in part} for part in (split.train, split.validation)]
    assert not names[0] & names[1]
    assert tokenized(files, 400).digest == split.digest


def test_validation_in_packed_rows_is_each_document_alone(
    corpus: Corpus, held_out: HeldOut
) -> None:
    model = model_of(corpus)
    total, count = 0.0, 0
    for document in corpus.validation:
        for start in range(0, len(document), TINY.seq_len):
            window = document[start : start + TINY.seq_len]
            if len(window) > 1:
                alone = loader_of(
                    [window], BestFitDecreasing(seq_len=TINY.seq_len), "document",
                    replace(TINY, rows=1), corpus, window_rows=4, epochs=1,
                )  # fmt: skip
                labels = len(window) - 1
                total += mean_loss(model, alone) * labels
                count += labels
    assert mean_loss(model, held_out.alone) == pytest.approx(total / count, rel=1e-5)


def test_joined_rows_hold_the_same_documents_and_attend_across(
    corpus: Corpus, held_out: HeldOut
) -> None:
    ids = [
        torch.cat([batch.input_ids[batch.document_ids >= 0] for batch in part]).sort().values
        for part in (held_out.alone, held_out.joined)
    ]
    assert torch.equal(*ids)
    assert all(batch.max_seqlen == TINY.seq_len for batch in held_out.joined)
    model = model_of(corpus)
    batch = held_out.joined[0]
    before = model(batch)[TINY.seq_len - 2]  # the last label of the first row
    batch.input_ids[0, 0] += 1
    assert model(batch)[TINY.seq_len - 2] != before
    batch.input_ids[0, 0] -= 1


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_pad_with_atoms_of_a_row_is_the_same_with_either_attention(
    corpus: Corpus, factor: float
) -> None:
    packer = Pad(seq_len=TINY.seq_len, atom=int(factor * TINY.seq_len))
    streams = [
        loader_of(corpus.train, packer, attention, TINY, corpus, window_rows=32)
        for attention in ("document", "row")
    ]
    for apart, across in islice(zip(*streams, strict=True), 8):
        for field in ("input_ids", "labels", "position_ids", "cu_seqlens"):
            assert torch.equal(getattr(apart, field), getattr(across, field)), field


def test_every_arm_runs_and_is_read_where_it_should_be(
    corpus: Corpus, held_out: HeldOut, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = all_arms()
    assert len(arms) == 2 * 12 - 3
    runs = [train(arm, seed, TINY, corpus, held_out, "cpu") for arm in arms for seed in (0, 1)]
    for run in runs:
        tokens, steps = run["points"]["equal tokens"], run["points"]["equal steps"]
        assert steps["step"] == TINY.steps
        assert tokens["tokens"] >= TINY.tokens > tokens["tokens"] - TINY.rows * TINY.seq_len
        assert steps["alone"] > 0
        assert steps["joined"] > 0
    described = training.describe(corpus.train, TINY.seq_len)
    report({
        "preset": {"unit": "function", "seq_len": 16, "tokens": 60, "steps": 4, "rows": 2},
        "corpus": {"train": described, "validation": described},
        "runs": runs,
    })  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.count("\n| Seamless |") == 5
    assert "nan" not in printed


def test_an_arm_that_learns_slowly_goes_on_to_equal_tokens(
    corpus: Corpus, held_out: HeldOut
) -> None:
    arm = Arm(packer="Pad", attention="document", factor=1.0)
    sizes = replace(TINY, tokens=300)
    points = train(arm, 0, sizes, corpus, held_out, "cpu")["points"]
    assert (
        points["equal steps"]
        == train(arm, 0, TINY, corpus, held_out, "cpu")["points"]["equal steps"]
    )
    assert points["equal tokens"]["step"] > TINY.steps
    assert points["equal tokens"]["tokens"] >= 300


def test_a_run_repeats_to_the_bit(corpus: Corpus, held_out: HeldOut) -> None:
    arm = Arm(packer="Concat", attention="row", factor=0.5)
    once, again = (train(arm, 3, TINY, corpus, held_out, "cpu")["points"] for _ in range(2))
    assert once == again


def test_an_interrupted_experiment_goes_on_and_takes_no_runs_of_another(
    corpus: Corpus, tmp_path: Path
) -> None:
    file = tmp_path / "runs.jsonl"
    protocol = protocol_digest(TINY, corpus)
    arms = all_arms()
    assert len(list(unfinished(arms, (0, 1), protocol, file))) == 2 * len(arms)
    done = {"protocol": protocol, "arm": "Pad 2 x", "attention": "either", "seed": 0}
    file.write_text(json.dumps(done) + "\n")
    left = [(arm.name, seed) for arm, seed in unfinished(arms, (0, 1), protocol, file)]
    assert len(left) == 2 * len(arms) - 1
    assert ("Pad 2 x", 0) not in left
    other = protocol_digest(replace(TINY, steps=5), corpus)
    with pytest.raises(StateError, match=f"{protocol}, and this is {other}"):
        list(unfinished(arms, (0,), other, file))


def test_errors_are_standard_errors_of_the_mean() -> None:
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert error == pytest.approx(1 / np.sqrt(3))


def test_the_committed_results_are_of_the_committed_protocol() -> None:
    results = json.loads(training.RESULTS.read_text())
    preset = json.loads(json.dumps(asdict(PRESETS["cpu"])))
    assert results["preset"] == preset
    runs = [(run["arm"], run["attention"], run["seed"]) for run in results["runs"]]
    planned = {
        (arm.name, arm.said_attention, seed) for arm in all_arms() for seed in preset["seeds"]
    }
    assert len(set(runs)) == len(runs)
    assert set(runs) == planned
    assert {run["protocol"] for run in results["runs"]} == {results["protocol"]}
