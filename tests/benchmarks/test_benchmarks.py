"""The benchmark suite measures what it says, at sizes of seconds."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import __main__ as suite
from benchmarks import device_path
from benchmarks.harness import Sample
from benchmarks.jobs import JOBS
from benchmarks.protocol import Counts, WrongOutputError
from benchmarks.runners.limits import CopyingThroughMemory
from benchmarks.runners.streampack import FromMDS, FromMemory, check_batches, expect_documents
from benchmarks.summary import lines_of, reached_of
from benchmarks.workloads import Workload


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    made = Workload("lognormal", tmp_path, scale=0.005)
    made.make()
    return made


def test_workloads_are_the_same_in_every_process(tmp_path: Path, workload: Workload) -> None:
    again = Workload("lognormal", tmp_path / "again", scale=0.005)
    again.make()
    assert np.array_equal(again.lengths, workload.lengths)
    assert again.checksum == workload.checksum
    assert sum(map(len, workload.documents)) == workload.num_tokens


@pytest.mark.parametrize("runner", [FromMemory, FromMDS])
def test_streampack_delivers_the_workload(workload: Workload, runner: type[FromMemory]) -> None:
    made = runner(workload)
    made.prepare()
    counts = made.check()
    assert (counts.tokens, counts.documents) == (workload.num_tokens, len(workload.lengths))


def test_the_oracle_of_the_benchmarks_notices_a_wrong_token(workload: Workload) -> None:
    pieces: dict[Any, list[Any]] = defaultdict(list)
    check_batches(FromMemory(workload).loader(provenance=True), pieces)
    expect_documents(pieces, workload.documents)
    next(iter(pieces.values()))[0][2][0] ^= 1
    with pytest.raises(WrongOutputError):
        expect_documents(pieces, workload.documents)
    with pytest.raises(WrongOutputError, match="delivered 7 tokens"):
        FromMemory(workload).expect_all(Counts(tokens=7))


def test_ratios_are_medians_over_rounds_of_time_per_slot(workload: Workload) -> None:
    (job,) = (job for job in JOBS if job.name == "memory")
    samples = []
    for number, (ours, copying) in enumerate([(3.0, 1.0), (8.0, 2.0), (9.0, 1.0)]):
        for runner, seconds, slots in (
            (FromMemory, ours, 100),
            (CopyingThroughMemory, copying, 50),
        ):
            counts = {"slots": slots, "tokens": 90, "documents": 9, "documents_cut": 1}
            found = {"seconds": seconds, "counts": counts, "peak_mib": 1.0, "first_batch_s": 0.1}
            samples.append(Sample("memory", runner.__name__, "lognormal", number, found))
    (reached,) = reached_of(job, samples, "lognormal")
    assert (reached.value, reached.low, reached.high) == (2.0, 1.5, 4.5)
    assert reached.met
    lines = lines_of(job, samples, workload)
    assert {line.runner: line.x_copying for line in lines}[FromMemory] == 2.0
    assert [line.error for line in lines].count("not run") == len(job.runners) - 2


@pytest.mark.slow
def test_the_suite_runs_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.environments.FOLDER", tmp_path)
    jobs = ["plan", "parquet", "parquet-tokenizing"]
    suite.main(["--quick", "--only", *jobs, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "environment is missing: python -m benchmarks.environments lightbinpack" in printed
    assert "| streampack, Parquet list<int32> |" in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (parquet,) = (t for t in results["targets"] if "Parquet" in t["target"])
    assert parquet["reached"] > 0
    assert (tmp_path / "out" / "picture.png").stat().st_size > 5000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_loader_stalls_a_100_million_parameter_model_for_less_than_a_hundredth() -> None:
    pytest.importorskip("transformers")
    model = device_path.make_model(torch.device("cuda"), tiny=False)
    assert 90e6 < sum(parameter.numel() for parameter in model.parameters()) < 140e6
    share, _ = device_path.stall(model, 4096, 50)
    assert share < 0.01
