"""The first fetch of a process is seen in the log if it takes long, and no later one is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from streampack import PackedDataset, PackedLoader, notices, sources
from streampack.metrics import fetched
from streampack.remote import first_fetch
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer

WAIT_S = 60.0


class Lines(logging.Handler):
    """The lines about a first fetch; `seen` is set by the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.lines = threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.seen.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lines]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(notices.tempfile, "tempdir", None)
    monkeypatch.setattr(notices, "_given", set())
    monkeypatch.setattr(first_fetch, "FIRST_LINE_S", 0.05)
    fetched.clear()
    first_fetch.first_fetch._made.clear()
    found = Lines()
    first_fetch.logger.addHandler(found)
    yield found
    first_fetch.logger.removeHandler(found)
    first_fetch.first_fetch._made.clear()


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "streampack-first-fetch":
            thread.join(WAIT_S)


def source(http: HTTPServer, storage: Storage) -> sources.JSONL:
    (http.folder / "a.jsonl").write_text('{"tokens": [1, 2, 3]}\n' * 2000)
    return sources.JSONL(f"{http.url}/a.jsonl?secret=1", tokens="tokens", storage=storage)


def test_a_long_first_fetch_is_logged_until_documents_come(
    http: HTTPServer, storage: Storage, lines: Lines
) -> None:
    http.gate = lambda _: lines.seen.wait(WAIT_S) and None
    batches = iter(PackedLoader(PackedDataset(source(http, storage), seq_len=64)))
    next(batches)
    assert lines.seen.is_set()
    assert all(f"{http.url}/a.jsonl:" in line and "secret" not in line for line in lines.lines)
    settle()
    count = len(lines.lines)
    list(batches)
    assert len(lines.lines) == count


def test_a_short_first_fetch_and_later_ones_are_not_logged(
    http: HTTPServer, storage: Storage, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = threading.Event()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: taken.wait(WAIT_S))
    monkeypatch.setattr(first_fetch, "time", clock)
    batches = iter(PackedLoader(PackedDataset(source(http, storage), seq_len=64)))
    next(batches)
    taken.set()
    settle()
    list(batches)
    assert not lines.lines
    assert not [t for t in threading.enumerate() if t.name == "streampack-first-fetch"]
