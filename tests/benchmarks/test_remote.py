"""The proxy before a store counts, and tells how full its line was."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from benchmarks.records import RECORDS
from benchmarks.remote import JOBS
from benchmarks.slow_store import Request, fullness, round_trips, slow_store
from tests.support.servers import http_server


def test_idle_times_in_which_no_reader_waits_are_left_out_of_the_line() -> None:
    idle = [(1.0, 3.0), (6.0, 7.0), (9.0, 10.0)]
    waits = [(2.5, 2.75, "a"), (2.0, 2.6, "b"), (6.5, 9.5, "c")]
    line = fullness(idle, waits, since=2.0, until=10.0)
    assert line.gaps == [(2.0, 2.75), (6.5, 7.0), (9.0, 9.5)]
    assert line.idle_s == pytest.approx(1.25)
    assert line.share == pytest.approx(1 - 1.75 / (8 - 1.25))
    all_idle = fullness(idle, None, since=2.0, until=10.0)
    assert (all_idle.share, all_idle.idle_s) == (pytest.approx(1 - 3 / 8), 0)
    assert fullness(idle, [], since=2.0, until=10.0).share == 1


def test_the_proxy_counts_bytes_and_keeps_requests_with_their_ranges(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(5000))
    with http_server(tmp_path) as server:
        behind = int(server.url.rpartition(":")[2])
        with slow_store(behind, delay_s=0.0, bytes_per_s=1e12) as store:
            url = f"http://127.0.0.1:{store.port}/a.bin"
            ranged = urllib.request.Request(url, headers={"Range": "bytes=10-1009"})
            assert len(urllib.request.urlopen(url).read()) == 5000
            assert len(urllib.request.urlopen(ranged).read()) == 1000
            assert 6000 < store.served["bytes"] < 8000
            first, second = store.asked
            assert [(one.path, one.range) for one in store.asked] == [
                ("/a.bin", ""),
                ("/a.bin", "10-1009"),
            ]
            assert first.asked_s <= first.answered_s <= second.asked_s <= second.answered_s
            assert round_trips(store.asked, second.answered_s) == 2
            store.forget()
            assert not store.served
            assert not store.asked


def test_round_trips_are_requests_that_follow_one_another() -> None:
    times = [(0, 1), (1.1, 2), (1.2, 2.1), (2.1, 3), (1.5, 9), (3, 4), (4, 5)]
    requests = [Request("", "", *map(float, pair)) for pair in sorted(times)]
    assert [round_trips(requests, until) for until in (0.5, 1, 3, 4, 5, 9)] == [0, 1, 3, 4, 5, 5]


def test_every_job_has_a_record() -> None:
    kept = {record.name for record in RECORDS if record.name.startswith("remote ")}
    assert kept == {f"remote {job}" for job in JOBS if job != "line"}  # `peers` has it too
