"""Progress of the first fetch of a process in the log, until a lane has read documents."""

from __future__ import annotations

import logging
import os
import threading
import time

from streampack.file_info import shown
from streampack.metrics import fetched
from streampack.notices import is_first
from streampack.per_process import PerProcess
from streampack.threads import start_daemon

logger = logging.getLogger(__name__)

#: Seconds from the first request to the first line; each pause after it is twice as long.
FIRST_LINE_S = 2.0

_MOST_LINES = 8
_MARK = 0  # a count of no bytes: lanes take it with the counts of the first fetch


class FirstFetch:
    """Bytes that arrived in this process, and a thread that logs them while nothing was read."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._began = 0.0

    def begin(self, url: str) -> None:
        """Record that a file is asked for."""
        with self._lock:
            if self._began:
                return
            self._began = time.monotonic()
        fetched.append(_MARK)
        start_daemon(self._log, shown(url), name="streampack-first-fetch")

    def add(self, num_bytes: int) -> None:
        """Count bytes that arrived."""
        with self._lock:
            self.num_bytes += num_bytes

    def _log(self, name: str) -> None:
        for line in range(_MOST_LINES):
            time.sleep(FIRST_LINE_S * 2**line)
            if first_fetch() is not self or _MARK not in fetched.copy():
                return
            if not line and not is_first(f"fetching {os.getcwd()}"):
                return
            spent_s = time.monotonic() - self._began
            megabytes = self.num_bytes / 1e6
            logger.warning(
                "Fetching the first documents, from %s: %.1f MB after %.0f s, %.1f MB/s.",
                *(name, megabytes, spent_s, megabytes / spent_s),
            )


first_fetch = PerProcess(FirstFetch)
