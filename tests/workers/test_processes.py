"""Worker processes: none outlives its loop, none takes the loop's signals, none is waited for."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import Hook, PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError
from tests.support.forked import Host
from tests.support.memory_source import MemorySource
from tests.support.runs import child_processes, identity, make_dataset


def test_arrays_of_a_workers_batch_are_the_loops_to_write() -> None:
    (batch, *_) = PackedLoader(make_dataset(), num_workers=1)
    packed = batch._packed
    assert packed.tokens.flags.writeable
    assert packed.cu_seqlens.flags.writeable


STUCK = """
import multiprocessing, os, signal, sys, threading, time
from pathlib import Path
from streampack import Hook, PackedLoader
from streampack.threads import in_threads
from tests.support.runs import make_dataset

def block(documents, seeds):
    if documents.origin["index"].max() > 100:
        threading.Event().wait()  # as storage that never answers
    return documents
"""
ORPHANS = """
def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

def loop(writing):
    dataset = make_dataset(map=Hook("block", block))
    loader = PackedLoader(dataset, num_workers=2, multiprocessing_context=sys.argv[1])
    for batch in loader:
        print(*(process.pid for process in multiprocessing.active_children()), file=writing, flush=True)

if __name__ == "__main__":
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        loop(open(writing, "w"))
    workers = [int(pid) for pid in open(reading).readline().split()]
    assert len(workers) == 2
    assert all(map(is_running, workers))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
"""  # noqa: E501


@pytest.mark.parametrize(
    "context",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)
def test_no_worker_survives_a_loop_that_is_killed(context: str, host: Host, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUCK + ORPHANS)
    statuses, output = host.run(tmp_path / "train.py", context)
    assert statuses == [0], output


def test_ctrl_c_is_the_loops_to_answer() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    found = []
    for batch in PackedLoader(make_dataset(), num_workers=2, prefetch_factor=1):
        found.append(identity(batch))
        for pid in child_processes():
            os.kill(pid, signal.SIGINT)
    assert found == expected


def test_the_loops_handlers_do_not_run_in_workers(tmp_path: Path) -> None:
    ran = tmp_path / "handler-ran"
    before = signal.signal(signal.SIGTERM, lambda *_: ran.touch())
    try:
        next(iter(PackedLoader(make_dataset(), num_workers=2, multiprocessing_context="fork")))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert child_processes() == []
    assert not ran.exists()


def test_loops_that_stop_half_way_leave_no_process_and_no_file_open() -> None:
    loader = PackedLoader(make_dataset(epochs=None), num_workers=2)
    next(iter(loader))
    gc.collect()  # garbage of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        batches = iter(loader)
        next(batches)
        next(batches)
        del batches
    assert child_processes() == []
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert "streampack-receiver" not in [thread.name for thread in threading.enumerate()]


class Unsendable(MemorySource):
    """Its cursors cannot be pickled."""

    def lanes(self, n: int, **options: Any) -> Any:
        return [self] * n

    def read(self, cursor: Any, skips: Any) -> Any:
        for block, end, _ in self.read_shard(0, 0, len(self.shards[0]), None, skips):
            yield block, {"end": end, "unsendable": lambda: None}


def test_a_worker_that_cannot_send_is_an_error_and_not_a_wait() -> None:
    source = Unsendable([[np.zeros(20, dtype=np.uint16)] * 200], block_documents=2)
    dataset = PackedDataset(source, seq_len=32, lanes=1, topology=Topology())
    with pytest.raises(AttributeError, match="lambda"):
        list(PackedLoader(dataset, num_workers=1))


def test_a_hook_that_cannot_be_sent_to_a_spawned_worker_is_named() -> None:
    dataset = make_dataset(filter=Hook("all", lambda documents, seeds: documents.lengths >= 0))
    with pytest.raises(ConfigError, match="lambda"):
        next(iter(PackedLoader(dataset, num_workers=2, multiprocessing_context="spawn")))
    assert child_processes() == []


INTERRUPTED = """
def waits(kind):
    if kind == "workers":
        list(PackedLoader(make_dataset(map=Hook("block", block)), num_workers=2))
    else:
        in_threads(lambda _: threading.Event().wait(), range(2))

def interrupt():
    time.sleep(1)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which this thread takes

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt, daemon=True).start()
try:
    waits(sys.argv[1])
except KeyboardInterrupt:
    os._exit(3)
"""


@pytest.mark.parametrize("kind", ["workers", "threads"])
def test_an_interrupt_that_another_thread_has_taken_ends_a_wait(
    kind: str, host: Host, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STUCK + INTERRUPTED)
    statuses, output = host.run(tmp_path / "train.py", kind)
    assert statuses == [3], output
