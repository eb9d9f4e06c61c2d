"""Downloading files before they are needed, within a budget of bytes.

A hint waits until the budget has room; opening a file returns its bytes to the budget. Threads
start when there is work and end when there is none, so an idle process has no thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

THREADS = 2
#: A downloaded file that is not opened while this many others are opened leaves the budget: its
#: reader has ended.
PATIENCE = 256


class ReadAhead:
    """Downloads ahead for one process; see the module.

    Args:
        limit_bytes: bytes that may be downloading or downloaded and not yet opened. A larger file
            is downloaded ahead only while nothing else is; 0 turns reading ahead off.
        size_of: returns the size of a file; may raise.
        fetch: downloads a file unless it is in the cache, True if it did; may raise.
    """

    def __init__(
        self, limit_bytes: int, size_of: Callable[[str], int], fetch: Callable[[str], bool]
    ) -> None:
        self._limit = limit_bytes
        self._size_of = size_of
        self._fetch = fetch
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._ahead: dict[str, tuple[int, int]] = {}  # url -> (bytes, openings before it)
        self._openings = 0
        self._threads = 0

    @property
    def bytes_ahead(self) -> int:
        """Bytes that are downloading, or downloaded and not yet opened."""
        with self._lock:
            return sum(size for size, _ in self._ahead.values())

    def hint(self, urls: Sequence[str]) -> None:
        """These files are needed soon, in this order."""
        if self._limit <= 0:
            return
        with self._lock:
            known = set(self._waiting) | set(self._ahead)
            self._waiting.extend(url for url in dict.fromkeys(urls) if url not in known)
            self._start()

    def opened(self, url: str) -> None:
        """A file is opened: it no longer counts, and need not be downloaded ahead."""
        with self._lock:
            self._openings += 1
            self._ahead.pop(url, None)
            if url in self._waiting:
                self._waiting.remove(url)
            self._start()

    def _start(self) -> None:
        """Under the lock: start a thread if there is work for one."""
        if self._waiting and self._threads < THREADS:
            self._threads += 1
            threading.Thread(target=self._work, name="streampack-read-ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                url = self._waiting.popleft()
                self._ahead[url] = (0, self._openings)
            try:
                size = self._size_of(url)
                with self._lock:
                    if url not in self._ahead:
                        continue  # opened in the meantime
                    if not self._has_room(url, size):
                        del self._ahead[url]
                        self._waiting.appendleft(url)
                        self._threads -= 1
                        return  # `opened` starts a thread again
                    self._ahead[url] = (size, self._openings)
                if not self._fetch(url):
                    self._forget(url)
            except Exception as error:  # the reader will get it, after all its retries
                logger.debug("reading ahead failed: %s", error)
                self._forget(url)

    def _forget(self, url: str) -> None:
        with self._lock:
            self._ahead.pop(url, None)

    def _has_room(self, url: str, size: int) -> bool:
        """Under the lock: True if `size` more bytes fit the budget."""
        stale = [
            u for u, (n, since) in self._ahead.items() if n and self._openings - since > PATIENCE
        ]
        for other in stale:
            del self._ahead[other]
        others = [n for u, (n, _) in self._ahead.items() if u != url]
        return sum(others) + size <= self._limit or not any(others)
