"""The reports of lanes, as ranks exchange them."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.deals.report_exchange import MemoryExchange
from streampack.deals.rule import Report
from streampack.workers.shared_exchange import SharedExchange
from tests.support.forked import Host

NUMBER = st.integers(0, 1 << 61)


@given(st.builds(Report, NUMBER, NUMBER, NUMBER))
def test_ranks_exchange_exactly_the_reports_of_the_exchange(report: Report) -> None:
    exchange, other = MemoryExchange(3, 1), MemoryExchange(3, 1)
    exchange.load(0, [], 4)  # a deal that gave nothing
    exchange.put(4, 1, 0, report)
    exchange.end(2, 3)
    known = exchange.filled(4)
    other.merge(4, known.astype(np.float32).astype(np.int64))
    assert (other.entries(4) == known).all()
    close = np.array(report) + 1
    assert (np.abs(known[1, 0] - close) <= close * 2.0**-23).all()


KILLED = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from streampack.workers.shared_exchange import SharedExchange
SharedExchange(3, 1, "killed").entries(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_exchange_that_a_killed_job_left_is_removed_by_the_next_and_live_ones_stay(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exchanges"
    folder.mkdir()
    (tmp_path / "killed.py").write_text(KILLED)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    live = SharedExchange(3, 1, "live")
    live.entries(0)
    assert host.run(tmp_path / "killed.py", folder)[0] == [-signal.SIGKILL]
    assert len(list(folder.iterdir())) == 2
    new = SharedExchange(3, 1, "new")
    new.entries(0)
    assert {path.name.rpartition("-")[2] for path in folder.iterdir()} == {"live", "new"}
    other = SharedExchange(3, 1, "live")
    live.put(1, 2, 0, Report(5, 6, 7))
    assert other.entries(1)[2, 0].tolist() == [6, 7, 8]
    for exchange in (live, new, other):
        exchange.close(remove=True)
    assert not list(folder.iterdir())


def test_reports_outlive_the_workers_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loop = SharedExchange(3, 1, "run", kept=True)
    worker = SharedExchange(3, 1, "run", kept=True)
    worker.put(1, 2, 0, Report(5, 6, 7))
    worker.close()  # it died
    del worker
    other = SharedExchange(3, 1, "other")
    other.entries(0)  # another job removes files that nobody holds
    assert loop.entries(1)[2, 0].tolist() == [6, 7, 8]
    for exchange in (loop, other):
        exchange.close(remove=True)
    assert not list(tmp_path.iterdir())
