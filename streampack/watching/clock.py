"""Clock that tells waiting for storage from waiting for a processor."""

from __future__ import annotations

import os
import time


def ready_s() -> float:
    """Return the seconds in which this thread ran, or was ready and waited for a processor.

    Only Linux counts the second; elsewhere it is the thread's processor time.
    """
    ran = time.thread_time()
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return ran
    try:
        fields = os.read(file, 100).split()
    finally:
        os.close(file)
    return ran + int(fields[1]) / 1e9 if len(fields) > 1 else ran
