"""A value per process, whatever its other threads do while it forks."""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from streampack.per_process import PerProcess
from tests.support.forked import in_fork

WAIT_S = 60


PID = PerProcess(os.getpid)


def own_id() -> bool:
    return PID() == os.getpid()


def test_every_process_makes_its_own_value_once() -> None:
    made: list[int] = []
    value = PerProcess(lambda: made.append(os.getpid()) or object())
    assert value() is value()
    assert in_fork(lambda: (value() is value(), len(made))) == (True, 2)
    assert made == [os.getpid()]


def test_a_fork_in_a_fork_has_its_own_value() -> None:
    assert own_id()
    assert in_fork(lambda: (in_fork(own_id), own_id())) == (True, True)
    assert in_fork(lambda: (own_id(), in_fork(lambda: (own_id(), in_fork(own_id))))) == (
        True,
        (True, True),
    )


def test_a_spawned_process_has_its_own_value() -> None:
    assert own_id()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(own_id)
        assert pool.apply(PID) != os.getpid()


def test_a_fork_does_not_wait_for_a_thread_that_makes_the_value() -> None:
    making, go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def make() -> int:
        if os.getpid() == parent:
            making.set()
            assert go_on.wait(WAIT_S)
        return os.getpid()

    value = PerProcess(make)
    thread = threading.Thread(target=value)
    thread.start()
    assert making.wait(WAIT_S)
    assert in_fork(lambda: value() == os.getpid())
    go_on.set()
    thread.join()
    assert value() == parent


def test_a_fork_does_not_inherit_a_lock_that_a_thread_holds() -> None:
    lock = PerProcess(threading.Lock)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            held.set()
            assert go_on.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_S)
    assert in_fork(lambda: lock().acquire(timeout=WAIT_S))
    go_on.set()
    thread.join()


def test_a_generator_that_is_continued_in_a_fork_uses_the_value_of_its_process() -> None:
    def ids() -> Iterator[bool]:
        while True:
            yield own_id()

    running = ids()
    assert next(running)
    assert in_fork(lambda: next(running))
    assert next(running)


def test_a_fork_while_the_value_is_made_leaves_each_process_its_own() -> None:
    answers: list[bool] = []

    def make() -> int:
        if not answers:
            answers.append(False)
            answers[0] = in_fork(lambda: value() == os.getpid())
        return os.getpid()

    value = PerProcess(make)
    assert value() == os.getpid()
    assert answers == [True]


def test_a_value_that_could_not_be_made_is_made_at_the_next_use() -> None:
    results = iter([OSError("no thread is left"), 1])

    def make() -> int:
        result = next(results)
        if isinstance(result, OSError):
            raise result
        return result

    value = PerProcess(make)
    with pytest.raises(OSError, match="no thread"):
        value()
    assert value() == 1


def test_a_failure_in_the_parent_is_not_one_of_the_child() -> None:
    parent = os.getpid()

    def make() -> int:
        if os.getpid() == parent:
            raise FileNotFoundError
        return os.getpid()

    value = PerProcess(make)
    with pytest.raises(FileNotFoundError):
        value()
    assert in_fork(lambda: value() == os.getpid())


def test_threads_that_make_the_value_at_once_get_the_same_one() -> None:
    together, results = threading.Barrier(4), list[object]()

    def make() -> object:
        together.wait(WAIT_S)
        return object()

    value = PerProcess(make)
    threads = [threading.Thread(target=lambda: results.append(value())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(map(id, results))) == 1


class Connection:
    """Something with a finalizer that must not run in a child."""


def test_a_child_leaves_the_values_of_its_parent_and_finalizes_none() -> None:
    left: list[int] = []
    value = PerProcess(Connection, leave=lambda parents: left.append(id(parents)))
    ended: list[int] = []
    weakref.finalize(value(), ended.append, 1)
    parents = id(value())

    def child() -> tuple[bool, bool]:
        nonlocal value
        del value
        return left == [parents], not ended

    assert in_fork(child) == (True, True)
    assert not left
    del value
    assert ended == [1]
