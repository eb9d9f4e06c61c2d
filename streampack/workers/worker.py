"""A worker process: makes the batches of some lanes, and sends them through a pipe."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any, NamedTuple

import numpy as np
import torch

from streampack import metrics
from streampack.deals.report_channel import ReportChannel
from streampack.deals.report_exchange import ReportExchange
from streampack.lane.config import LaneShare
from streampack.lane.rotation import rotate
from streampack.lane.state import LaneBatch, LaneEnd
from streampack.tasks.children import wait_for_parent
from streampack.tasks.failures import Failure
from streampack.tasks.messages import send
from streampack.workers.messages import END, encode

#: Signals blocked until a worker has its handlers. A forked worker carries the loop's stack, which
#: Ctrl-C would unwind there. A spawned worker loads for seconds, and may be terminated meanwhile; a
#: fork server would pass its blocked signals on to its other children.
HELD_BACK: dict[str, tuple[signal.Signals, ...]] = {
    "fork": (signal.SIGINT, signal.SIGTERM),
    "spawn": (signal.SIGINT,),
    "forkserver": (),
}


class Job(NamedTuple):
    """Work of a worker.

    Attributes:
        share, sharing: its lanes, and their part in deals.
        worker, workers: index of the worker, and the number of workers.
        clock: see `metrics.thread_clock`.
    """

    share: LaneShare
    sharing: ReportChannel
    worker: int
    workers: int
    clock: Callable[[], float]


def work(pipe: Connection, room: Semaphore, job: Job) -> None:
    """Send the items of a job, each as soon as there is room for it, or a `Failure`; then `END`."""
    metrics.thread_clock = job.clock
    exchange = job.sharing.exchange(job.share.config.dealing)
    _end_with_loop(exchange)
    _be_worker(job.worker, job.workers)
    with suppress(BrokenPipeError):  # the loop has ended
        try:
            _send_items(rotate(job.share, job.sharing, exchange), pipe, room)
        except Exception as error:
            send(pipe, pickle.dumps(Failure.of(error)))
        send(pipe, END)


def _send_items(items: Iterable[LaneBatch | LaneEnd], pipe: Connection, room: Semaphore) -> None:
    """Send items, each with its start if that is new, and the seconds of pickling the last one."""
    starts: dict[int, Any] = {}
    send_s = 0.0
    for item in items:
        new = item.start is not starts.get(item.lane)
        starts[item.lane] = item.start
        state = item.start.state(0) if new else None
        began = time.perf_counter()
        message = encode(item, state, send_s)
        send_s = time.perf_counter() - began
        room.acquire()
        send(pipe, message)


def _end_with_loop(exchange: ReportExchange) -> None:
    """Leave Ctrl-C to the loop, and exit if the loop's process is killed and cannot end us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK["fork"])

    def die_with_loop() -> None:
        wait_for_parent()
        exchange.close(remove=True)
        os._exit(0)

    threading.Thread(target=die_with_loop, daemon=True).start()


def _be_worker(worker: int, workers: int) -> None:
    """Be as a worker of torch's DataLoader: one thread, its seeds, and `get_worker_info`."""
    torch.set_num_threads(1)
    # A generator of its own, so that the loop's stays unchanged.
    base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator()))
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(np.random.SeedSequence([worker, base_seed]).generate_state(4))  # noqa: NPY002
    # `get_worker_info` is public, and nothing public sets it.
    of_torch: Any = import_module("torch.utils.data._utils.worker")
    of_torch._worker_info = of_torch.WorkerInfo(
        id=worker, num_workers=workers, seed=seed, dataset=None
    )
