"""The entries of a `KeepLast`."""

from __future__ import annotations

import threading

import pytest

from streampack.keep_last import KeepLast


def test_the_entries_used_last_are_kept() -> None:
    entries: KeepLast[int, str] = KeepLast(2)
    for key in (1, 2, 1, 3):
        entries.keep(key, lambda: "made")
    assert list(entries) == [1, 3]


def test_an_entry_is_made_once() -> None:
    entries: KeepLast[int, list[int]] = KeepLast(2)
    assert entries.keep(1, list) is entries.keep(1, list)


def test_an_entry_that_could_not_be_made_is_made_at_the_next_use() -> None:
    entries: KeepLast[int, float] = KeepLast(1)
    entries.keep(1, lambda: 1.0)
    with pytest.raises(ZeroDivisionError):
        entries.keep(2, lambda: 1 / 0)
    assert list(entries) == [1]
    assert entries.keep(2, lambda: 2.0) == 2.0


def test_threads_that_make_an_entry_at_once_get_the_same_one() -> None:
    entries: KeepLast[int, object] = KeepLast(2)
    together, results = threading.Barrier(4), list[object]()

    def make() -> object:
        together.wait(60)
        return object()

    threads = [
        threading.Thread(target=lambda: results.append(entries.keep(1, make))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(map(id, results))) == 1


def test_threads_keep_entries_of_a_small_one_at_once() -> None:
    entries: KeepLast[int, int] = KeepLast(2)
    wrong: list[int] = []

    def use() -> None:
        for i in range(5_000):
            key = i % 7
            if entries.keep(key, lambda key=key: key) != key:  # type: ignore[misc]
                wrong.append(key)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(entries) <= 2
