"""Loaded by Python's fork server: its children hear Ctrl-C, which was held back from itself.

Until the server has handlers of its own, Ctrl-C would end it with a traceback. What it is started
with held back stays so in all that it forks: in our workers until they have their handlers, and in
those of others until they are known to be none of ours.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing import process, util
from typing import Any

WORKER_NAME = "streampack-worker"


def _hear(_: Any) -> None:
    if not process.current_process().name.startswith(WORKER_NAME):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


util.register_after_fork(sys.modules[__name__], _hear)  # when a child begins to run
