"""Progress reports of a run: the figures are true, and batches do not change."""

from __future__ import annotations

import multiprocessing
import os
import pty
import re
import sys
from pathlib import Path

import pytest

from streampack import PackedDataset, PackedLoader, Topology
from streampack.forecasts.estimation import Estimate
from streampack.forecasts.progress import Moment, progress_words

DOCUMENTS = [[7] * 50] * 90


def loader(topology: Topology | None = None) -> PackedLoader:
    dataset = PackedDataset(DOCUMENTS, seq_len=64, batch_size=4, topology=topology or Topology())
    return PackedLoader(dataset)


def test_the_loop_gets_the_same_batches_and_a_line_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = [batch.input_ids.tolist() for batch in loader()]
    mine = loader()
    assert [batch.input_ids.tolist() for batch in mine.progress(every_s=0)] == expected
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(expected) + 1
    steps = mine.estimate_steps()
    assert steps is not None
    assert lines[0].startswith(f"batch 1 of about {steps.steps:,} (")
    assert lines[-1].startswith(f"batch {len(expected)} of about {steps.steps:,} (")
    assert "4.5k tokens" in lines[-1]


def test_groups_are_counted_as_their_batches(capsys: pytest.CaptureFixture[str]) -> None:
    mine = loader()
    batches = sum(len(group) for group in mine.progress(mine.accumulate(3)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"batch {batches} of ")


def test_after_a_resume_it_counts_from_the_beginning_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = loader()
    for _ in zip(range(5), first, strict=False):
        pass
    second = loader()
    second.load_state_dict(first.state_dict())
    next(iter(second.progress(every_s=0)))
    assert capsys.readouterr().err.startswith("batch 6 of ")


def test_other_ranks_log_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert next(iter(loader(Topology(1, 2)).progress(every_s=0))).num_tokens
    monkeypatch.setenv("RANK", "1")  # beside rank 0, with the same batches
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(loader().progress(every_s=0))).num_tokens
    assert capsys.readouterr().err == ""


def test_an_endless_run_has_no_share_and_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    endless = PackedLoader(
        PackedDataset(DOCUMENTS, seq_len=64, epochs=None, lanes=1, topology=Topology())
    )
    next(iter(endless.progress(every_s=0)))
    assert re.match(r"batch 1 · 4\d\d tokens · ", capsys.readouterr().err)


def test_figures_are_those_between_the_two_moments() -> None:
    before, now = Moment(100.0, 10, 1_000, 2.0), Moment(110.0, 30, 41_000_000, 2.5)
    assert progress_words(before, now, Estimate(130, 4)) == (
        "batch 30 of about 130 (23%) · 41M tokens · 4.1M tokens/s · 5.0% waiting · 0:00:50 left"
    )
    assert progress_words(before, now, None, world_size=8) == (
        "batch 30 · 41M tokens per rank · 4.1M tokens/s per rank · 5.0% waiting"
    )


def loop_on(terminal: int, errors: Path) -> None:
    """Run a loop with progress in this process, with a terminal as its standard output."""
    os.dup2(terminal, 1)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), errors.open("w")
    os.environ.update(TERM="xterm", COLUMNS="150")
    for _ in loader().progress():
        print("from the loop")
    sys.stdout.flush()


def test_on_a_terminal_it_is_drawn_in_place_and_prints_stay(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=loop_on, args=(theirs, tmp_path / "errors"))
    process.start()
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # on Linux: all writers have closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    process.join()
    assert process.exitcode == 0
    assert "tokens/s" not in (tmp_path / "errors").read_text()
    assert b"from the loop" in shown
    assert b"4.5k tokens" in shown
    assert "\u2501".encode() in shown  # the bar


def test_without_rich_there_are_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    next(iter(loader().progress(every_s=0)))
    assert "tokens/s" in capsys.readouterr().err
