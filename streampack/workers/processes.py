"""A rank's batches from worker processes of torch's DataLoader.

Each worker runs some of the lanes and gives their batches in rotation. A batch crosses as bytes in
compact form (2 to 4 per token), a lane's state once per round. A thread receives batches ahead of
the loop, and makes their per-token fields if the loop uses them. So the loop only waits for a
reference to be handed over, and torch's handler of SIGCHLD, which raises at any line of the main
thread, is not installed.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import get_spawning_popen
from typing import IO, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streampack import metrics
from streampack.at_exit import at_exit
from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.deals.report_channel import ReportChannel
from streampack.deals.report_exchange import ReportExchange
from streampack.errors import ConfigError, StreampackError, WorkerError
from streampack.lane.config import LaneShare, warm_up
from streampack.lane.rotation import rotate
from streampack.lane.state import LaneBatch, LaneEnd, SavedStart
from streampack.metrics import LaneTimes

logger = logging.getLogger(__name__)

AHEAD = 2  # batches per worker that the thread holds for the loop, with their fields
PIPE_BYTES = 1 << 20  # limit of an unprivileged process on Linux
LOOK_S = 0.2  # interval of checks that silent workers are alive

#: Signals blocked until a worker has its handlers. A forked worker carries the loop's stack, which
#: Ctrl-C would unwind there. A spawned worker loads for seconds, and may be terminated meanwhile; a
#: fork server would pass its blocked signals on to its other children.
HELD_BACK: dict[str, tuple[signal.Signals, ...]] = {
    "fork": (signal.SIGINT, signal.SIGTERM),
    "spawn": (signal.SIGINT,),
    "forkserver": (),
}
_SENT = SavedStart({})  # placeholder for a start, which is sent with its first batch


class _Failed(NamedTuple):
    """An error raised by a lane: the error itself if it can be pickled, and its traceback text."""

    error: BaseException | None
    traceback: str


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
    receiver = _Receiver(share, sharing, replace(settings, num_workers=count))
    try:
        # Once a worker has finished, turns of the others come sooner, so lanes may run ahead.
        running: dict[int, deque[PackedBatch | LaneEnd]] = {lane: deque() for lane in lanes}
        while running:
            for lane, waiting in list(running.items()):
                while not waiting:
                    item = receiver.get()
                    running[item.lane].append(item)
                item = waiting.popleft()
                if isinstance(item, LaneEnd) or not item.has_next:
                    del running[lane]
                yield item
    finally:
        receiver.stop()


class _Lanes(IterableDataset[bytes]):
    """The dataset of a worker: messages of its lanes, or empty ones up to the common length."""

    def __init__(
        self, share: LaneShare, sharing: ReportChannel, clock: Callable[[], float]
    ) -> None:
        self._share = share
        self._sharing = sharing
        self._clock = clock
        self._exchange: ReportExchange  # set in a worker only
        self._files: list[IO[bytes]] = []  # open until the workers are started

    def __reduce__(self) -> Any:
        """Pickle through a file: a full pipe of a dead worker would block forever."""
        if get_spawning_popen() is None:
            return type(self), (self._share, self._sharing, self._clock)
        file = _unnamed_file()
        self._files.append(file)
        sent = (self._share, self._sharing, self._clock)
        reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(sent)
        file.flush()
        return _lanes_from, (reduction.DupFd(file.fileno()),)

    def sent(self) -> None:
        """Close the files sent to workers, which hold their own handles."""
        while self._files:
            self._files.pop().close()

    def begin(self, worker: int) -> None:
        """Set up a worker's handlers before it calls torch, which may wait."""
        metrics.thread_clock = self._clock
        self._exchange = self._sharing.exchange(self._share.config.dealing)
        _end_with_loop(self._exchange)

    def __iter__(self) -> Iterator[bytes]:
        info = get_worker_info()
        assert info is not None
        every = self._share.states
        lanes = list(every)[info.id :: info.num_workers]
        share = replace(self._share, states={lane: every[lane] for lane in lanes})
        try:
            turns = -(-len(every) // info.num_workers)
            yield from _messages(rotate(share, self._sharing, self._exchange), lanes, turns)
        except Exception as error:
            yield pickle.dumps(_Failed(_picklable(error), traceback.format_exc()))


def _unnamed_file() -> IO[bytes]:
    """Open a file without a name, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("streampack"), "w+b")
    return tempfile.TemporaryFile()  # type: ignore[return-value]


def _lanes_from(sent: Any) -> _Lanes:
    """Load the dataset of a worker that was not forked."""
    with open(sent.detach(), "rb") as file:
        file.seek(0)  # the sender left the position at the end
        return _Lanes(*pickle.load(file))  # noqa: S301


def _messages(
    items: Iterable[LaneBatch | LaneEnd], lanes: list[int], turns: int
) -> Iterator[bytes]:
    """Yield items as bytes, `turns` per rotation; lanes that have ended use no turn.

    A message holds an item, its start if that is new, and the seconds that the one before it took.
    """
    starts: dict[int, Any] = {}
    turn, send_s = 0, 0.0
    for item in items:
        while turn % turns != lanes.index(item.lane):
            yield b""
            turn += 1
        new = item.start is not starts.get(item.lane)
        starts[item.lane] = item.start
        state = item.start.state(0) if new else None
        began = time.perf_counter()
        # Protocol 5 copies arrays once, and its arrays are writable in the loop.
        message = pickle.dumps((item._replace(start=_SENT), state, send_s), protocol=5)
        send_s = time.perf_counter() - began
        yield message
        turn += 1


def _end_with_loop(exchange: ReportExchange) -> None:
    """Leave Ctrl-C to the loop, and exit if the loop's process is killed and cannot end us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK["fork"])
    # The parent may be a fork server, which outlives the loop. The sentinel follows the loop, but
    # fails if another process inherited its other end. So both are watched.
    parent, loop = os.getppid(), multiprocessing.parent_process()
    watched = [loop.sentinel] if loop is not None else []

    def die_with_loop() -> None:
        while os.getppid() == parent and not wait(watched, 0.5):
            pass
        exchange.close(remove=True)
        os._exit(0)

    threading.Thread(target=die_with_loop, daemon=True).start()


class _Receiver:
    """Start workers, receive their messages in a thread, and end them."""

    def __init__(self, share: LaneShare, sharing: ReportChannel, settings: WorkerSettings) -> None:
        self._settings = settings
        self._context = settings.context or multiprocessing.get_context()
        self._lanes = lanes = _Lanes(share, sharing, metrics.thread_clock)
        self._loader = DataLoader(
            lanes,
            batch_size=None,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            multiprocessing_context=self._context,
            worker_init_fn=lanes.begin,
            # A generator of its own, so that the loop's stays unchanged.
            generator=torch.Generator(),
        )
        self._process = os.getpid()
        self._wants_fields = threading.Event()  # set once the loop has used some
        self._all_its_own = (
            not share.config.packer._shares_batches
        )  # else other ranks take most batches
        self._received: queue.SimpleQueue[PackedBatch | LaneEnd | BaseException]
        self._received = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD * settings.num_workers)
        self._batches: Any = None  # iterator of torch's DataLoader
        self._stopped = False
        self._gave = False  # whether any worker sent an item
        _running.add(self)
        self._thread = threading.Thread(target=self._run, name="streampack-receiver", daemon=True)
        self._thread.start()

    def get(self) -> PackedBatch | LaneEnd:
        """Return the next item of any worker; raise the errors of `feed_from_workers`."""
        if os.getpid() != self._process:
            raise WorkerError(
                "This process was forked inside a loop, and the workers belong to its parent.",
                remedy="Let the child leave the loop, or iterate its own loader.",
            )
        try:
            received = self._wait()
        except RuntimeError as error:  # torch's handler of a process's death interrupts any line
            known = isinstance(error, StreampackError)
            raise (error if known else self._death(1) or error) from None
        if isinstance(received, BaseException):
            raise received
        self._room.release()
        return received

    def _wait(self) -> PackedBatch | LaneEnd | BaseException:
        began, timeout_s = time.monotonic(), self._settings.timeout_s or threading.TIMEOUT_MAX
        while True:
            try:
                return self._received.get(timeout=min(LOOK_S, timeout_s))
            except queue.Empty:
                if (error := self._death()) is not None:
                    raise error from None
                if time.monotonic() - began >= timeout_s:
                    raise WorkerError(
                        f"No worker sent a batch within {timeout_s:g} s.",
                        remedy="Check storage and tokenizer, or raise timeout.",
                        setting="timeout",
                    ) from None

    def stop(self) -> None:
        """End the processes, even if they are blocked in I/O, and the thread."""
        if os.getpid() != self._process:
            return  # this is a forked child of the loop's process
        self._stopped = True
        self._room.release()
        if self._batches is not None:
            for worker in self._batches._workers:
                worker.terminate()
        self._thread.join()
        self._batches = None  # releases its pipes and locks too
        _running.discard(self)

    def _death(self, wait_s: float = 0) -> WorkerError | None:
        workers = [] if self._batches is None or self._stopped else self._batches._workers
        for number, worker in enumerate(workers):
            if wait_s:
                worker.join(wait_s)
            code = worker.exitcode
            if code:
                who = f"Worker {number} (process {worker.pid})"
                return self._could_not_start(who) if self._starts(code) else _died(who, code)
        return None

    def _starts(self, code: int) -> bool:
        """Return whether a worker with this exit code is not forked and failed during its start."""
        return code > 0 and not self._gave and self._context.get_start_method() != "fork"

    def _could_not_start(self, who: str) -> WorkerError:
        return WorkerError(
            f"{who} could not start; its error is printed above.",
            remedy=f'With "{self._context.get_start_method()}" a worker imports the script: put '
            'the loop under if __name__ == "__main__": and functions into a module.',
            setting="multiprocessing_context",
        )

    def _run(self) -> None:
        try:
            self._batches = self._start()
            self._receive()
        except BaseException as error:  # the loop raises it when it asks for the batch
            if not self._stopped:
                known = isinstance(error, StreampackError)
                self._received.put(error if known else self._death(1) or error)
        finally:
            if self._batches is not None:
                _end(self._batches)

    def _receive(self) -> None:
        starts: dict[int, SavedStart] = {}
        times = LaneTimes()  # since the last item with metrics
        for sent in self._batches:
            if self._stopped:
                return
            self._gave = True
            if not sent:
                continue
            began = time.perf_counter()
            message = pickle.loads(sent)  # noqa: S301
            if isinstance(message, _Failed):
                self._received.put(_as_raised(message))
                return
            item, state, send_s = message
            if state is not None:
                starts[item.lane] = SavedStart(state)
            item = item._replace(start=starts[item.lane])
            carried = item.metrics
            if not isinstance(item, LaneEnd):
                item = kind_of(item.rows).of_lane(item, on_fields=self._wants_fields.set)
                if self._wants_fields.is_set() and self._all_its_own:
                    item.make_fields()
            times.send_s += send_s
            times.receive_s += time.perf_counter() - began
            if carried is not None:
                carried.times, times = carried.times + times, LaneTimes()
            self._room.acquire()
            self._received.put(item)

    def _start(self) -> Any:
        """Start the workers; return the iterator of torch's DataLoader."""
        method = self._context.get_start_method()
        if method != "fork":
            resource_tracker.ensure_running()  # because starting it later would unblock the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK[method])
        try:
            batches: Any = iter(self._loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"The dataset cannot be sent to a worker process: {error}.",
                remedy="Define hooks and factories at the top level of a module, or pass "
                'multiprocessing_context="fork".',
                setting="multiprocessing_context",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._lanes.sent()
        pipe = batches._worker_result_queue
        pipe._writer.close()  # so that the pipe ends with the workers
        # Workers are ended by signals. A killed worker may hold the lock of the event by which
        # torch ends workers, and torch would wait for it forever, so torch gets a new event that
        # no worker uses. Spawned workers have still to open the old one, which is kept.
        batches._of_workers = batches._workers_done_event
        batches._workers_done_event = threading.Event()
        with suppress(OSError):  # not Linux, or above the user's quota; the pipe is only slower
            fcntl.fcntl(pipe._reader.fileno(), getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
        return batches


def _died(who: str, code: int) -> WorkerError:
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
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


def _end(batches: Any) -> None:
    """End the workers of an iterator of torch's DataLoader."""
    for worker in batches._workers:
        worker.terminate()  # torch would wait for a blocked worker
    batches._shutdown_workers()
    for worker in batches._workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _picklable(error: BaseException) -> BaseException | None:
    try:  # test the round trip that the error will make
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        return error if type(again) is type(error) else None
    except Exception:
        return None


def _as_raised(failed: _Failed) -> BaseException:
    """Return the worker's error, or a substitute, with the worker's traceback as its cause."""
    cause = WorkerError(f"In a worker:\n{failed.traceback}")
    error = failed.error
    if not isinstance(error, Exception):
        error = WorkerError("A worker failed.", remedy="The cause above names the place.")
    if isinstance(error, StreampackError) or error.__cause__ is None:
        error.__cause__ = cause
    return error
