"""A rank's batches from worker processes.

Each worker runs some of the lanes and gives their batches in rotation. A batch crosses a pipe as
bytes in compact form (2 to 4 per token), a lane's state once per round. A thread receives messages
ahead of the loop, and makes the per-token fields of the next batches if the loop uses them. So the
loop only waits for a reference to be handed over.
"""

from __future__ import annotations

import fcntl
import logging
import math
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

from streampack import metrics
from streampack.at_exit import at_exit
from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.deals.report_channel import ReportChannel
from streampack.errors import ConfigError, WorkerError
from streampack.lane.config import LaneShare, warm_up
from streampack.lane.state import LaneEnd, SavedStart
from streampack.metrics import LaneTimes
from streampack.tasks.children import Child, wait_for
from streampack.tasks.failures import Failure
from streampack.tasks.messages import MessageReader
from streampack.threads import LOOK_S
from streampack.workers.messages import END, decode
from streampack.workers.worker import HELD_BACK, Job, work

logger = logging.getLogger(__name__)

AHEAD_BYTES = 1 << 24  # of the fields of batches per worker that are ready for the loop
FIELD_BYTES = 28  # of the fields, per token
PIPE_BYTES = 1 << 20  # limit of an unprivileged process on Linux

Received: TypeAlias = PackedBatch | LaneEnd | BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of worker processes; see `PackedLoader`."""

    num_workers: int
    prefetch_factor: int
    timeout_s: float
    context: Any


def feed_from_workers(
    share: LaneShare, sharing: ReportChannel, settings: WorkerSettings
) -> Generator[PackedBatch | LaneEnd, None, None]:
    """Yield a rank's batches of some lanes, from workers that live as long as this generator.

    A lane without batches yields its end, once.

    Raises (while iterating):
        WorkerError: a worker died, or sent nothing within the timeout.
        ConfigError: the dataset cannot be sent to a process that is not forked.
        Exception: any error of a lane in a worker.
    """
    warm_up(share.config)
    lanes = list(share.states)
    count = min(settings.num_workers, len(lanes))
    if count < settings.num_workers:
        logger.warning(
            "num_workers is %d, more than this rank's lanes (%d), each of which one worker runs: "
            "%d are started. Pass num_workers=%d; or, if reading is too slow and the corpus large "
            "enough, lanes= of the dataset.",
            settings.num_workers,
            count,
            count,
            count,
        )
    jobs = [
        Job(
            replace(share, states={lane: share.states[lane] for lane in lanes[worker::count]}),
            sharing,
            worker,
            count,
            metrics.thread_clock,
        )
        for worker in range(count)
    ]
    receiver = _Receiver(jobs, settings)
    try:
        turns = deque(number % count for number in range(len(lanes)))
        while turns:
            worker = turns.popleft()
            item = receiver.get(worker)
            if item.has_next:
                turns.append(worker)
            yield item
    finally:
        receiver.stop()


class _Worker:
    """A worker and its messages, on their way to the loop.

    Attributes:
        job: its work.
        room: number of batches that it may still make ahead.
        child, reader: its process and the reader of its pipe, once it is started.
        gave, finished: whether it sent anything, and all.
        received: its messages, followed by the error of any worker that died.
        ready: its next items, for the loop.
    """

    def __init__(self, context: Any, prefetch_factor: int, job: Job) -> None:
        self.job = job
        self.room = context.Semaphore(prefetch_factor)
        self.child: Child | None = None
        self.reader: MessageReader
        self.gave = self.finished = False
        self.received: deque[memoryview | WorkerError] = deque()
        self.ready: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._starts: dict[int, SavedStart] = {}
        self._times = LaneTimes()  # since the last item with metrics

    def receive(self) -> None:
        """Take the messages that its pipe holds; raise `EOFError` if no more will come."""
        messages = self.reader.read()
        self.gave = True
        if messages and messages[-1] == END:
            self.finished = True
            messages.pop()
        self.received += messages

    def unpacked(self, *, on_fields: Callable[[], None], make_fields: bool) -> Received:
        """Remove the next message from `received`, and return its item or error."""
        message = self.received.popleft()
        if isinstance(message, WorkerError):
            return message
        began = time.perf_counter()
        content = pickle.loads(message)  # noqa: S301
        if isinstance(content, Failure):
            return content.as_raised()
        values, state, send_s = content
        item: Any = decode(values)
        if state is not None:
            self._starts[item.lane] = SavedStart(state)
        item = item._replace(start=self._starts[item.lane])
        spent = item.metrics
        if not isinstance(item, LaneEnd):
            item = kind_of(item.rows).of_lane(item, on_fields=on_fields)
            if make_fields:
                item.make_fields()
        self._times.send_s += send_s
        self._times.receive_s += time.perf_counter() - began
        if spent is not None:
            spent.times, self._times = spent.times + self._times, LaneTimes()
        received: PackedBatch | LaneEnd = item
        return received


def _open_streams() -> None:
    """Open /dev/null where standard streams are closed, since Python cannot spawn without them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class _Receiver:
    """Start workers, receive their messages in a thread, and end them."""

    def __init__(self, jobs: Sequence[Job], settings: WorkerSettings) -> None:
        self._timeout_s = settings.timeout_s or math.inf
        self._context = settings.context or multiprocessing.get_context()
        if self._context.get_start_method() != "fork":
            _open_streams()
        self._workers = [_Worker(self._context, settings.prefetch_factor, job) for job in jobs]
        self._process = os.getpid()
        self._wants_fields = threading.Event()  # set once the loop has used some
        config = jobs[0].share.config
        self._ahead = max(AHEAD_BYTES // (FIELD_BYTES * config.batch_tokens), 2)
        # Else other ranks take most batches.
        self._all_its_own = not config.packer._shares_batches
        self._stopped = False
        self._woken, self._wake = multiprocessing.Pipe(duplex=False)
        _running.add(self)
        self._thread = threading.Thread(target=self._run, name="streampack-receiver", daemon=True)
        self._thread.start()

    def get(self, number: int) -> PackedBatch | LaneEnd:
        """Return the next item of a worker; raise the errors of `feed_from_workers`."""
        if os.getpid() != self._process:
            raise WorkerError(
                "This process was forked inside a loop, and the workers belong to its parent.",
                remedy="Let the child leave the loop, or iterate its own loader.",
            )
        worker, began, item = self._workers[number], time.monotonic(), None
        while item is None:
            try:
                item = worker.ready.get(timeout=min(LOOK_S, self._timeout_s))
            except queue.Empty:
                if time.monotonic() - began >= self._timeout_s:
                    raise WorkerError(
                        f"Worker {number} sent no batch within {self._timeout_s:g} s.",
                        remedy="Check storage and tokenizer, or raise timeout.",
                        setting="timeout",
                    ) from None
        if isinstance(item, BaseException):
            raise item
        worker.room.release()
        if worker.received and worker.ready.qsize() <= self._ahead // 2:
            self._wake_thread()
        return item

    def stop(self) -> None:
        """End the processes, even if they are blocked in I/O, and the thread."""
        if os.getpid() != self._process:
            return  # this is a forked child of the loop's process
        self._stopped = True
        self._wake_thread()
        self._thread.join()
        _running.discard(self)

    def _wake_thread(self) -> None:
        """Let the thread look at the workers once more."""
        os.write(self._wake.fileno(), b"\0")

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            for worker in self._workers:
                self._start(worker)
            self._receive()
        except BaseException as error:  # the loop raises it when it asks for the batch
            for worker in self._workers:
                worker.ready.put(error)
        finally:
            for worker in self._workers:
                if worker.child is not None:
                    worker.child.end()

    def _start(self, worker: _Worker) -> None:
        method = self._context.get_start_method()
        if method != "fork":
            resource_tracker.ensure_running()  # because starting it later would unblock the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK[method])
        try:
            child = Child(self._context, work, worker.room, worker.job, daemon=True)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"The dataset cannot be sent to a worker process: {error}.",
                remedy="Define hooks and factories at the top level of a module, or pass "
                'multiprocessing_context="fork".',
                setting="multiprocessing_context",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with suppress(OSError):  # not Linux, or above the user's quota; the pipe is only slower
            fcntl.fcntl(child.pipe.fileno(), getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
        worker.child, worker.reader = child, MessageReader(child.pipe)

    def _receive(self) -> None:
        """Receive all messages, and hand the next ones over to the loop."""
        running = {worker.child: worker for worker in self._workers if worker.child is not None}
        woken = self._woken.fileno()
        while not self._stopped and (running or any(w.received for w in self._workers)):
            sent, ended, is_woken = wait_for(running, woken)
            if is_woken:
                os.read(woken, 4096)
            for child in sent:
                try:
                    running[child].receive()
                except EOFError:
                    ended.append(child)
            for child in ended:
                worker = running.pop(child)
                if not worker.finished:
                    error = self._death(worker, child)
                    for other in self._workers:  # which may wait for it
                        other.received.append(error)
            self._hand_over()

    def _hand_over(self) -> None:
        make_fields = self._wants_fields.is_set() and self._all_its_own
        for worker in self._workers:
            while worker.received and worker.ready.qsize() < self._ahead:
                item = worker.unpacked(on_fields=self._wants_fields.set, make_fields=make_fields)
                worker.ready.put(item)

    def _death(self, worker: _Worker, child: Child) -> WorkerError:
        code, method = child.exit_code, self._context.get_start_method()
        who = f"Worker {worker.job.worker} (process {child.process.pid})"
        if code is not None and code > 0 and not worker.gave and method != "fork":
            return WorkerError(
                f"{who} could not start; its error is printed above.",
                remedy=f'With "{method}" a worker imports the script: put the loop under '
                'if __name__ == "__main__": and functions into a module.',
                setting="multiprocessing_context",
            )
        return _died(who, code)


def _died(who: str, code: int | None) -> WorkerError:
    how = "ended" if code is None else f"exited with code {code}"
    if code is not None and code < 0:
        how = f"was killed by signal {-code}"
    if code == -signal.SIGBUS:
        return WorkerError(
            f"{who} {how}: a shard was cut while it was mapped, or a folder in memory such as "
            "/dev/shm is full.",
            "Restore the shard, or free some space; then continue from the last checkpoint. "
            "Replace shards by renaming new ones, never in place.",
        )
    return WorkerError(
        f"{who} {how}.",
        remedy="Iterate the loader once more to continue after the last batch of the loop; if the "
        "system killed the worker, check the memory of the machine.",
    )


_running: weakref.WeakSet[_Receiver] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop threads left by interrupted loops; torch aborts in such a thread at exit."""
    for receiver in list(_running):
        receiver.stop()


at_exit("workers", _stop_all)
