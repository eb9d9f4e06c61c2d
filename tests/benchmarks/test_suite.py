"""The benchmark suite measures the stated work; docs/benchmarks/ has its figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import DOCS, main
from benchmarks.jobs import JOBS
from benchmarks.protocol import Counts, Measured, WrongOutputError
from benchmarks.records import OWN, RECORDS, rerun
from benchmarks.remote import JOBS as REMOTE_JOBS
from benchmarks.report import put_between, ratios
from benchmarks.runners.parts import Costs, Stages, Windows, Workers
from benchmarks.runners.streampack import FromMDS, FromMemory, check_batches, expect_documents
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
    with pytest.raises(WrongOutputError):
        FromMemory(workload).expect_all(Counts(tokens=7))


def test_ratios_are_of_time_per_token_in_each_round() -> None:
    (job,) = (job for job in JOBS if job.name == "memory")
    samples = []
    for number, (ours, copying) in enumerate([(3.0, 1.0), (8.0, 2.0), (9.0, 1.0)]):
        for runner, seconds, tokens in (
            ("FromMemory", ours, 100),
            ("CopyingThroughMemory", copying, 50),
        ):
            found: dict[str, Any] = {"seconds": seconds}
            if number == 0:  # only the first round checks and counts
                found["counts"] = {"tokens": tokens}
            samples.append({"runner": runner, "round": number, "found": found})
    assert ratios(job, samples, FromMemory) == [1.5, 2.0, 4.5]


def test_the_page_has_the_committed_figures(tmp_path: Path) -> None:
    copy = shutil.copytree(DOCS / "benchmarks", tmp_path / "benchmarks")
    (copy / "records.md").unlink()
    main(["--docs", "--only"], tmp_path)  # nothing is measured
    assert (copy / "records.md").read_text() == (DOCS / "benchmarks" / "records.md").read_text()
    assert set(json.loads((DOCS / "benchmarks" / "results.json").read_text())) == {
        job.name for job in JOBS
    }


def test_a_command_that_is_run_again_replaces_its_tables_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DOCS / "benchmarks" / "records.json", tmp_path)
    before = json.loads((tmp_path / "records.json").read_text())
    rerun("alignment", ["--documents", "300"], tmp_path)
    after = json.loads((tmp_path / "records.json").read_text())
    (table,) = after.pop("alignment")
    assert [row[0] for row in table["rows"]] == [row[0] for row in before["alignment"][0]["rows"]]
    assert all(row[1] in capsys.readouterr().out for row in table["rows"][:1])
    assert after == {name: tables for name, tables in before.items() if name != "alignment"}
    for name in ("gpu", "remote", "nothing"):  # with figures of its own, with a record of each job
        with pytest.raises(SystemExit):
            rerun(name, [], tmp_path)


SPEED = {  # of the README: rows of the records
    "streampack, documents in memory": ("Documents in memory", "streampack, documents in memory"),
    "TRL, `pack_dataset` (bfd_split)": ("Documents in memory", "TRL, pack_dataset bfd_split"),
    "streampack, MDS shards": ("MDS token shards", "streampack, MDS"),
    "StreamingDataset, the same shards, not packed": (
        "MDS token shards",
        "StreamingDataset, iterating",
    ),
    "streampack, raw text in JSON lines, GPT-2 vocabulary": (
        "Raw text to full batches, GPT-2",
        "streampack, JSON lines",
    ),
    "tokenizers alone, the same text, not packed": (
        "Raw text to full batches, GPT-2",
        "tokenizers alone",
    ),
    "TRL, preparation of SFTTrainer, the same text": (
        "Raw text to full batches, GPT-2",
        "TRL, preparation of SFTTrainer",
    ),
}


def test_the_readme_shows_the_speeds_of_the_records() -> None:
    readme = (DOCS.parent / "README.md").read_text().split("\n## Speed\n")[1].split("\n## ")[0]
    records = (DOCS / "benchmarks" / "records.md").read_text()
    shown = [line.strip("| ").split(" | ") for line in readme.splitlines() if "|" in line][2:]
    assert {cells[0] for cells in shown} == {*SPEED}
    for label, rate, *_ in shown:
        section, row = SPEED[label]
        (text,) = (part for part in records.split("\n### ") if part.startswith(section))
        (found,) = (line for line in text.splitlines() if line.startswith(f"| {row} |"))
        head = next(line for line in text.splitlines() if "M tokens/s" in line)
        names = [name.strip() for name in head.split("|")]
        assert found.split("|")[names.index("M tokens/s")].strip() == rate


def test_every_record_is_shown_and_every_shown_record_is_kept() -> None:
    kept = json.loads((DOCS / "benchmarks" / "records.json").read_text())
    assert sorted(kept) == sorted(r.name for r in RECORDS if r.title not in OWN)


def test_only_text_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n")
    put_between(page, "x", "new\n")
    put_between(page, "x", "newer")
    assert page.read_text() == (
        "a\n<!-- x: begin -->\n\nnewer\n\n<!-- x: end -->\nb\n<!-- y: begin -->\n"
    )


@pytest.mark.parametrize(
    "part",
    [
        Windows,
        pytest.param(Costs, marks=pytest.mark.slow),
        pytest.param(Stages, marks=pytest.mark.slow),
        pytest.param(Workers, marks=pytest.mark.slow),
    ],
)
def test_a_part_gives_figures_by_row_and_column(part: type[Measured], workload: Workload) -> None:
    runner = part(workload)
    runner.prepare()
    figures = runner.measure(0.0)
    assert all(value >= 0 for row in figures.values() for value in row.values())
    if part is Windows:
        shares = [row["lognormal"] for row in figures.values()]
        assert max(shares) <= figures["everything at once"]["lognormal"] <= 100


@pytest.mark.slow
def test_the_suite_runs_keeps_other_jobs_and_names_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.environments.FOLDER", tmp_path)
    main(["--quick", "--only", "parquet", "--out", str(tmp_path)])
    main(["--quick", "--only", "plan", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "environment is missing: python -m benchmarks.environments lightbinpack" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"parquet", "plan"}
    assert all("found" in sample for sample in results["parquet"]["samples"])
    assert printed.count("| streampack, Parquet list<int32> |") == 2


COMMANDS = {
    "cp_degrees": "--medians 665 --tokens 6000000",
    "balance": "--seq-lens 2048 --steps 3 --skip 1 --only lognormal",
    "caps": "--shards 10",
    "checked_loaders": "--only transformers datasets",
    "checked_scripts": ".",
    "dealing": "--ranks 1 --batches 2 --only shards_alike",
    "exclude": "--rounds 1",
    "fields": "--documents 200 --repeats 1",
    "films": "--megabytes 4 --frames 2",
    "images": "--count 2 --passes 1",
    "image_rows": "--documents 3000 --steps 5",
    "loss_rows": "--steps 5",
    "long_chats": "--chats 20 --seq-lens 256",
    "separate_rows": "--documents 2000",
    "layouts": "--size 0.001",
    "ledger": "--documents 300",
    "memory": "--scale 0.01 --rounds 1 --passes 1",
    **{f"remote {job}": "--small" for job in REMOTE_JOBS},
    "resume": "--scale 0.01",
    "rollouts": "--small",
    "rollout_lengths": "",
    "rollout_steps": "--seeds 0 --groups 8",
    "scale": "--shards 1000 --lanes 64 --ranks 4 --documents 3000",
    "alignment": "--documents 2000",
    "gpu": "--quick",
    "pipelines": "--median 2000",
    "state": "--documents 500 --lanes 2 --samples 1",
    "waits": "--only cost --rounds 1",
    "weights": "--steps 20 --lanes 2",
    "conversion": "--megabytes 1",
    "tokenizers": "--only GPT-2 --texts 100 --megabytes 0.1",
    "trees": "--scale 0.05 --passes 1",
    "papers.buckets": "--documents 1000",
    "papers.bucket_pool": "--documents 1000",
    "papers.online": "--documents 20",
    "papers.dense_start": "--documents 20000",
    "papers.refining": "--small",
    "papers.seamless": "--draws 1",
    "papers.in_context": "--documents 64",
    "papers.row_mates": "--documents 64",
    "papers.corpus_order": "--documents 200 --workers 0",
    "papers.recall": "--report",
    "records": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_the_docs_quote_runs(name: str, tmp_path: Path) -> None:
    options = [option.replace("_", " ") for option in COMMANDS[name].split()]
    run = [sys.executable, "-m", *f"benchmarks.{name}".split(), *options]
    done = subprocess.run(run, cwd=DOCS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_every_command_of_the_docs_is_tried() -> None:
    named = {
        word.removeprefix("benchmarks.").strip("`:,;)")
        for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
        for word in page.read_text().split()
        if word.startswith("benchmarks.") and not word.startswith("benchmarks.md")
    }
    tried = {name.split()[0] for name in COMMANDS}
    assert {name.split("`")[0] for name in named} <= {*tried, "environments"}
