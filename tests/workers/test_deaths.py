"""Workers that die, stop or fail at any point are an error of the loop, which waits for none."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from streampack import Hook, PackedLoader
from streampack.errors import WorkerError
from streampack.tasks.messages import send
from streampack.workers import worker
from tests.support.memory_source import MemorySource
from tests.support.runs import DOCUMENTS, child_processes, identity, make_dataset


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(0)


@pytest.mark.sampled("each")
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("act", "fact"), [(kill, "killed by signal 9"), (leave, "exited with code 0"), (stop, "0.3 s")]
)
def test_a_loop_goes_on_after_workers_that_end_or_stop_in_a_message(
    act: Callable[[], None], fact: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = itertools.count()

    def send_a_share(pipe: Any, message: bytes) -> None:
        if next(messages) == 5:  # each worker counts for itself
            whole = struct.pack("<Q", len(message)) + message
            os.write(pipe.fileno(), whole[: int(share * len(whole))])
            act()
        send(pipe, message)

    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), num_workers=2, timeout=0.3 if act is stop else 0)
    monkeypatch.setattr(worker, "send", send_a_share)
    found = []
    with pytest.raises(WorkerError, match=fact):
        found.extend(map(identity, loader))
    assert len(found) < len(expected)
    assert child_processes() == []
    monkeypatch.undo()
    loader.timeout = 0
    found += [identity(batch) for batch in loader]
    assert found == expected


def test_a_death_ends_the_wait_for_another_worker() -> None:
    def block_or_die(documents: Any, seeds: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        if info.id == 1:
            kill()
        threading.Event().wait()

    loader = PackedLoader(make_dataset(map=Hook("block or die", block_or_die)), num_workers=2)
    with pytest.raises(WorkerError, match=r"Worker 1 .* killed by signal 9"):
        next(iter(loader))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors")
def test_a_death_is_noticed_though_a_child_of_the_worker_keeps_its_pipe_open() -> None:
    ours, theirs = os.pipe()

    def fork_and_die(documents: Any, seeds: Any) -> None:
        if os.fork() == 0:
            os.close(theirs)
            os.read(ours, 1)  # until the test is over
            os._exit(0)
        kill()

    try:
        loader = PackedLoader(make_dataset(map=Hook("fork and die", fork_and_die)), num_workers=1)
        with pytest.raises(WorkerError, match="killed by signal 9"):
            next(iter(loader))
    finally:
        os.close(theirs)
        os.close(ours)


def test_a_death_in_one_loader_leaves_another_loader_alone() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    first = iter(PackedLoader(make_dataset(epochs=None), num_workers=2))
    next(first)
    (*workers,) = child_processes()
    second = iter(PackedLoader(make_dataset(), num_workers=2))
    found = [identity(next(second))]
    for process in workers:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by signal 9"):
        for _ in first:
            pass
    found += [identity(batch) for batch in second]
    assert found == expected


class LocalError(Exception):
    """It cannot be pickled."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(function)


class PairError(Exception):
    """It can be pickled, and not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Failing(MemorySource):
    error: Exception

    def read_shard(self, *args: Any) -> Iterator[Any]:
        raise self.error


@pytest.mark.parametrize("error", [LocalError(lambda: None), PairError(1, 2)])
def test_an_error_that_cannot_be_sent_is_one_with_the_workers_traceback(error: Exception) -> None:
    source = Failing([DOCUMENTS])
    source.error = error
    dataset = make_dataset()
    dataset = type(dataset)(source, seq_len=32, lanes=1, topology=dataset.topology)
    with pytest.raises(WorkerError) as caught:
        next(iter(PackedLoader(dataset, num_workers=1)))
    assert "read_shard" in str(caught.value.__cause__)
    assert type(error).__name__ in str(caught.value.__cause__)
